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

/// What a node of a TLS cluster is to serve and to trust.
#[derive(Debug, Clone, Copy)]
pub struct WantedTls<'a> {
    /// The certificate, DER.
    pub certificate: &'a [u8],
    /// The three settings that name the files.
    pub settings: &'a [(&'a str, &'a str)],
    /// What Valkey 9.1 reports of the authorities when it has read the wanted ones: the serial number of the one that
    /// expires first.
    pub authority: Option<&'a str>,
    /// That cannot be the answer of a node that has read others.
    pub conclusive: bool,
}

impl WantedTls<'_> {
    /// The result of a node that serves the certificate and says this of its authorities; 8.1 says nothing.
    fn trust(&self, shown: Option<&str>, reloaded: bool) -> NodeResult {
        match (shown, self.authority) {
            (Some(shown), Some(wanted)) if shown != wanted => NodeResult::Stale,
            (Some(_), Some(_)) if self.conclusive => NodeResult::Current { reloaded },
            _ => NodeResult::Told { reloaded },
        }
    }
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

    /// Points a node back at its certificate files, which makes it re-read them, and tells whether it serves and trusts what
    /// is wanted.
    ///
    /// Sent on every pass: a changed authority shows in no handshake, and the server replaces its material only when all
    /// three files are good.
    pub async fn tls(
        &self,
        endpoint: &Endpoint,
        wanted: &WantedTls<'_>,
        credentials: &Credentials,
    ) -> NodeResult {
        let Ok(_permit) = self.fan_out.acquire().await else { return closed() };
        let (served, shown) = match self.tls_reload(endpoint, wanted.settings, credentials).await {
            Ok(reloaded) => reloaded,
            Err(ValkeyError::Refused { reply, .. }) => return NodeResult::Refused(reply),
            Err(error) => return failed(&error),
        };
        if served.as_deref() == Some(wanted.certificate) {
            return wanted.trust(shown.as_deref(), false);
        }
        // The old connection still has the old certificate: only a new one proves the new.
        let again = self.timed("connect", connect(endpoint, credentials, &self.limits)).await;
        match again {
            Ok(connection) if connection.served_certificate() == Some(wanted.certificate) => {
                wanted.trust(shown.as_deref(), true)
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

    /// The certificate that it served before, and what it says now of the authorities that it has read.
    async fn tls_reload(
        &self,
        endpoint: &Endpoint,
        settings: &[(&str, &str)],
        credentials: &Credentials,
    ) -> Result<(Option<Vec<u8>>, Option<String>), ValkeyError> {
        let connection = self.timed("connect", connect(endpoint, credentials, &self.limits)).await?;
        self.timed("config_set", connection.config_set(settings)).await?;
        let info = self.timed("info", connection.info()).await?;
        let shown = info.tls.and_then(|tls| tls.ca_cert_serial);
        Ok((connection.served_certificate().map(<[u8]>::to_vec), shown))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_shows_whom_it_trusts_only_where_no_other_choice_looks_the_same() {
        let wanted =
            |authority, conclusive| WantedTls { certificate: &[], settings: &[], authority, conclusive };
        let (current, told) = (NodeResult::Current { reloaded: true }, NodeResult::Told { reloaded: true });
        for (authority, conclusive, shown, result) in [
            (Some("0A"), true, Some("0A"), &current),
            (Some("0A"), true, Some("0B"), &NodeResult::Stale),
            (Some("0A"), true, None, &told),
            (Some("0A"), false, Some("0A"), &told),
            (Some("0A"), false, Some("0B"), &NodeResult::Stale),
            (None, false, Some("0B"), &told),
        ] {
            assert_eq!(wanted(authority, conclusive).trust(shown, true), *result, "{authority:?} {shown:?}");
        }
    }
}
