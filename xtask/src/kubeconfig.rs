//! Which cluster a command works on, and kubeconfigs that act as a `ServiceAccount`.

use std::env;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::json;

use crate::command;
use crate::local::{self, kubectl};
use crate::paths::Paths;
use crate::settings;
use crate::ui;

/// The cluster that a command works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cluster {
    /// The one that `cargo xtask up` makes
    Local,
    /// The one that $KUBECONFIG points to
    External,
}

impl Cluster {
    /// The word for it on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::External => "external",
        }
    }
}

/// The kubeconfig of the chosen cluster.
///
/// Never an external one by default: $KUBECONFIG may well point to production.
pub(crate) fn for_cluster(paths: &Paths, cluster: Cluster) -> Result<PathBuf> {
    match cluster {
        Cluster::Local => {
            let file = paths.admin_kubeconfig();
            if !file.exists() {
                bail!("there is no local Kubernetes: run `cargo xtask up` first");
            }
            Ok(file)
        }
        Cluster::External => {
            let value = env::var_os("KUBECONFIG").filter(|value| !value.is_empty());
            let file =
                PathBuf::from(value.context("--cluster external needs KUBECONFIG in the environment")?);
            if !file.exists() {
                bail!("KUBECONFIG names {}, which does not exist", file.display());
            }
            Ok(file)
        }
    }
}

/// Writes a kubeconfig with a token of a `ServiceAccount` of the local Kubernetes.
pub(crate) fn write_for_service_account(
    paths: &Paths,
    namespace: &str,
    account: &str,
    duration: &str,
    out: &Path,
) -> Result<()> {
    let tools = local::packages::ensure_unpacked(paths)?;
    let token = command::output(kubectl(paths, &tools).args([
        "create",
        "token",
        account,
        "--namespace",
        namespace,
        "--duration",
        duration,
    ]))
    .with_context(|| format!("token for ServiceAccount {namespace}/{account}"))?;
    let authority =
        command::output(std::process::Command::new("base64").arg("-w0").arg(paths.pki().join("ca.crt")))?;
    let content = service_account_kubeconfig(&authority, namespace, account, &token);
    let mut file = fs::File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(out)
        .with_context(|| format!("write {}", out.display()))?;
    file.write_all(content.as_bytes()).with_context(|| format!("write {}", out.display()))?;
    ui::line(&format!("wrote {} (acts as {namespace}/{account} for {duration})", out.display()));
    Ok(())
}

/// A kubeconfig in JSON, which is YAML too.
fn service_account_kubeconfig(authority: &str, namespace: &str, account: &str, token: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": {
            "server": format!("https://127.0.0.1:{}", settings::API_PORT),
            "certificate-authority-data": authority,
        }}],
        "users": [{"name": account, "user": {"token": token}}],
        "contexts": [{"name": "local", "context": {
            "cluster": "local", "user": account, "namespace": namespace,
        }}],
        "current-context": "local",
    });
    format!("{config:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubeconfig_names_account_namespace_and_server() {
        let text = service_account_kubeconfig("Q0E=", "my-app", "bob", "secret-token");
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed["contexts"][0]["context"]["namespace"], "my-app");
        assert_eq!(parsed["users"][0]["user"]["token"], "secret-token");
        assert_eq!(parsed["clusters"][0]["cluster"]["server"], "https://127.0.0.1:16443");
    }
}
