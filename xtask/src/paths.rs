//! Where things are: the checkout, and the cache folder outside of it with build results and cluster state.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Folders of the checkout and of the cache.
///
/// The cache is `$VALKEY_OPERATOR_CACHE`, else `$XDG_CACHE_HOME/valkey-operator`, else
/// `~/.cache/valkey-operator`. It is shared by all checkouts on a machine, so that a fresh clone is warm.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    checkout: PathBuf,
    cache: PathBuf,
    target: PathBuf,
}

impl Paths {
    /// Finds both from the environment.
    pub(crate) fn discover() -> Result<Self> {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("the crate xtask is not inside the checkout")?
            .to_path_buf();
        let cache = cache_from(|name| env::var_os(name).map(PathBuf::from))?;
        Ok(Self { checkout, target: cache.join("target"), cache })
    }

    /// The same cache for other sources, which are built in a folder of their own: two checkouts in one would take
    /// each other's programs for theirs.
    pub(crate) fn for_sources(&self, checkout: PathBuf) -> Self {
        Self { target: checkout.join("target"), checkout, cache: self.cache.clone() }
    }

    /// Root of the checkout.
    pub(crate) fn checkout(&self) -> &Path {
        &self.checkout
    }

    /// The cache folder itself.
    pub(crate) fn cache(&self) -> &Path {
        &self.cache
    }

    /// `CARGO_TARGET_DIR` of builds that xtask starts.
    pub(crate) fn target(&self) -> PathBuf {
        self.target.clone()
    }

    /// Finished build results, each in a folder of its own.
    pub(crate) fn builds(&self) -> PathBuf {
        self.cache.join("builds")
    }

    /// Logs of builds.
    pub(crate) fn build_logs(&self) -> PathBuf {
        self.cache.join("logs")
    }

    /// State of the local Kubernetes.
    pub(crate) fn state(&self) -> PathBuf {
        self.cache.join("cluster")
    }

    /// Logs of the local Kubernetes.
    pub(crate) fn logs(&self) -> PathBuf {
        self.state().join("logs")
    }

    /// Certificates, keys and the parts' kubeconfigs.
    pub(crate) fn pki(&self) -> PathBuf {
        self.state().join("pki")
    }

    /// What stands for node `name`'s disk: images, volumes, pod logs.
    pub(crate) fn node_disk(&self, name: &str) -> PathBuf {
        self.state().join("nodes").join(name)
    }

    /// Kubeconfig of the local Kubernetes' administrator.
    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.pki().join("admin.kubeconfig")
    }

    /// Log of the operator's API requests.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.logs().join("audit.log")
    }

    /// A file of the local Kubernetes in the checkout.
    pub(crate) fn local_kubernetes(&self, file: &str) -> PathBuf {
        self.checkout.join("testing/local-kubernetes").join(file)
    }

    /// A script of the local Kubernetes.
    pub(crate) fn script(&self, name: &str) -> PathBuf {
        self.local_kubernetes("scripts").join(name)
    }
}

/// The cache folder, given how to read an environment variable. Empty variables count as unset.
fn cache_from(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.as_os_str().is_empty());
    let cache = set("VALKEY_OPERATOR_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|base| base.join("valkey-operator")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/valkey-operator")))
        .context("none of VALKEY_OPERATOR_CACHE, XDG_CACHE_HOME and HOME is set")?;
    std::path::absolute(&cache).with_context(|| format!("cache folder {}", cache.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(variables: &[(&str, &str)]) -> Result<PathBuf> {
        cache_from(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_own_variable_wins_over_xdg_and_home() {
        let all = [("VALKEY_OPERATOR_CACHE", "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c")];
        assert_eq!(cache(&all).unwrap(), Path::new("/a"));
        assert_eq!(cache(&all[1..]).unwrap(), Path::new("/b/valkey-operator"));
        assert_eq!(cache(&all[2..]).unwrap(), Path::new("/c/.cache/valkey-operator"));
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        assert_eq!(
            cache(&[("VALKEY_OPERATOR_CACHE", ""), ("HOME", "/c")]).unwrap(),
            Path::new("/c/.cache/valkey-operator")
        );
        assert!(cache(&[]).is_err());
    }
}
