//! The machine's processes that belong to one Pod of the local Kubernetes, found through the Pod's cgroups.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Where the local Kubernetes has its nodes' cgroups: version 1 (any controller has them), then version 2.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup/memory/vkop", "/sys/fs/cgroup/vkop"];

/// Clock ticks in a second of /proc/PID/stat; the same on every Linux of our architectures.
const TICKS: f64 = 100.0;

/// A process of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id on the machine.
    pub pid: u32,
    /// The program's file name.
    pub program: String,
}

impl Process {
    /// Memory that is resident and its own, in bytes: `RssAnon` of /proc/PID/status, without the mapped files that
    /// containers of one image share.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn anonymous_memory(&self) -> Result<u64> {
        self.status_kib("RssAnon:")
    }

    /// All resident memory in bytes: `VmRSS` of /proc/PID/status.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn resident_memory(&self) -> Result<u64> {
        self.status_kib("VmRSS:")
    }

    /// Processor time since its start, in seconds: user and system time of /proc/PID/stat.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn processor_seconds(&self) -> Result<f64> {
        let path = format!("/proc/{}/stat", self.pid);
        let stat = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        // The second field is the name in brackets; the times are the fields 14 and 15.
        let rest = stat.rsplit_once(')').context("no name")?.1;
        let ticks = rest.split_whitespace().skip(11).take(2).map(str::parse::<u32>);
        Ok(f64::from(ticks.sum::<Result<u32, _>>().context("no number")?) / TICKS)
    }

    fn status_kib(&self, field: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.pid);
        let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let line =
            status.lines().find(|line| line.starts_with(field)).with_context(|| format!("no {field}"))?;
        let kib: u64 = line.split_whitespace().nth(1).context("no number")?.parse().context("a number")?;
        Ok(kib * 1024)
    }

    /// Sends it a signal, by name: `KILL`, `STOP`, `CONT`.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn signal(&self, signal: &str) -> Result<()> {
        let status =
            Command::new("kill").args(["-s", signal, &self.pid.to_string()]).status().context("kill")?;
        ensure!(status.success(), "kill -s {signal} {}: {status}", self.pid);
        Ok(())
    }
}

/// The processes of the Pod with this UID, but not the one that only holds its network namespace.
///
/// # Errors
///
/// This is not the local Kubernetes.
pub fn of_pod(uid: &str) -> Result<Vec<Process>> {
    let root = ROOTS.iter().map(Path::new).find(|root| root.is_dir()).context(
        "no cgroups of the local Kubernetes: this test needs it; on another one leave it out with `--skip local_`",
    )?;
    let mut folders = Vec::new();
    find(root, &format!("pod{uid}"), 4, &mut folders);
    let mut processes = Vec::new();
    for folder in folders {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let listed = fs::read_to_string(entry.path().join("cgroup.procs")).unwrap_or_default();
            processes.extend(listed.lines().filter_map(|line| process(line.parse().ok()?)));
        }
    }
    Ok(processes)
}

fn process(pid: u32) -> Option<Process> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let program = program.file_name()?.to_string_lossy().into_owned();
    (program != "pause").then_some(Process { pid, program })
}

/// Folders named `wanted` at most `depth` levels below `folder`.
fn find(folder: &Path, wanted: &str, depth: usize, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name() == wanted {
            found.push(path);
        } else if depth > 0 && path.is_dir() {
            find(&path, wanted, depth - 1, found);
        }
    }
}
