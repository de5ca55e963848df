//! How the local Kubernetes is broken on purpose, and mended again however a scenario ends.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

/// Table of the cut between zones. Tables named so belong to the local Kubernetes, whose `down` removes them.
const TABLE: &str = "vkop_zone_cut";

/// Whether this is the local Kubernetes; nothing here may touch another.
///
/// # Errors
///
/// It is not.
pub fn require_local() -> Result<()> {
    let cluster = std::env::var("VALKEY_OPERATOR_CLUSTER").unwrap_or_default();
    ensure!(
        cluster == "local",
        "faults are made on the local Kubernetes only: start them by `cargo xtask faults`"
    );
    Ok(())
}

/// `cargo xtask node ACTION MACHINE`.
///
/// # Errors
///
/// It fails; the text is what it said.
pub async fn node(action: &str, machine: &str) -> Result<()> {
    require_local()?;
    let xtask = std::env::var_os("VALKEY_OPERATOR_XTASK").context("VALKEY_OPERATOR_XTASK is unset")?;
    let mut command = tokio::process::Command::new(xtask);
    let said = command.args(["node", action, machine]).output().await.context("start xtask")?;
    ensure!(
        said.status.success(),
        "xtask node {action} {machine}: {}",
        String::from_utf8_lossy(&said.stderr)
    );
    Ok(())
}

/// A machine that is broken until this is dropped or [`Broken::mend`] is called.
pub struct Broken {
    machine: Option<String>,
}

impl Broken {
    /// Breaks `machine` by `action`: `crash` or `stop-kubelet`.
    ///
    /// # Errors
    ///
    /// It cannot be broken.
    pub async fn by(action: &str, machine: &str) -> Result<Self> {
        let broken = Self { machine: Some(machine.to_owned()) };
        node(action, machine).await?;
        Ok(broken)
    }

    /// Starts what is missing.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub async fn mend(mut self) -> Result<()> {
        match self.machine.take() {
            Some(machine) => node("start", &machine).await,
            None => Ok(()),
        }
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        if let (Some(machine), Some(xtask)) = (self.machine.take(), std::env::var_os("VALKEY_OPERATOR_XTASK"))
        {
            drop(Command::new(xtask).args(["node", "start", &machine]).stdout(Stdio::null()).status());
        }
    }
}

/// The pods of one machine cut off from those of all others; clients beside the cluster still reach all of them.
pub struct Cut;

impl Cut {
    /// Cuts `machine`, such as `node-2`, off.
    ///
    /// # Errors
    ///
    /// nft refuses.
    pub fn off(machine: &str) -> Result<Self> {
        require_local()?;
        let number: u8 =
            machine.rsplit('-').next().unwrap_or_default().parse().context("number of the machine")?;
        let net = format!("10.86.{number}.0/24");
        nft(&format!(
            "table bridge {TABLE} {{ chain forward {{ type filter hook forward priority 0; \
             ether type ip ip saddr {net} ip daddr != {net} drop; \
             ether type ip ip daddr {net} ip saddr != {net} drop; }}; }}"
        ))?;
        Ok(Self)
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        if let Err(error) = nft(&format!("delete table bridge {TABLE}")) {
            test_e2e::say(&format!("the cut is not healed: {error:#}"));
        }
    }
}

fn nft(rules: &str) -> Result<()> {
    let said = Command::new("nft").arg(rules).output().context("start nft")?;
    if said.status.success() {
        return Ok(());
    }
    bail!("nft {rules}: {}", String::from_utf8_lossy(&said.stderr))
}

/// The API server stopped until this is dropped.
pub struct Away {
    pid: String,
}

impl Away {
    /// Stops the API server's process; nothing is lost, nothing is answered.
    ///
    /// # Errors
    ///
    /// It has no process here.
    pub fn now() -> Result<Self> {
        require_local()?;
        let cache = std::env::var_os("VALKEY_OPERATOR_CACHE").context("VALKEY_OPERATOR_CACHE is unset")?;
        let record = PathBuf::from(cache).join("cluster/processes/kube-apiserver");
        let text = fs::read_to_string(&record).with_context(|| format!("read {}", record.display()))?;
        let pid = text.split_whitespace().next().context("id of the API server")?.to_owned();
        let name = fs::read_to_string(format!("/proc/{pid}/cmdline")).context("process of the API server")?;
        ensure!(name.contains("apiserver"), "process {pid} is {name:?}");
        signal(&pid, "STOP")?;
        Ok(Self { pid })
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        if let Err(error) = signal(&self.pid, "CONT") {
            test_e2e::say(&format!("the API server does not go on: {error:#}"));
        }
    }
}

fn signal(pid: &str, name: &str) -> Result<()> {
    let status = Command::new("kill").args(["-s", name, pid]).status().context("kill")?;
    ensure!(status.success(), "kill -s {name} {pid}: {status}");
    Ok(())
}
