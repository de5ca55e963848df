//! The name of a Service, resolved by the cluster's own DNS: this tool may run beside the cluster instead of in it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use redis::io::AsyncDNSResolver;
use redis::{ErrorKind, RedisError, RedisFuture};

/// What a DNS server is given for an answer.
const ANSWER: Duration = Duration::from_secs(1);
/// Questions before a name counts as unknown.
const ATTEMPTS: usize = 2;

/// A DNS server that is asked anew each time: nothing is kept.
#[derive(Clone)]
pub struct Names {
    server: SocketAddr,
    resolver: Arc<TokioResolver>,
}

impl fmt::Debug for Names {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Names").field(&self.server).finish()
    }
}

/// Why a name has no addresses.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The server cannot be asked, does not answer, or knows no address.
    #[error("DNS server {server}, asked for {name}")]
    Lookup {
        /// Whom.
        server: SocketAddr,
        /// What.
        name: String,
        /// Why.
        #[source]
        source: NetError,
    },
}

impl Names {
    /// Asks `server`.
    ///
    /// # Errors
    ///
    /// No resolver can be made of it.
    pub fn of(server: SocketAddr) -> Result<Self, NetError> {
        let mut connection = ConnectionConfig::udp();
        connection.port = server.port();
        let server_config = NameServerConfig::new(server.ip(), true, vec![connection]);
        let config = ResolverConfig::from_name_servers(vec![server_config]);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        let options = builder.options_mut();
        options.timeout = ANSWER;
        options.attempts = ATTEMPTS;
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        options.ip_strategy = LookupIpStrategy::Ipv4Only;
        Ok(Self { server, resolver: Arc::new(builder.build()?) })
    }

    async fn ask(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let complete = format!("{}.", name.trim_end_matches('.'));
        let found = self.resolver.lookup_ip(complete).await;
        let found = found.map_err(|source| ResolveError::Lookup {
            server: self.server,
            name: name.to_owned(),
            source,
        })?;
        Ok(found.iter().collect())
    }
}

impl AsyncDNSResolver for Names {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        host: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let found = match host.parse::<IpAddr>() {
                Ok(address) => vec![address],
                Err(_) => self.ask(host).await.map_err(|error| {
                    RedisError::from((
                        ErrorKind::Io,
                        "name",
                        format!("{error}: {:?}", std::error::Error::source(&error)),
                    ))
                })?,
            };
            let addresses = found.into_iter().map(move |ip| SocketAddr::new(ip, port));
            Ok(Box::new(addresses) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

/// How clients find their first node.
#[derive(Debug, Clone)]
pub enum Seeds {
    /// Addresses.
    Fixed(Vec<String>),
    /// A name, asked of a DNS server each time.
    Name {
        /// The DNS server.
        names: Names,
        /// The name, complete.
        name: String,
        /// Port of the nodes.
        port: u16,
        /// Authorities that clients trust, PEM; none: plaintext.
        authorities: Option<String>,
        /// User and password, neither with a character that a URL would escape; none: the default user.
        login: Option<(String, String)>,
    },
}

impl Seeds {
    /// Addresses of nodes, such as `10.0.0.1:6379`; at least one.
    ///
    /// # Errors
    ///
    /// The name has no address now.
    pub async fn resolve(&self) -> Result<Vec<String>, ResolveError> {
        match self {
            Self::Fixed(addresses) => Ok(addresses.clone()),
            Self::Name { names, name, port, .. } => {
                Ok(names.ask(name).await?.iter().map(|ip| SocketAddr::new(*ip, *port).to_string()).collect())
            }
        }
    }

    /// What a client is told, such as `redis://my-cluster.shop.svc.cluster.local:6379/`: it resolves names by
    /// [`Self::names`] and trusts [`Self::authorities`].
    pub fn urls(&self) -> Vec<String> {
        match self {
            Self::Fixed(addresses) => addresses.iter().map(|address| format!("redis://{address}/")).collect(),
            Self::Name { name, port, authorities, .. } => {
                let scheme = if authorities.is_some() { "rediss" } else { "redis" };
                vec![format!("{scheme}://{}{name}:{port}/", self.login())]
            }
        }
    }

    /// The part of a URL that says who logs in: `user:password@`, or nothing.
    pub fn login(&self) -> String {
        match self {
            Self::Name { login: Some((user, password)), .. } => format!("{user}:{password}@"),
            Self::Fixed(_) | Self::Name { .. } => String::new(),
        }
    }

    /// Whom a client trusts; `None`: it speaks plaintext.
    pub fn authorities(&self) -> Option<&str> {
        match self {
            Self::Fixed(_) => None,
            Self::Name { authorities, .. } => authorities.as_deref(),
        }
    }

    /// Who resolves names for a client; `None`: the machine.
    pub fn names(&self) -> Option<Names> {
        match self {
            Self::Fixed(_) => None,
            Self::Name { names, .. } => Some(names.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_is_not_asked_for() {
        let names = Names::of(SocketAddr::from(([127, 0, 0, 1], 9))).unwrap();
        let found: Vec<SocketAddr> =
            AsyncDNSResolver::resolve(&names, "10.0.0.1", 6379).await.unwrap().collect();
        assert_eq!(found, [SocketAddr::from(([10, 0, 0, 1], 6379))]);
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_named() {
        let names = Names::of(SocketAddr::from(([127, 0, 0, 1], 9))).unwrap();
        let seeds = Seeds::Name {
            names,
            name: "shop.example".to_owned(),
            port: 6379,
            authorities: None,
            login: None,
        };
        let error = seeds.resolve().await.unwrap_err();
        assert_eq!(error.to_string(), "DNS server 127.0.0.1:9, asked for shop.example");
    }
}
