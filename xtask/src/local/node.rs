//! One node: a kubelet and a containerd of its own, with a disk, an address and a zone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::command;
use crate::local::leftovers::{self, Leftover, NODE_MARKER};
use crate::local::options::{Grace, Options, Propagation};
use crate::local::packages::{Installed, Unpacked};
use crate::local::process::{Process, Signal};
use crate::local::{self, Programs, control_plane, images, kubectl};
use crate::paths::Paths;
use crate::settings::{
    BRIDGE, CGROUP, DOMAIN, GATEWAY, NETWORK, NODE_NET, PAUSE_IMAGE, POD_CIDR, POD_NET, RUN_DIR, zone,
};
use crate::ui::Part;

/// What can be done to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Action {
    /// Like a power cut: kubelet, containerd and all pods are killed at once; the disk stays
    Crash,
    /// End only the kubelet: the node falls silent, its pods run on
    StopKubelet,
    /// Start what is missing
    Start,
}

/// A node of the local Kubernetes, up or not.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    number: u8,
    name: String,
    disk: PathBuf,
    run: PathBuf,
    containerd: Process,
    kubelet: Process,
    logs: PathBuf,
}

impl Node {
    /// Node number `number`, from 1.
    pub(crate) fn new(paths: &Paths, number: u8) -> Self {
        let name = format!("node-{number}");
        Self {
            number,
            disk: paths.node_disk(&name),
            run: Path::new(RUN_DIR).join(&name),
            containerd: Process::new(paths, format!("containerd-{name}")),
            kubelet: Process::new(paths, format!("kubelet-{name}")),
            logs: paths.logs(),
            name,
        }
    }

    /// Its name, such as `node-1`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its kubelet.
    pub(crate) fn kubelet(&self) -> &Process {
        &self.kubelet
    }

    /// Its container runtime.
    pub(crate) fn containerd(&self) -> &Process {
        &self.containerd
    }

    /// Log of image imports.
    pub(crate) fn import_log(&self) -> PathBuf {
        self.logs.join(format!("images-{}.log", self.name))
    }

    fn socket(&self) -> PathBuf {
        self.run.join("containerd.sock")
    }

    /// A `ctr` that speaks to this node's containerd, in the namespace of Kubernetes.
    pub(crate) fn ctr(&self, tools: &Unpacked) -> Command {
        let mut ctr = Command::new(tools.containerd.join("ctr"));
        ctr.arg("--address").arg(self.socket()).args(["--namespace", "k8s.io"]);
        ctr
    }

    /// Starts containerd and waits until it answers.
    pub(crate) fn start_containerd(&self, paths: &Paths, programs: &Programs) -> Result<bool> {
        for folder in [self.disk.join("cni"), self.run.clone()] {
            fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let network = self.disk.join("cni/10-bridge.conflist");
        let config = self.disk.join("containerd.toml");
        self.render(paths, "cni.conflist", &network, &self.values(&programs.installed))?;
        self.render(paths, "containerd.toml", &config, &self.values(&programs.installed))?;
        let folder = &programs.unpacked.containerd;
        let mut containerd = Command::new(folder.join("containerd"));
        containerd.args(["--log-level", "warn", "--config"]).arg(&config).env(NODE_MARKER, &self.name);
        // It looks for its shim in the PATH.
        let mut path = folder.clone().into_os_string();
        path.push(":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        containerd.env("PATH", path);
        let changed = control_plane::start(paths, &self.containerd, &containerd, &[&config, &network])?;
        command::wait_for(&format!("containerd of {}", self.name), Duration::from_mins(1), || {
            self.containerd.check()?;
            command::output(self.ctr(&programs.unpacked).arg("version")).map(Some)
        })
        .with_context(|| format!("see {}", self.containerd.log().display()))?;
        Ok(changed)
    }

    /// Starts the kubelet; the node is ready later.
    pub(crate) fn start_kubelet(&self, paths: &Paths, programs: &Programs, options: Options) -> Result<bool> {
        prepare_cgroups(&self.name)?;
        let resolver = self.disk.join("resolv.conf");
        fs::write(&resolver, "").with_context(|| format!("write {}", resolver.display()))?;
        let config = self.disk.join("kubelet.yaml");
        let (status_frequency, lease) = match options.grace {
            Grace::Default => (10, 40),
            // A node must be heard of several times within the grace period.
            Grace::Seconds(seconds) => ((seconds / 4).max(1), seconds),
        };
        let mut values = self.values(&programs.installed);
        values.extend([
            ("SYNC", if options.propagation == Propagation::Fast { "1s" } else { "1m" }.to_owned()),
            ("STATUS_FREQUENCY", format!("{status_frequency}s")),
            ("LEASE", lease.to_string()),
            ("PKI", paths.pki().display().to_string()),
        ]);
        self.render(paths, "kubelet.yaml", &config, &values)?;
        let mut kubelet = Command::new(programs.kubernetes.join("kubelet"));
        kubelet
            .arg(format!("--config={}", config.display()))
            .arg(format!("--kubeconfig={}", paths.pki().join(format!("{}.kubeconfig", self.name)).display()))
            .arg(format!("--root-dir={}", self.disk.join("kubelet").display()))
            .arg(format!("--cert-dir={}", self.disk.join("kubelet/pki").display()))
            .arg(format!("--hostname-override={}", self.name))
            .arg(format!("--node-ip={NODE_NET}.{}", self.number))
            .arg(format!("--node-labels=topology.kubernetes.io/zone={}", zone(self.number)))
            .env(NODE_MARKER, &self.name);
        control_plane::start(paths, &self.kubelet, &kubelet, &[&config])
    }

    /// Ends the node in order: kubelet, containers, containerd. What may still be left is swept by `down`.
    pub(crate) fn stop(&self, tools: Option<&Unpacked>) -> Result<()> {
        self.kubelet.stop(Signal::Term)?;
        if let (Some(tools), true) = (tools, self.containerd.running().is_some()) {
            // Best effort: whatever goes wrong here, the sweep ends the processes, and the next start of
            // containerd forgets their containers.
            for kind in ["tasks", "containers"] {
                let Ok(list) = command::output(self.ctr(tools).args([kind, "ls", "-q"])) else { continue };
                let names: Vec<_> = list.lines().collect();
                if names.is_empty() {
                    continue;
                }
                let force: &[&str] = if kind == "tasks" { &["rm", "--force"] } else { &["rm"] };
                drop(command::output(self.ctr(tools).arg(kind).args(force).args(&names)));
            }
        }
        self.containerd.stop(Signal::Term)
    }

    /// Kills all of the node at once, and takes away what a power cut would: mounts, cgroups, sockets.
    fn crash(&self, paths: &Paths) -> Result<()> {
        let own = || -> Result<Vec<_>> {
            let all = leftovers::processes(paths)?.into_iter();
            Ok(all.filter(|found| found.node.as_deref() == Some(&self.name)).collect())
        };
        // The kubelet first, so that it cannot report the death of its pods.
        self.kubelet.stop(Signal::Kill)?;
        self.containerd.stop(Signal::Kill)?;
        for found in own()? {
            Leftover::Process(found).remove()?;
        }
        self.sweep()
    }

    /// Removes the mounts, cgroups and sockets of a node whose processes have ended.
    pub(crate) fn sweep(&self) -> Result<()> {
        for mount in leftovers::mounts_below(&[&self.run, &self.disk])? {
            Leftover::Mount(mount).remove()?;
        }
        for root in leftovers::cgroup_hierarchies() {
            leftovers::remove_cgroup(&root.join(CGROUP).join(&self.name))?;
        }
        Leftover::Path(self.run.clone()).remove()
    }

    /// Whether any of its processes runs.
    pub(crate) fn is_running(&self) -> bool {
        self.kubelet.running().is_some() || self.containerd.running().is_some()
    }

    fn values(&self, installed: &Installed) -> Vec<(&'static str, String)> {
        vec![
            ("NODE", self.name.clone()),
            ("ADDRESS", format!("{NODE_NET}.{}", self.number)),
            ("DISK", self.disk.display().to_string()),
            ("RUN", self.run.display().to_string()),
            ("SOCKET", self.socket().display().to_string()),
            ("PAUSE", PAUSE_IMAGE.to_owned()),
            ("CNI_BIN", installed.cni.display().to_string()),
            ("RUNC", installed.runc.display().to_string()),
            ("NETWORK", NETWORK.to_owned()),
            ("BRIDGE", BRIDGE.to_owned()),
            ("POD_CIDR", POD_CIDR.to_owned()),
            ("FIRST_IP", format!("{POD_NET}.{}.2", self.number)),
            ("LAST_IP", format!("{POD_NET}.{}.250", self.number)),
            ("GATEWAY", GATEWAY.to_string()),
            ("DOMAIN", DOMAIN.to_owned()),
            ("CGROUP", CGROUP.to_owned()),
        ]
    }

    fn render(&self, paths: &Paths, template: &str, to: &Path, values: &[(&str, String)]) -> Result<()> {
        let from = paths.local_kubernetes("templates").join(template);
        let text = fs::read_to_string(&from).with_context(|| format!("read {}", from.display()))?;
        let text = fill(&text, values).with_context(|| format!("template {template} for {}", self.name))?;
        fs::write(to, text).with_context(|| format!("write {}", to.display()))
    }
}

/// Replaces every `@NAME@`; fails when one has no value.
fn fill(template: &str, values: &[(&str, String)]) -> Result<String> {
    let mut text = template.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("@{name}@"), value);
    }
    if let Some(left) = text.split('@').nth(1) {
        bail!("no value for @{}@", left.lines().next().unwrap_or_default());
    }
    Ok(text)
}

/// Makes the parent cgroup of a node's pods in every hierarchy: kubelets expect theirs to be there.
fn prepare_cgroups(node: &str) -> Result<()> {
    for root in leftovers::cgroup_hierarchies() {
        let mut parent = root;
        for name in [CGROUP, node] {
            let group = parent.join(name);
            if !group.exists() {
                fs::create_dir(&group).with_context(|| format!("create {}", group.display()))?;
            }
            // cgroup v1: a new cpuset is empty and would take no process.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if parent.join("cpuset.sched_load_balance").exists()
                    && fs::read_to_string(group.join(file)).is_ok_and(|value| value.trim().is_empty())
                {
                    fs::read(parent.join(file))
                        .and_then(|value| fs::write(group.join(file), value))
                        .with_context(|| format!("set {file} of {}", group.display()))?;
                }
            }
            // cgroup v2: children get only the controllers that their parent passes on.
            let available = fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
            for controller in available.split_whitespace() {
                let pass = parent.join("cgroup.subtree_control");
                fs::write(&pass, format!("+{controller}"))
                    .with_context(|| format!("pass on {controller}"))?;
            }
            parent = group;
        }
    }
    Ok(())
}

/// Carries out `cargo xtask node ACTION NODE`.
pub(crate) fn act(paths: &Paths, action: Action, name: &str) -> Result<()> {
    let _lock = local::begin(paths)?;
    let options =
        Options::saved(paths)?.context("there is no local Kubernetes: run `cargo xtask up` first")?;
    let node = (1..=options.nodes)
        .map(|number| Node::new(paths, number))
        .find(|node| node.name() == name)
        .with_context(|| format!("there is no {name}: the nodes are node-1 to node-{}", options.nodes))?;
    let part = Part::start(name);
    match action {
        Action::Crash => {
            node.crash(paths)?;
            part.done("crashed: `cargo xtask node start` brings it back");
        }
        Action::StopKubelet => {
            node.kubelet.stop(Signal::Kill)?;
            part.done("kubelet ended, pods run on");
        }
        Action::Start => {
            let programs = Programs::ensure(paths)?;
            start(paths, &node, &programs, options)?;
            part.done("started");
        }
    }
    Ok(())
}

/// Starts all of a node that is not running and waits until Kubernetes calls it ready.
fn start(paths: &Paths, node: &Node, programs: &Programs, options: Options) -> Result<()> {
    node.start_containerd(paths, programs)?;
    images::import(node, &programs.unpacked, &programs.images, &node.import_log())?;
    // Kubernetes may still call it ready from before its crash: only a renewed lease is a sign of life.
    let lease = || {
        let mut get = kubectl(paths, &programs.unpacked);
        get.args(["get", "lease", node.name(), "-n", "kube-node-lease", "--ignore-not-found"]);
        command::output(get.args(["-o", "jsonpath={.spec.renewTime}"]))
    };
    let before = lease()?;
    if node.start_kubelet(paths, programs, options)? {
        command::wait_for(&format!("a sign of life of {}", node.name()), Duration::from_mins(1), || {
            node.kubelet.check()?;
            Ok((lease()? != before).then_some(()))
        })?;
    }
    wait_ready(paths, &programs.unpacked, node)
}

/// Waits until Kubernetes calls the node ready.
pub(crate) fn wait_ready(paths: &Paths, tools: &Unpacked, node: &Node) -> Result<()> {
    let condition = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    command::wait_for(&format!("{} to be ready", node.name()), Duration::from_mins(2), || {
        node.kubelet.check()?;
        let status =
            command::output(kubectl(paths, tools).args(["get", "node", node.name(), "-o", condition]))?;
        if status == "True" { Ok(Some(())) } else { bail!("its condition Ready is {status:?}") }
    })
    .with_context(|| format!("see {}", node.kubelet.log().display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_completely_or_refused() {
        let values = [("A", "1".to_owned())];
        assert_eq!(fill("x: @A@, y: @A@", &values).unwrap(), "x: 1, y: 1");
        assert!(fill("x: @A@ @B@", &values).unwrap_err().to_string().contains("@B@"));
    }

    #[test]
    fn sockets_fit_into_the_limit_of_a_unix_socket_path() {
        // containerd's sandbox sockets and ttrpc are the longest below the run folder.
        let longest = format!("{RUN_DIR}/node-16/containerd.sock.ttrpc");
        assert!(longest.len() <= 107, "{longest}");
    }
}
