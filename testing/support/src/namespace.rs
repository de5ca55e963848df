//! A namespace of one's own, gone when the test ends, however it ends.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ObjectMeta, PostParams};

use crate::Cluster;

/// A namespace that is deleted, without waiting for the end of it, when this value is dropped.
pub struct TestNamespace {
    /// Its name: the given prefix and a random suffix.
    pub name: String,
    kubeconfig: PathBuf,
}

impl TestNamespace {
    /// Makes a namespace whose name starts with `prefix` (a DNS label of at most 50 characters).
    ///
    /// # Errors
    ///
    /// The API server refuses, or cannot be reached.
    pub async fn create(cluster: &Cluster, prefix: &str) -> Result<Self> {
        Self::create_labelled(cluster, prefix, &[]).await
    }

    /// As [`TestNamespace::create`], with `labels` on the namespace.
    ///
    /// # Errors
    ///
    /// The API server refuses, or cannot be reached.
    pub async fn create_labelled(cluster: &Cluster, prefix: &str, labels: &[(&str, &str)]) -> Result<Self> {
        let name = format!("{prefix}-{}", suffix()?);
        let labels: BTreeMap<String, String> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let metadata = ObjectMeta { name: Some(name.clone()), labels: Some(labels), ..ObjectMeta::default() };
        let api: Api<Namespace> = Api::all(cluster.client.clone());
        api.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() })
            .await
            .with_context(|| format!("cannot make namespace {name}"))?;
        Ok(Self { name, kubeconfig: cluster.kubeconfig.clone() })
    }
}

impl Drop for TestNamespace {
    /// A process of its own, because a drop cannot wait for async work and the test's runtime may be ending.
    fn drop(&mut self) {
        drop(
            Command::new("kubectl")
                .arg("--kubeconfig")
                .arg(&self.kubeconfig)
                .args(["delete", "namespace", &self.name, "--wait=false", "--ignore-not-found"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status(),
        );
    }
}

/// Ten random hex digits, for names that no other run has.
///
/// # Errors
///
/// The system has no random numbers.
pub fn suffix() -> Result<String> {
    let mut bytes = [0_u8; 5];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
    Ok(hex::encode(bytes))
}
