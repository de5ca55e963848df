//! What a pass does at one node: prove, reload, prove again.
//!
//! Owns the order of these calls, their limits and their metrics. Decides nothing beyond whether to reload.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use shared::metrics::RequestMetrics;
use shared::names;
use shared::telemetry;
use shared::valkey::{Credentials, Endpoint, Limits, TlsTarget, ValkeyError, connect, prove_revision};
use tokio::sync::Semaphore;

use crate::plan::NodeResult;
use crate::seen::{ClusterKey, NodeSeen};

/// Access to nodes, at most `fan_out` at once over all clusters of a loop.
#[derive(Debug, Clone)]
pub struct Nodes {
    limits: Limits,
    fan_out: Arc<Semaphore>,
    metrics: RequestMetrics,
}

/// Where a node of a cluster is dialled; `ca_pem` is that of a TLS cluster.
pub fn endpoint(cluster: &ClusterKey, node: &NodeSeen, ca_pem: Option<&str>) -> Endpoint {
    let tls = ca_pem.map(|ca_pem| TlsTarget {
        server_name: names::pod_host(&node.name, &cluster.0.name, &cluster.0.namespace),
        ca_pem: ca_pem.to_owned(),
    });
    Endpoint { ip: node.ip, port: names::CLIENT_PORT, tls }
}

impl Nodes {
    /// Access within these limits.
    pub fn new(limits: Limits, fan_out: u16, metrics: RequestMetrics) -> Self {
        Self { limits, fan_out: Arc::new(Semaphore::new(usize::from(fan_out).max(1))), metrics }
    }

    /// Makes a node run `revision` of users.acl. `credentials` are asked for only when it does not do so already, so a
    /// quiet node costs one login.
    pub async fn acl<E: std::fmt::Display>(
        &self,
        endpoint: &Endpoint,
        revision: &str,
        credentials: impl Future<Output = Result<Credentials, E>>,
    ) -> NodeResult {
        let Ok(_permit) = self.fan_out.acquire().await else { return closed() };
        match self.prove(endpoint, revision).await {
            Ok(true) => return NodeResult::Current { reloaded: false },
            Ok(false) => {}
            Err(error) => return failed(&error),
        }
        let credentials = match credentials.await {
            Ok(credentials) => credentials,
            Err(error) => return NodeResult::Failed { kind: "no_credentials", error: error.to_string() },
        };
        if let Err(error) = self.acl_load(endpoint, &credentials).await {
            return match error {
                ValkeyError::Refused { reply, .. } => NodeResult::Refused(reply),
                other => failed(&other),
            };
        }
        match self.prove(endpoint, revision).await {
            Ok(true) => NodeResult::Current { reloaded: true },
            Ok(false) => NodeResult::Stale,
            Err(error) => failed(&error),
        }
    }

    /// Points a node back at its certificate files, which makes it re-read them, and tells whether it serves
    /// `certificate` (DER). `settings` are the three that name the files.
    ///
    /// Sent on every pass: a changed authority shows in no handshake, and the server replaces its material only when all
    /// three files are good.
    pub async fn tls(
        &self,
        endpoint: &Endpoint,
        certificate: &[u8],
        settings: &[(&str, &str)],
        credentials: &Credentials,
    ) -> NodeResult {
        let Ok(_permit) = self.fan_out.acquire().await else { return closed() };
        let served = match self.tls_reload(endpoint, settings, credentials).await {
            Ok(served) => served,
            Err(ValkeyError::Refused { reply, .. }) => return NodeResult::Refused(reply),
            Err(error) => return failed(&error),
        };
        if served.as_deref() == Some(certificate) {
            return NodeResult::Current { reloaded: false };
        }
        // The old connection still has the old certificate: only a new one proves the new.
        let again = self.timed("connect", connect(endpoint, credentials, &self.limits)).await;
        match again {
            Ok(connection) if connection.served_certificate() == Some(certificate) => {
                NodeResult::Current { reloaded: true }
            }
            Ok(_) => NodeResult::Stale,
            Err(error) => failed(&error),
        }
    }

    async fn prove(&self, endpoint: &Endpoint, revision: &str) -> Result<bool, ValkeyError> {
        self.timed("prove_revision", prove_revision(endpoint, revision, &self.limits)).await
    }

    async fn acl_load(&self, endpoint: &Endpoint, credentials: &Credentials) -> Result<(), ValkeyError> {
        let connection = self.timed("connect", connect(endpoint, credentials, &self.limits)).await?;
        self.timed("acl_load", connection.acl_load()).await
    }

    async fn tls_reload(
        &self,
        endpoint: &Endpoint,
        settings: &[(&str, &str)],
        credentials: &Credentials,
    ) -> Result<Option<Vec<u8>>, ValkeyError> {
        let connection = self.timed("connect", connect(endpoint, credentials, &self.limits)).await?;
        self.timed("config_set", connection.config_set(settings)).await?;
        Ok(connection.served_certificate().map(<[u8]>::to_vec))
    }

    async fn timed<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, ValkeyError>>,
    ) -> Result<T, ValkeyError> {
        let start = Instant::now();
        let outcome = call.await;
        let result = outcome.as_ref().map_or_else(ValkeyError::kind, |_| "ok");
        self.metrics.observe(operation, result, start.elapsed());
        outcome
    }
}

fn failed(error: &ValkeyError) -> NodeResult {
    NodeResult::Failed { kind: error.kind(), error: telemetry::chain(error) }
}

/// The semaphore is never closed while a pass runs; if it were, nothing was asked.
fn closed() -> NodeResult {
    NodeResult::Failed { kind: "stopping", error: "the process stops".to_owned() }
}
