//! The real Valkey behind [`Valkey`]: one kept connection per Pod, every call bounded.

use std::time::{Duration, Instant};

use shared::metrics::RequestMetrics;
use shared::names;
use shared::secret::Redacted;
use shared::valkey::client::{Connection, Endpoint, Limits, TlsTarget, prove_revision};
use shared::valkey::error::ValkeyError;
use shared::valkey::pool::Pool;
use shared::valkey::report::NodeReport;

use crate::ports::{Check, Command, SendError, Server, ServerTls, Valkey};

/// Connections kept open at most; more nodes than this are still reached, by dialling anew.
const MAX_CONNECTIONS: usize = 4096;

/// Valkey servers, reached through a pool.
pub struct ValkeyApi {
    pool: Pool,
    metrics: RequestMetrics,
}

impl ValkeyApi {
    /// Dials within `connect`, expects replies within `response`.
    pub fn new(connect: Duration, response: Duration, metrics: RequestMetrics) -> Self {
        Self { pool: Pool::new(Limits { connect, response }, MAX_CONNECTIONS), metrics }
    }

    async fn connection(&self, server: &Server) -> Result<std::sync::Arc<Connection>, ValkeyError> {
        self.pool.get(&server.pod_uid, &endpoint(server), &server.credentials).await
    }

    fn measured<T>(
        &self,
        operation: &'static str,
        started: Instant,
        result: Result<T, ValkeyError>,
    ) -> Result<T, ValkeyError> {
        let word = result.as_ref().map_or_else(ValkeyError::kind, |_| "success");
        self.metrics.observe(operation, word, started.elapsed());
        result
    }
}

fn endpoint(server: &Server) -> Endpoint {
    let target =
        |tls: &ServerTls| TlsTarget { server_name: tls.name.clone(), ca_pem: tls.ca_pem.to_string() };
    Endpoint { ip: server.ip, port: names::CLIENT_PORT, tls: server.tls.as_ref().map(target) }
}

impl Valkey for ValkeyApi {
    async fn proves(&self, server: &Server, revision: &str) -> Result<bool, ValkeyError> {
        let started = Instant::now();
        let result = prove_revision(&endpoint(server), revision, self.pool.limits()).await;
        self.measured("prove_revision", started, result)
    }

    async fn set_replication_password(
        &self,
        server: &Server,
        password: &Redacted<String>,
    ) -> Result<(), ValkeyError> {
        let started = Instant::now();
        let result = match self.connection(server).await {
            Ok(connection) => connection.config_set(&[("primaryauth", password.expose())]).await,
            Err(error) => Err(error),
        };
        self.measured("config_set", started, result)
    }

    async fn report(&self, server: &Server) -> Result<NodeReport, ValkeyError> {
        let started = Instant::now();
        let result = match self.connection(server).await {
            Ok(connection) => connection.report(true).await,
            Err(error) => Err(error),
        };
        self.measured("report", started, result)
    }

    async fn send(&self, server: &Server, check: &Check<'_>, command: &Command) -> Result<(), SendError> {
        let connection = self.connection(server).await?;
        check(&connection.report(true).await?).map_err(SendError::Precondition)?;
        let started = Instant::now();
        let (name, result) = match command {
            Command::SetConfigEpoch(epoch) => ("set_config_epoch", connection.set_config_epoch(*epoch).await),
            Command::AddSlots(ranges) => ("add_slots", connection.add_slots_range(ranges).await),
            Command::Meet(ip) => ("meet", connection.meet(*ip, names::CLIENT_PORT).await),
            Command::Replicate(primary) => ("replicate", connection.replicate(*primary).await),
            Command::Forget(id) => ("forget", connection.forget(*id).await.map(drop)),
            Command::Reset => ("reset", connection.reset_hard().await),
            Command::MigrateSlots(ranges, target) => {
                ("migrate_slots", connection.migrate_slots(ranges, *target).await)
            }
            Command::Failover(kind) => ("failover", connection.failover(*kind).await),
        };
        self.measured(name, started, result).map_err(SendError::from)
    }
}
