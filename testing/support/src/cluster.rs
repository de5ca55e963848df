//! The cluster under test: `$KUBECONFIG` and nothing else, so that no test reaches a cluster by accident.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::Kubectl;

/// A cluster that tests may change.
#[derive(Clone)]
pub struct Cluster {
    /// A client with the rights of the kubeconfig.
    pub client: Client,
    /// The kubeconfig's file.
    pub kubeconfig: PathBuf,
}

impl Cluster {
    /// Connects to the cluster that `$KUBECONFIG` names.
    ///
    /// # Errors
    ///
    /// The variable is unset or names no readable kubeconfig: then the text says which command provides one.
    pub async fn connect() -> Result<Self> {
        let kubeconfig = kubeconfig()?;
        // Several crates in the tree can provide cryptography; all must agree on one. An error means: already done.
        drop(rustls::crypto::ring::default_provider().install_default());
        let read = Kubeconfig::read_from(&kubeconfig)
            .with_context(|| format!("KUBECONFIG={} is no kubeconfig", kubeconfig.display()))?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        Ok(Self { client: Client::try_from(config)?, kubeconfig })
    }

    /// kubectl with this kubeconfig.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubeconfig)
    }
}

/// The file that `$KUBECONFIG` names.
fn kubeconfig() -> Result<PathBuf> {
    let Some(value) = std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) else {
        bail!(
            "these tests need a Kubernetes cluster: run them with `cargo xtask test api` (or e2e), or set KUBECONFIG"
        );
    };
    let path = PathBuf::from(value);
    if !path.is_file() {
        bail!("KUBECONFIG={} does not exist: `cargo xtask up` makes a local cluster", path.display());
    }
    Ok(path)
}
