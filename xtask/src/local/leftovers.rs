//! Everything on the machine that belongs to the local Kubernetes, found by looking at the machine itself.
//!
//! `down` removes what is found here and `status` proves with it that nothing is left. What we own is told by
//! our names (bridge, tables, cgroup, run folder) and, for processes, by an environment variable of ours or
//! our cgroup: never by a program's name.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{self, find_program};
use crate::local::machine::{self, Before};
use crate::local::process::{self, Signal};
use crate::paths::Paths;
use crate::settings::{BRIDGE, CGROUP, MARKER, NETWORK, NFT_TABLE, RUN_DIR};

/// Where containerd's shims have their sockets, whatever it is configured to.
const SHIM_SOCKETS: &str = "/run/containerd/s";
/// Where kubelets have the socket for device plugins, whatever they are configured to.
const DEVICE_SOCKETS: &str = "/var/lib/kubelet/device-plugins";

/// Environment variable of a node's processes; its value is the node's name.
pub(crate) const NODE_MARKER: &str = "VALKEY_OPERATOR_LOCAL_NODE";

/// A thing on the machine that belongs to the local Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// A process of the control plane, of a node or in a pod.
    Process(Found),
    /// A mount below our folders.
    Mount(PathBuf),
    /// Our cgroup in one hierarchy.
    Cgroup(PathBuf),
    /// The bridge, or a pod's end of a cable in it.
    Interface(String),
    /// A table of packet filter rules.
    NftTable { family: String, name: String },
    /// A kernel setting that is not what it was.
    Sysctl { name: String, before: String, now: String },
    /// A file, or a folder with all below it.
    Path(PathBuf),
    /// A folder that was not there before; only removed when empty, since others may use it by now.
    SharedFolder(PathBuf),
}

/// A process that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Process id.
    pub(crate) pid: u32,
    /// Start time in clock ticks since boot.
    pub(crate) start: u64,
    /// Name of the program.
    pub(crate) program: String,
    /// The node that it belongs to, if any.
    pub(crate) node: Option<String>,
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(found) => {
                write!(f, "process {} ({})", found.pid, found.program)?;
                found.node.as_ref().map_or(Ok(()), |node| write!(f, " of {node}"))
            }
            Self::Mount(path) => write!(f, "mount {}", path.display()),
            Self::Cgroup(path) => write!(f, "cgroup {}", path.display()),
            Self::Interface(name) => write!(f, "network interface {name}"),
            Self::NftTable { family, name } => write!(f, "nftables table {family} {name}"),
            Self::Sysctl { name, before, now } => write!(f, "kernel setting {name} is {now}, was {before}"),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::SharedFolder(path) => write!(f, "folder {}", path.display()),
        }
    }
}

/// Finds all of it, in the order in which it must be removed.
pub(crate) fn find(paths: &Paths) -> Result<Vec<Leftover>> {
    let state = paths.state();
    let mut found: Vec<_> = processes(paths)?.into_iter().map(Leftover::Process).collect();
    found.extend(mounts_below(&[Path::new(RUN_DIR), &state])?.into_iter().map(Leftover::Mount));
    found.extend(interfaces()?.into_iter().map(Leftover::Interface));
    found.extend(nft_tables()?);
    found.extend(cgroups().into_iter().map(Leftover::Cgroup));
    let before = Before::load(paths)?;
    found.extend(traces(&state, before.as_ref()).into_iter().map(Leftover::Path));
    if Path::new(RUN_DIR).exists() {
        found.push(Leftover::Path(PathBuf::from(RUN_DIR)));
    }
    if let Some(before) = before {
        let changed = before.changed_sysctls().into_iter();
        found.extend(changed.map(|(name, before, now)| Leftover::Sysctl { name, before, now }));
        found.extend(before.new_folders().into_iter().map(Leftover::SharedFolder));
    }
    Ok(found)
}

impl Leftover {
    /// Whether it is only a folder that others may be using by now.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::SharedFolder(_))
    }

    /// Removes it. That it has gone meanwhile is no error: removing one thing often removes another.
    pub(crate) fn remove(&self) -> Result<()> {
        let what = || format!("remove {self}");
        match self {
            Self::Process(found) => process::end(found.pid, found.start, Signal::Kill).with_context(what),
            Self::Mount(path) => {
                let mut umount = Command::new("umount");
                umount.arg(path);
                // A mount that is still in use is detached, and goes when its last user does.
                command::output(&mut umount)
                    .or_else(|_| command::output(Command::new("umount").arg("-l").arg(path)))
                    .map(drop)
                    .or_else(|error| if is_mounted(path)? { Err(error) } else { Ok(()) })
                    .with_context(what)
            }
            Self::Cgroup(path) => remove_cgroup(path).with_context(what),
            Self::Interface(name) => command::output(Command::new("ip").args(["link", "delete", name]))
                .map(drop)
                .or_else(|error| if interface_path(name).exists() { Err(error) } else { Ok(()) })
                .with_context(what),
            Self::NftTable { family, name } => {
                command::output(Command::new("nft").args(["delete", "table", family, name]))
                    .map(drop)
                    .with_context(what)
            }
            Self::Sysctl { name, before, .. } => machine::write_sysctl(name, before),
            Self::Path(path) if path.is_dir() && !path.is_symlink() => {
                fs::remove_dir_all(path).with_context(what)
            }
            Self::Path(path) if path.is_symlink() || path.exists() => {
                fs::remove_file(path).with_context(what)
            }
            Self::Path(_) => Ok(()),
            Self::SharedFolder(path) => {
                // Not empty: somebody else's by now.
                drop(fs::remove_dir(path));
                Ok(())
            }
        }
    }
}

/// All running processes of the local Kubernetes, those in pods included.
pub(crate) fn processes(paths: &Paths) -> Result<Vec<Found>> {
    let marker = format!("{MARKER}={}", paths.state().display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("read /proc")? {
        let name = entry.context("read /proc")?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let folder = Path::new("/proc").join(&name);
        // Processes end while we look: whatever cannot be read is gone.
        let environment = fs::read(folder.join("environ")).unwrap_or_default();
        let cgroups = fs::read_to_string(folder.join("cgroup")).unwrap_or_default();
        let by_cgroup = node_of_cgroups(&cgroups);
        if by_cgroup.is_none() && variable(&environment, &marker, "").is_none() {
            continue;
        }
        let Some(start) = process::start_time(pid) else { continue };
        let program = fs::read_to_string(folder.join("comm")).unwrap_or_default().trim().to_owned();
        let node = by_cgroup.or_else(|| variable(&environment, NODE_MARKER, "="));
        found.push(Found { pid, start, program, node });
    }
    Ok(found)
}

/// The value of a variable in the content of /proc/PID/environ; `separator` follows its name.
fn variable(environment: &[u8], name: &str, separator: &str) -> Option<String> {
    let entries = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let start = format!("{name}{separator}");
    entries
        .filter_map(|entry| entry.strip_prefix(&start).map(str::to_owned))
        // Without a separator the whole entry was given, so nothing may follow.
        .find(|rest| !separator.is_empty() || rest.is_empty())
}

/// The node whose pods' cgroup a process is in, from the content of /proc/PID/cgroup.
fn node_of_cgroups(cgroups: &str) -> Option<String> {
    let ours = format!("/{CGROUP}/");
    let path =
        cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).find_map(|p| p.strip_prefix(&ours))?;
    Some(path.split('/').next().unwrap_or(path).to_owned())
}

/// Mounts at or below these folders, innermost first.
pub(crate) fn mounts_below(folders: &[&Path]) -> Result<Vec<PathBuf>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("read the list of mounts")?;
    Ok(parse_mounts(&text, folders))
}

fn parse_mounts(mountinfo: &str, folders: &[&Path]) -> Vec<PathBuf> {
    let all = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    let mut ours: Vec<_> = all.filter(|path| folders.iter().any(|folder| path.starts_with(folder))).collect();
    // Later mounts lie upon earlier ones.
    ours.reverse();
    ours
}

/// A path as the kernel writes it: blanks and the like as a backslash with three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut path = String::new();
    let mut parts = text.split('\\');
    path.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let escape = part.split_at_checked(3).map(|(digits, rest)| (u8::from_str_radix(digits, 8), rest));
        if let Some((Ok(byte), rest)) = escape {
            path.push(char::from(byte));
            path.push_str(rest);
        } else {
            path.push('\\');
            path.push_str(part);
        }
    }
    PathBuf::from(path)
}

fn is_mounted(path: &Path) -> Result<bool> {
    Ok(mounts_below(&[path])?.iter().any(|mount| mount == path))
}

/// Our cgroup in every hierarchy that has it (one with cgroup v2, several with v1).
fn cgroups() -> Vec<PathBuf> {
    cgroup_hierarchies().into_iter().map(|root| root.join(CGROUP)).filter(|path| path.exists()).collect()
}

/// Roots of the mounted cgroup hierarchies.
pub(crate) fn cgroup_hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return vec![root];
    }
    let entries = fs::read_dir(&root).into_iter().flatten().flatten();
    let mut found: BTreeSet<PathBuf> = BTreeSet::new();
    for entry in entries {
        // `cpu` may be a link to `cpu,cpuacct`: by their real path they count once.
        if let Ok(path) = fs::canonicalize(entry.path())
            && (path.join("cgroup.procs").exists())
        {
            found.insert(path);
        }
    }
    found.into_iter().collect()
}

/// Removes a cgroup with all below it; they must be empty of processes.
pub(crate) fn remove_cgroup(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(path).with_context(|| format!("read {}", path.display()))? {
        let entry = entry.context("read a cgroup")?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path())?;
        }
    }
    // The kernel may still be at work on the last process that left.
    command::wait_for("an empty cgroup", std::time::Duration::from_secs(5), || match fs::remove_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(Some(())),
    })
}

/// The bridge, and what is plugged into it, cables first.
fn interfaces() -> Result<Vec<String>> {
    if !interface_path(BRIDGE).exists() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(interface_path(BRIDGE).join("brif")).context("read the bridge's ports")? {
        found.push(entry.context("read the bridge's ports")?.file_name().to_string_lossy().into_owned());
    }
    found.push(BRIDGE.to_owned());
    Ok(found)
}

fn interface_path(name: &str) -> PathBuf {
    Path::new("/sys/class/net").join(name)
}

fn nft_tables() -> Result<Vec<Leftover>> {
    if find_program("nft").is_none() {
        return Ok(Vec::new());
    }
    let tables =
        command::output(Command::new("nft").args(["list", "tables"])).context("list nftables tables")?;
    Ok(parse_tables(&tables))
}

/// Our tables in the output of `nft list tables`.
fn parse_tables(tables: &str) -> Vec<Leftover> {
    let prefix = format!("{NFT_TABLE}_");
    let rows = tables.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter_map(|words| match words.as_slice() {
        ["table", family, name] if *name == NFT_TABLE || name.starts_with(&prefix) => {
            Some(Leftover::NftTable { family: (*family).to_owned(), name: (*name).to_owned() })
        }
        _ => None,
    })
    .collect()
}

/// Files of ours in folders that are not: logs that kubelets link to, records of the CNI library, sockets.
fn traces(state: &Path, before: Option<&Before>) -> Vec<PathBuf> {
    let list = |folder: &str| {
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let prefix = format!("{NETWORK}-");
    let mut found: Vec<_> = list("/var/log/containers")
        .into_iter()
        .filter(|link| fs::read_link(link).is_ok_and(|target| target.starts_with(state)))
        .collect();
    found.extend(
        list("/var/lib/cni/results")
            .into_iter()
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))),
    );
    // Sockets have no name of ours. Those that nobody listens on, in a folder that was not there before, were.
    if let Some(before) = before {
        let listening = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let candidates =
            [SHIM_SOCKETS, DEVICE_SOCKETS].into_iter().filter(|folder| before.was_absent(folder));
        found
            .extend(candidates.flat_map(list).filter(|path| is_socket(path) && !is_listed(&listening, path)));
    }
    found
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Whether a socket's path is in the content of /proc/net/unix.
fn is_listed(sockets: &str, path: &Path) -> bool {
    sockets.lines().filter_map(|line| line.split_whitespace().nth(7)).any(|listed| Path::new(listed) == path)
}

#[cfg(test)]
#[path = "leftovers_tests.rs"]
mod tests;
