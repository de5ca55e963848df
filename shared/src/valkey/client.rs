//! One connection to one Valkey node: dial, TLS, login, request and reply.
//!
//! The only file that names the `redis` crate. Addresses exactly the node it is given: it follows no redirection,
//! retries nothing and never logs in as anyone but the given user. Speaks RESP2 (all replies that the operator reads
//! are flat there, and no server push can interleave).

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, ProtocolVersion, RedisConnectionInfo, Value};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::error::{LostCause, ValkeyError};
use super::parse::Reply;
use crate::names;
use crate::secret::Redacted;
use crate::tls::Authorities;

/// Where a node listens. The IP is always that of the current Pod UID, never a name: names are cached and shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Pod IP.
    pub ip: IpAddr,
    /// Client port.
    pub port: u16,
    /// TLS; `None` means plaintext.
    pub tls: Option<TlsTarget>,
}

/// What a node's certificate has to prove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsTarget {
    /// The DNS name that the certificate must cover, whatever IP is dialled.
    pub server_name: String,
    /// PEM of the accepted authorities, one or more certificates; no other root is trusted.
    pub ca_pem: String,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.ip, self.port).fmt(f)
    }
}

/// Whom to log in as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User name.
    pub user: String,
    /// Password.
    pub password: Redacted<String>,
}

/// Limits of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For TCP and TLS together.
    pub connect: Duration,
    /// For one request, from sending to the last reply; the login is a request.
    pub response: Duration,
}

/// One command: its name for messages, and its words as sent.
#[derive(Clone)]
pub(super) struct Request {
    /// Name without arguments.
    pub(super) name: &'static str,
    /// Arguments after the words of the name. May hold a secret, hence no `Debug`.
    pub(super) arguments: Vec<String>,
}

impl Request {
    /// A command from its name (`CLUSTER MEET`) and its arguments.
    pub(super) fn new(name: &'static str, arguments: impl IntoIterator<Item = String>) -> Self {
        Self { name, arguments: arguments.into_iter().collect() }
    }
}

/// A logged-in connection to one node. Cheap to share; requests are answered in the order they were sent.
///
/// Dropping it ends its task and closes the socket.
pub struct Connection {
    inner: MultiplexedConnection,
    driver: AbortHandle,
    /// A reply was lost: what comes next on this connection may be late, so it is not used again.
    broken: AtomicBool,
    endpoint: Endpoint,
    limits: Limits,
    served: Option<Vec<u8>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("endpoint", &self.endpoint.to_string()).finish_non_exhaustive()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Dials `endpoint` and logs in as exactly `credentials.user`; a rejected login is an error, never another user.
pub async fn connect(
    endpoint: &Endpoint,
    credentials: &Credentials,
    limits: &Limits,
) -> Result<Connection, ValkeyError> {
    let connection = dial(endpoint, *limits).await?;
    match connection.authenticate(&credentials.user, credentials.password.expose()).await? {
        Reply::Error(reply) if reply.starts_with("WRONGPASS") || reply.starts_with("NOAUTH") => {
            let (endpoint, user) = (endpoint.to_string(), credentials.user.clone());
            Err(ValkeyError::AuthRejected { endpoint, user, reply })
        }
        reply => expect_ok("AUTH", reply).map(|()| connection),
    }
}

/// Whether the node runs exactly revision `revision` of its ACL file.
///
/// A new connection logs in as the marker user, whose password is the revision; an open connection would prove
/// nothing, because logins survive ACL LOAD (Valkey 8.1, 9.1). Nothing else is sent on it.
pub async fn prove_revision(
    endpoint: &Endpoint,
    revision: &str,
    limits: &Limits,
) -> Result<bool, ValkeyError> {
    let connection = dial(endpoint, *limits).await?;
    match connection.authenticate(names::USER_REVISION, revision).await? {
        // Also the answer when the file has no such user.
        Reply::Error(reply) if reply.starts_with("WRONGPASS") => Ok(false),
        reply => expect_ok("AUTH", reply).map(|()| true),
    }
}

async fn dial(endpoint: &Endpoint, limits: Limits) -> Result<Connection, ValkeyError> {
    let no_answer = || ValkeyError::Timeout { endpoint: endpoint.to_string(), limit: limits.connect };
    timeout(limits.connect, dial_unlimited(endpoint, limits)).await.map_err(|_| no_answer())?
}

async fn dial_unlimited(endpoint: &Endpoint, limits: Limits) -> Result<Connection, ValkeyError> {
    let unreachable = |source| ValkeyError::Unreachable { endpoint: endpoint.to_string(), source };
    let stream = TcpStream::connect((endpoint.ip, endpoint.port)).await.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let Some(target) = &endpoint.tls else { return establish(endpoint, limits, stream, None).await };
    // The handshake is done here and not by the client library, which would verify for the dialled address.
    let rejected = |source| ValkeyError::TlsRejected {
        endpoint: endpoint.to_string(),
        server_name: target.server_name.clone(),
        source,
    };
    let (connector, name) = tls_connector(target).map_err(rejected)?;
    let stream = connector.connect(name, stream).await.map_err(rejected)?;
    let served = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).map(|leaf| leaf.to_vec());
    establish(endpoint, limits, stream, served).await
}

/// A connector that trusts only the target's authorities, and the name to verify.
fn tls_connector(target: &TlsTarget) -> io::Result<(TlsConnector, ServerName<'static>)> {
    let authorities = Authorities::from_pem(target.ca_pem.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(authorities))
        .with_no_client_auth();
    let name = ServerName::try_from(target.server_name.clone()).map_err(io::Error::other)?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

async fn establish<S>(
    endpoint: &Endpoint,
    limits: Limits,
    stream: S,
    served: Option<Vec<u8>>,
) -> Result<Connection, ValkeyError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // No user here: the library would retry a refused login without the name, which means as the default user.
    let info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(limits.response));
    let (inner, driver) =
        MultiplexedConnection::new_with_config(&info, stream, config).await.map_err(|error| {
            ValkeyError::Unreachable { endpoint: endpoint.to_string(), source: io::Error::other(error) }
        })?;
    let driver = tokio::spawn(driver).abort_handle();
    Ok(Connection {
        inner,
        driver,
        broken: AtomicBool::new(false),
        endpoint: endpoint.clone(),
        limits,
        served,
    })
}

impl Connection {
    /// Where this connection leads.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The certificate that the node served when this connection was made, DER; `None` in plaintext.
    pub fn served_certificate(&self) -> Option<&[u8]> {
        self.served.as_deref()
    }

    /// Whether a further request can succeed: no reply was lost on it and the peer has not closed it.
    pub fn is_usable(&self) -> bool {
        !self.broken.load(Ordering::Relaxed) && !self.driver.is_finished()
    }

    async fn authenticate(&self, user: &str, password: &str) -> Result<Reply, ValkeyError> {
        let login = Request::new("AUTH", [user.to_owned(), password.to_owned()]);
        let endpoint = || self.endpoint.to_string();
        self.request(login).await.map_err(|error| match error {
            // A lost login changes nothing at the node.
            ValkeyError::LostReply { cause: LostCause::TimedOut(limit), .. } => {
                ValkeyError::Timeout { endpoint: endpoint(), limit }
            }
            ValkeyError::LostReply { cause, .. } => {
                ValkeyError::Unreachable { endpoint: endpoint(), source: io::Error::other(cause) }
            }
            other => other,
        })
    }

    /// Sends one command and returns the server's reply, an error reply included.
    pub(super) async fn request(&self, request: Request) -> Result<Reply, ValkeyError> {
        let command = request.name;
        let mut replies = self.pipeline(command, vec![request]).await?;
        let missing = || ValkeyError::Protocol { command, problem: "no reply".to_owned() };
        replies.pop().ok_or_else(missing)
    }

    /// Sends several commands in one write and returns their replies in order, error replies included.
    ///
    /// `name` stands for all of them in errors.
    pub(super) async fn pipeline(
        &self,
        name: &'static str,
        requests: Vec<Request>,
    ) -> Result<Vec<Reply>, ValkeyError> {
        let mut pipeline = Pipeline::with_capacity(requests.len());
        for request in &requests {
            for (index, word) in request.name.split(' ').enumerate() {
                if index == 0 {
                    pipeline.cmd(word)
                } else {
                    pipeline.arg(word)
                };
            }
            pipeline.arg(&request.arguments);
        }
        let mut inner = self.inner.clone();
        match inner.send_packed_commands(&pipeline, 0, requests.len()).await {
            Ok(values) if values.len() == requests.len() => Ok(values.into_iter().map(reply_of).collect()),
            Ok(values) => {
                self.broken.store(true, Ordering::Relaxed);
                let problem = format!("{} replies to {} commands", values.len(), requests.len());
                Err(ValkeyError::Protocol { command: name, problem })
            }
            Err(error) => {
                self.broken.store(true, Ordering::Relaxed);
                let cause = if error.is_timeout() {
                    LostCause::TimedOut(self.limits.response)
                } else if error.is_connection_dropped() {
                    LostCause::Closed
                } else {
                    LostCause::Failed(error.to_string())
                };
                Err(ValkeyError::LostReply { command: name, cause })
            }
        }
    }
}

/// Turns an error reply into an error, and anything else but `OK` into a protocol error.
pub(super) fn expect_ok(command: &'static str, reply: Reply) -> Result<(), ValkeyError> {
    match expect_success(command, reply)? {
        Reply::Text(text) if text == b"OK" => Ok(()),
        other => Err(ValkeyError::Protocol { command, problem: format!("{other:?} instead of OK") }),
    }
}

/// Turns an error reply into an error.
pub(super) fn expect_success(command: &'static str, reply: Reply) -> Result<Reply, ValkeyError> {
    match reply {
        Reply::Error(reply) if reply.starts_with("NOPERM") || reply.starts_with("NOAUTH") => {
            Err(ValkeyError::NoPermission { command, reply })
        }
        Reply::Error(reply) if reply.starts_with("LOADING") => Err(ValkeyError::Loading { command }),
        Reply::Error(reply) => Err(ValkeyError::Refused { command, reply }),
        reply => Ok(reply),
    }
}

/// The library's value as ours.
fn reply_of(value: Value) -> Reply {
    match value {
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) | Value::BigNumber(bytes) => Reply::Text(bytes),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Reply::Text(text.into_bytes()),
        Value::Okay => Reply::Text(b"OK".to_vec()),
        Value::Double(number) => Reply::Text(number.to_string().into_bytes()),
        Value::Boolean(truth) => Reply::Int(i64::from(truth)),
        Value::Array(items) | Value::Set(items) | Value::Push { data: items, .. } => {
            Reply::Array(items.into_iter().map(reply_of).collect())
        }
        Value::Map(pairs) => {
            Reply::Map(pairs.into_iter().map(|(name, value)| (reply_of(name), reply_of(value))).collect())
        }
        Value::Attribute { data, .. } => reply_of(*data),
        Value::ServerError(error) => Reply::Error(match error.details() {
            Some(details) => format!("{} {details}", error.code()),
            None => error.code().to_owned(),
        }),
        // RESP3 forms that a later library version may add; the operator reads none of them.
        _ => Reply::Nil,
    }
}
