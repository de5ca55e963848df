//! What the local Kubernetes changes on the machine itself, remembered before and restored after.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::paths::Paths;

/// Kernel settings that kubelets, the CNI plugin or we change, in the order in which they must be restored
/// (setting `ip_forward` resets what follows it).
const SYSCTLS: [&str; 11] = [
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/accept_redirects",
    "net/ipv4/conf/default/accept_redirects",
    "net/ipv4/conf/default/forwarding",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    INOTIFY_INSTANCES,
];
const INOTIFY_INSTANCES: &str = "fs/inotify/max_user_instances";
/// Three kubelets and containerds need more than the 128 of a plain machine.
const NEEDED_INOTIFY_INSTANCES: u64 = 1024;

/// Folders outside of our own ones that kubelet, containerd or the CNI library make for themselves, deepest
/// first. Those that did not exist before are removed again, if they are empty by then.
const FOLDERS: [&str; 11] = [
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet",
    "/var/lib/cni/results",
    "/var/lib/cni/cache",
    "/var/lib/cni",
    "/var/log/containers",
    "/var/log/pods",
    "/run/containerd/s",
    "/run/containerd",
    "/opt/containerd",
    "/usr/libexec/kubernetes",
];

/// The machine before the local Kubernetes came up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Before {
    /// Kernel settings by their path below /proc/sys.
    sysctls: BTreeMap<String, String>,
    /// Folders that did not exist, deepest first.
    absent: Vec<PathBuf>,
}

impl Before {
    /// Reads what was remembered; `None` if the machine has not been touched.
    pub(crate) fn load(paths: &Paths) -> Result<Option<Self>> {
        let file = file(paths);
        if !file.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let value: Value =
            serde_json::from_str(&text).with_context(|| format!("parse {}", file.display()))?;
        Ok(Some(Self::from_json(&value)))
    }

    fn from_json(value: &Value) -> Self {
        let sysctls = value.get("sysctls").and_then(Value::as_object).into_iter().flatten();
        let absent = value.get("absent").and_then(Value::as_array).into_iter().flatten();
        Self {
            sysctls: sysctls
                .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
                .collect(),
            absent: absent.filter_map(|path| Some(PathBuf::from(path.as_str()?))).collect(),
        }
    }

    fn to_json(&self) -> Value {
        json!({ "sysctls": self.sysctls, "absent": self.absent })
    }

    /// Kernel settings that differ from before: name, value before, value now; in the order to restore them.
    pub(crate) fn changed_sysctls(&self) -> Vec<(String, String, String)> {
        let in_order =
            SYSCTLS.iter().filter_map(|name| Some(((*name).to_owned(), self.sysctls.get(*name)?.clone())));
        in_order
            .filter_map(|(name, before)| {
                let now = read_sysctl(&name)?;
                (now != before).then_some((name, before, now))
            })
            .collect()
    }

    /// Whether this folder, one of those that are looked after here, did not exist before.
    pub(crate) fn was_absent(&self, folder: &str) -> bool {
        self.absent.iter().any(|absent| absent == Path::new(folder))
    }

    /// Folders that exist now and did not before, deepest first.
    pub(crate) fn new_folders(&self) -> Vec<PathBuf> {
        self.absent.iter().filter(|path| path.exists()).cloned().collect()
    }
}

/// Remembers how the machine is, unless that is remembered already; to be called before it is changed.
pub(crate) fn remember(paths: &Paths) -> Result<()> {
    let file = file(paths);
    if file.exists() {
        return Ok(());
    }
    let before = Before {
        sysctls: SYSCTLS.iter().filter_map(|name| Some(((*name).to_owned(), read_sysctl(name)?))).collect(),
        absent: FOLDERS.iter().map(PathBuf::from).filter(|path| !path.exists()).collect(),
    };
    let new = file.with_extension("new");
    fs::write(&new, format!("{:#}\n", before.to_json())).context("remember the machine's settings")?;
    fs::rename(&new, &file).context("remember the machine's settings")
}

/// Forgets what was remembered; to be called when all of it is restored.
pub(crate) fn forget(paths: &Paths) -> Result<()> {
    let file = file(paths);
    if file.exists() { fs::remove_file(&file).context("forget the machine's settings") } else { Ok(()) }
}

/// Makes the settings that must be there before the first process starts. Kubelets set more by themselves.
pub(crate) fn prepare() -> Result<()> {
    let have = read_sysctl(INOTIFY_INSTANCES).and_then(|value| value.parse::<u64>().ok());
    if have.is_some_and(|have| have < NEEDED_INOTIFY_INSTANCES) {
        write_sysctl(INOTIFY_INSTANCES, &NEEDED_INOTIFY_INSTANCES.to_string())?;
    }
    Ok(())
}

/// Sets a kernel setting.
pub(crate) fn write_sysctl(name: &str, value: &str) -> Result<()> {
    fs::write(Path::new("/proc/sys").join(name), value).with_context(|| format!("set {name} to {value}"))
}

fn read_sysctl(name: &str) -> Option<String> {
    Some(fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?.trim().to_owned())
}

fn file(paths: &Paths) -> PathBuf {
    paths.state().join("machine-before.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_survives_being_saved() {
        let before = Before {
            sysctls: BTreeMap::from([("kernel/panic".to_owned(), "1".to_owned())]),
            absent: vec![PathBuf::from("/var/lib/cni")],
        };
        assert_eq!(Before::from_json(&before.to_json()), before);
    }

    #[test]
    fn only_changed_settings_are_reported_with_their_old_value() {
        let sysctls = BTreeMap::from([
            ("kernel/panic".to_owned(), "impossible".to_owned()),
            ("vm/overcommit_memory".to_owned(), read_sysctl("vm/overcommit_memory").unwrap()),
        ]);
        let before = Before { sysctls, absent: Vec::new() };
        let changed = before.changed_sysctls();
        assert_eq!(changed.len(), 1);
        assert_eq!((changed[0].0.as_str(), changed[0].1.as_str()), ("kernel/panic", "impossible"));
    }

    #[test]
    fn folders_are_removed_from_the_inside_out() {
        for (i, folder) in FOLDERS.iter().enumerate() {
            let later = &FOLDERS[i + 1..];
            assert!(!later.iter().any(|other| Path::new(other).starts_with(folder)), "{folder}");
        }
    }
}
