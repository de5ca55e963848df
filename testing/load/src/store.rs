//! Where numbers are written to and read from: a cluster through a cluster-aware client, or a model in tests.

use std::future::Future;
use std::time::Duration;

use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, RedisError, TlsCertificates, Value};

use crate::data::{self, Seen};
use crate::keys::Entry;
use crate::resolve::Seeds;

/// What the application's client waits for a connection.
const CONNECT: Duration = Duration::from_millis(500);
/// What it waits for one answer before it tries again.
const ANSWER: Duration = Duration::from_secs(2);
/// When it gives a command up, attempts and pauses included: then the application sees an error.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Shortest and longest pause between attempts, milliseconds.
const PAUSES: (u64, u64) = (5, 100);
/// More than fit into [`PATIENCE`]: time ends the attempts.
const RETRIES: u32 = 1000;

/// Why a command did not succeed, after all attempts of the client.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{kind}: {detail}")]
pub struct Failure {
    /// Few different words: an error code of the server, or what happened to the connection.
    pub kind: String,
    /// The whole text.
    pub detail: String,
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        let kind = match error.code() {
            Some(code) => code.to_owned(),
            None if error.is_timeout() => "timeout".to_owned(),
            None if error.is_connection_refusal() => "refused".to_owned(),
            None if error.is_connection_dropped() => "dropped".to_owned(),
            None => format!("{:?}", error.kind()),
        };
        Self { kind, detail: error.to_string() }
    }
}

/// A place for numbered values.
pub trait Store: Clone + Send + Sync + 'static {
    /// Writes `number` to a key.
    fn write(&self, entry: &Entry, number: u64) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Reads what a key shows.
    fn read(&self, entry: &Entry) -> impl Future<Output = Result<Seen, Failure>> + Send;
}

/// A cluster, through one client with a connection to each node; clones share them.
#[derive(Clone)]
pub struct Cluster {
    connection: ClusterConnection,
}

impl Cluster {
    /// A new client that starts from `seeds`, and starts from them again when it has lost every node.
    ///
    /// # Errors
    ///
    /// None of them answers, or what they say is no cluster.
    pub async fn connect(seeds: &Seeds) -> Result<Self, Failure> {
        let mut builder = ClusterClient::builder(seeds.urls())
            .connection_timeout(CONNECT)
            .response_timeout(ANSWER)
            .overall_response_timeout(Some(PATIENCE))
            .retries(RETRIES)
            .min_retry_wait(PAUSES.0)
            .max_retry_wait(PAUSES.1)
            .retry_wait_formula(PAUSES.1, 1);
        if let Some(names) = seeds.names() {
            builder = builder.async_dns_resolver(names);
        }
        if let Some(authorities) = seeds.authorities() {
            let root_cert = Some(authorities.as_bytes().to_vec());
            builder = builder.certs(TlsCertificates { client_tls: None, root_cert });
        }
        Ok(Self { connection: builder.build()?.get_async_connection().await? })
    }

    async fn ask(&self, command: &Cmd) -> Result<Value, Failure> {
        Ok(command.query_async(&mut self.connection.clone()).await?)
    }
}

impl Store for Cluster {
    async fn write(&self, entry: &Entry, number: u64) -> Result<(), Failure> {
        self.ask(&data::write(entry, number)).await?;
        if let Some(trim) = data::trim(entry, number) {
            self.ask(&trim).await?;
        }
        Ok(())
    }

    async fn read(&self, entry: &Entry) -> Result<Seen, Failure> {
        let mut seen = data::parse(entry, self.ask(&data::read(entry)).await?)?;
        if let Some(command) = data::read_life(entry) {
            let life: i64 = redis::from_redis_value(self.ask(&command).await?).map_err(RedisError::from)?;
            if !data::life_is_right(life) {
                seen.broken = Some(format!("its life time is {life} ms"));
            }
        }
        Ok(seen)
    }
}
