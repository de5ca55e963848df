//! The local Kubernetes: a real control plane and real nodes on this one machine.
//!
//! This file owns the order of things in `up` and `down`; each part is in a file of its own.

pub(crate) mod control_plane;
pub(crate) mod images;
pub(crate) mod kubernetes;
pub(crate) mod leftovers;
pub(crate) mod machine;
pub(crate) mod node;
pub(crate) mod options;
pub(crate) mod packages;
pub(crate) mod process;
pub(crate) mod status;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::command;
use crate::local::images::Image;
use crate::local::node::Node;
use crate::local::options::{Options, UpOptions};
use crate::local::packages::{Installed, Unpacked};
use crate::local::process::{Process, Signal};
use crate::paths::Paths;
use crate::settings::{self, KUBERNETES_VERSION, RUN_DIR};
use crate::ui::{self, Part};

/// How often `down` looks again for things that were still in use.
const SWEEPS: usize = 20;

/// Everything that is installed or built before anything starts.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// From the machine's own packages.
    pub(crate) installed: Installed,
    /// From newer packages.
    pub(crate) unpacked: Unpacked,
    /// Folder of the Kubernetes programs.
    pub(crate) kubernetes: PathBuf,
    /// Images that every node gets.
    pub(crate) images: Vec<Image>,
}

/// What one of the parallel preparations gives.
enum Prepared {
    Installed(Installed),
    Unpacked(Unpacked),
    Kubernetes(PathBuf),
    Images(Vec<Image>),
}

impl Programs {
    /// Installs and builds what is missing, side by side. The first failure is returned at once; what is
    /// still being built then ends with this process.
    pub(crate) fn ensure(paths: &Paths) -> Result<Self> {
        let (sender, results) = mpsc::channel();
        let spawn = |work: fn(&Paths) -> Result<Prepared>| {
            let (paths, sender) = (paths.clone(), sender.clone());
            thread::spawn(move || drop(sender.send(work(&paths))));
        };
        // The longest first.
        spawn(|paths| {
            reported(
                "kubernetes",
                |part| kubernetes::ensure_built(paths, part),
                |_| format!("{KUBERNETES_VERSION} and cluster DNS, from Go modules"),
            )
            .map(Prepared::Kubernetes)
        });
        spawn(|paths| {
            reported("packages", |_| packages::ensure_unpacked(paths), Unpacked::summary)
                .map(Prepared::Unpacked)
        });
        let installed = reported(
            "commands",
            |_| packages::ensure_installed(paths),
            |_| "runc, CNI plugins, nft, ip, openssl".to_owned(),
        )?;
        drop(sender.send(Ok(Prepared::Installed(installed))));
        // After the commands: mmdebstrap is one of them.
        spawn(|paths| {
            let pause = images::ensure_pause(paths, &Part::start("pause image"))?;
            let mut all = vec![pause];
            for (minor, suite) in settings::VALKEY {
                let build = |part: &Part| images::ensure_valkey(paths, part, minor, suite);
                let valkey = reported(&format!("valkey {minor} image"), build, |valkey| {
                    valkey.image.refs.join(" = ")
                })?;
                all.push(valkey.image);
            }
            Ok(Prepared::Images(all))
        });
        drop(sender);
        let (mut installed, mut unpacked, mut kubernetes, mut images) = (None, None, None, None);
        for result in results {
            match result? {
                Prepared::Installed(value) => installed = Some(value),
                Prepared::Unpacked(value) => unpacked = Some(value),
                Prepared::Kubernetes(value) => kubernetes = Some(value),
                Prepared::Images(value) => images = Some(value),
            }
        }
        Ok(Self {
            installed: installed.context("the commands were not installed")?,
            unpacked: unpacked.context("the packages were not unpacked")?,
            kubernetes: kubernetes.context("Kubernetes was not built")?,
            images: images.context("the images were not built")?,
        })
    }
}

/// Does a part of the work and prints its line.
fn reported<T>(
    name: &str,
    work: impl FnOnce(&Part) -> Result<T>,
    detail: impl FnOnce(&T) -> String,
) -> Result<T> {
    let part = Part::start(name);
    let result = work(&part)?;
    part.done(&detail(&result));
    Ok(result)
}

/// Brings the local Kubernetes up, or to what the options say.
pub(crate) fn up(paths: &Paths, asked: &UpOptions) -> Result<()> {
    let _lock = begin(paths)?;
    let begin = Instant::now();
    let running = Options::saved(paths)?;
    let options = running.unwrap_or_default().with(asked);
    ui::line(&format!("Local Kubernetes {KUBERNETES_VERSION}, {} nodes", options.nodes));
    let programs = Programs::ensure(paths)?;
    let ready = Instant::now();
    if running.is_none() && paths.logs().exists() {
        // Of the cluster before: kept until now, for people who looked after `down`.
        fs::remove_dir_all(paths.logs()).context("delete the logs of the cluster before")?;
    }
    machine::remember(paths)?;
    claim(paths)?;
    options.save(paths)?;
    let changed = start_all(paths, &programs, options, running.map_or(0, |running| running.nodes))?;
    let total = ui::duration(begin.elapsed());
    ui::line(&if changed {
        format!("\nup in {total} (of these {} to start)", ui::duration(ready.elapsed()))
    } else {
        format!("\nup already, nothing changed ({total})")
    });
    ui::line(&format!("\n  export KUBECONFIG={}", paths.admin_kubeconfig().display()));
    if command::find_program("kubectl").is_none() {
        ui::line(&format!("  alias kubectl={}", programs.unpacked.kubectl.display()));
    }
    Ok(())
}

/// Starts everything that does not run; returns whether anything was started or changed.
fn start_all(paths: &Paths, programs: &Programs, options: Options, nodes_before: u8) -> Result<bool> {
    machine::prepare()?;
    let nodes: Vec<_> = (1..=options.nodes).map(|number| Node::new(paths, number)).collect();
    reported(
        "network",
        |_| {
            control_plane::ensure_pki(paths, options.nodes)?;
            let mut script = Command::new(paths.script("network.sh"));
            script.arg(options.nodes.to_string()).envs(settings::script_environment());
            command::run_logged(&mut script, &paths.logs().join("network.log")).context("make the network")
        },
        |()| "certificates, bridge, packet filter".to_owned(),
    )?;
    // containerd imports images while the control plane starts.
    let mut changed = thread::scope(|scope| -> Result<bool> {
        let runtimes: Vec<_> =
            nodes.iter().map(|node| scope.spawn(|| start_runtime(paths, programs, node))).collect();
        let mut changed = reported(
            "control plane",
            |_| {
                let api = control_plane::start_api(paths, programs, options)?;
                Ok(control_plane::start_controllers(paths, programs, options)? || api)
            },
            |changed| word(*changed).to_owned(),
        )?;
        for runtime in runtimes {
            changed |= runtime.join().map_err(|_| anyhow::anyhow!("starting a containerd panicked"))??;
        }
        Ok(changed)
    })?;
    let part = Part::start("kubelets");
    for node in &nodes {
        changed |= node.start_kubelet(paths, programs, options)?;
    }
    for node in &nodes {
        node::wait_ready(paths, &programs.unpacked, node)?;
    }
    part.done(&format!("{} nodes ready", nodes.len()));
    for number in options.nodes + 1..=nodes_before {
        changed |= remove_node(paths, programs, &Node::new(paths, number))?;
    }
    command::wait_for("the ServiceAccount default/default", Duration::from_mins(1), || {
        command::output(kubectl(paths, &programs.unpacked).args([
            "get",
            "serviceaccount",
            "default",
            "-n",
            "default",
        ]))
        .map(Some)
    })?;
    Ok(changed)
}

fn word(changed: bool) -> &'static str {
    if changed { "started" } else { "runs" }
}

fn start_runtime(paths: &Paths, programs: &Programs, node: &Node) -> Result<bool> {
    let part = Part::start(format!("containerd {}", node.name()));
    let started = node.start_containerd(paths, programs)?;
    let imported = images::import(node, &programs.unpacked, &programs.images, &node.import_log())?;
    part.done(&format!("{}, {imported} images imported", word(started)));
    Ok(started || imported > 0)
}

/// Takes a node away that the cluster should no longer have.
fn remove_node(paths: &Paths, programs: &Programs, node: &Node) -> Result<bool> {
    let part = Part::start(node.name());
    node.stop(Some(&programs.unpacked))?;
    for found in leftovers::processes(paths)?.into_iter().filter(|f| f.node.as_deref() == Some(node.name())) {
        leftovers::Leftover::Process(found).remove()?;
    }
    node.sweep()?;
    command::output(kubectl(paths, &programs.unpacked).args([
        "delete",
        "node",
        node.name(),
        "--ignore-not-found",
    ]))
    .with_context(|| format!("delete {}", node.name()))?;
    part.done("removed");
    Ok(true)
}

/// Takes the local Kubernetes down and proves that nothing is left.
pub(crate) fn down(paths: &Paths, purge: bool) -> Result<()> {
    let _lock = begin(paths)?;
    let part = Part::start("down");
    let unpacked = packages::find_unpacked(paths);
    let recorded = Process::recorded(paths)?;
    let nodes: Vec<_> = (1..=settings::MAX_NODES).map(|number| Node::new(paths, number)).collect();
    thread::scope(|scope| {
        let stops: Vec<_> = nodes
            .iter()
            .filter(|node| node.is_running())
            .map(|node| scope.spawn(|| node.stop(unpacked.as_ref())))
            .collect();
        for stop in stops {
            stop.join().map_err(|_| anyhow::anyhow!("ending a node panicked"))??;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    for name in control_plane::PROCESSES {
        // Nothing of theirs is kept, and the API server would wait for its watchers to leave.
        Process::new(paths, name).stop(Signal::Kill)?;
    }
    for process in recorded {
        process.stop(Signal::Term)?;
    }
    sweep(paths)?;
    machine::forget(paths)?;
    Options::forget(paths)?;
    forget_state(paths, purge)?;
    part.done("nothing is left on the machine");
    Ok(())
}

/// Removes what is left until nothing is; fails with what resists.
fn sweep(paths: &Paths) -> Result<()> {
    let mut errors = Vec::new();
    for _ in 0..SWEEPS {
        let left = leftovers::find(paths)?;
        errors.clear();
        for leftover in &left {
            if let Err(error) = leftover.remove() {
                errors.push(format!("  {error:#}"));
            }
        }
        let left: Vec<_> = leftovers::find(paths)?.into_iter().filter(|left| !left.is_shared()).collect();
        if left.is_empty() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(200));
    }
    let left: Vec<_> = leftovers::find(paths)?.iter().map(|left| format!("  {left}")).collect();
    bail!("these are left on the machine:\n{}\n{}", left.join("\n"), errors.join("\n"))
}

/// Deletes the cluster's objects and the pods' files. What makes the next `up` quick stays, unless `purge`:
/// unpacked images, certificates; and the logs, which a person may want to read now.
fn forget_state(paths: &Paths, purge: bool) -> Result<()> {
    let mut folders = vec![control_plane::etcd_data(paths), paths.state().join("volume-plugins")];
    for number in 1..=settings::MAX_NODES {
        let disk = paths.node_disk(Node::new(paths, number).name());
        folders.extend([disk.join("kubelet"), disk.join("pod-logs")]);
    }
    if purge {
        folders.extend([paths.state().join("nodes"), paths.pki(), paths.logs()]);
    }
    for folder in folders {
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("delete {}", folder.display()))?;
        }
    }
    Ok(())
}

/// A `kubectl` as the local Kubernetes' administrator.
pub(crate) fn kubectl(paths: &Paths, tools: &Unpacked) -> Command {
    let mut kubectl = Command::new(&tools.kubectl);
    kubectl.arg("--kubeconfig").arg(paths.admin_kubeconfig()).arg("--request-timeout=10s");
    kubectl
}

/// Makes sure that nobody else works on the local Kubernetes while the returned lock is held.
pub(crate) fn begin(paths: &Paths) -> Result<File> {
    require_root()?;
    let state = paths.state();
    fs::create_dir_all(&state).with_context(|| format!("create {}", state.display()))?;
    let lock = File::create(paths.cache().join("cluster.lock")).context("open the cluster's lock")?;
    if lock.try_lock().is_err() {
        ui::note("another `cargo xtask` works on the local Kubernetes: waiting for it");
        lock.lock().context("wait for the cluster's lock")?;
    }
    check_owner(&state)?;
    Ok(lock)
}

/// File that says whose local Kubernetes is on this machine.
fn owner_file() -> PathBuf {
    Path::new(RUN_DIR).join("owner")
}

/// Names, addresses and ports exist once on a machine: so does the local Kubernetes.
fn check_owner(state: &Path) -> Result<()> {
    let owner = fs::read_to_string(owner_file()).unwrap_or_default();
    let owner = Path::new(owner.trim());
    if owner.as_os_str().is_empty() || owner == state {
        return Ok(());
    }
    bail!(
        "the local Kubernetes of another cache folder is up; take it down first: \
         VALKEY_OPERATOR_CACHE={} cargo xtask down",
        owner.parent().unwrap_or(owner).display()
    )
}

/// Says that the local Kubernetes on this machine is ours.
fn claim(paths: &Paths) -> Result<()> {
    fs::create_dir_all(RUN_DIR).with_context(|| format!("create {RUN_DIR}"))?;
    let owner = owner_file();
    fs::write(&owner, format!("{}\n", paths.state().display()))
        .with_context(|| format!("write {}", owner.display()))
}

/// Network, mounts and cgroups need root.
pub(crate) fn require_root() -> Result<()> {
    let owner = fs::metadata("/proc/self").context("read /proc/self")?.uid();
    if owner == 0 { Ok(()) } else { bail!("the local Kubernetes needs root (run it with sudo -E)") }
}
