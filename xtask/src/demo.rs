//! `cargo xtask demo`: the command line is final, the demonstration itself is not written yet.

use anyhow::{Result, bail};

use crate::kubeconfig::{self, Cluster};
use crate::paths::Paths;

/// Fails, after checking that the cluster to show it on can be told.
pub(crate) fn run(paths: &Paths, cluster: Cluster) -> Result<()> {
    let kubeconfig = kubeconfig::for_cluster(paths, cluster)?;
    bail!("the demo is not built yet (it would run on the cluster of {})", kubeconfig.display())
}
