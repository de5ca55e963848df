//! etcd, the API server, the controller manager and the scheduler; certificates and cluster DNS.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::builds::Key;
use crate::command;
use crate::local::options::{Audit, Grace, Options};
use crate::local::process::Process;
use crate::local::{Programs, kubectl};
use crate::paths::Paths;
use crate::settings::{
    API_PORT, CONTROLLER_MANAGER_PORT, ETCD_PEER_PORT, ETCD_PORT, GATEWAY, NFT_SERVICES_TABLE, POD_CIDR,
    SCHEDULER_PORT, SERVICE_CIDR, script_environment,
};

/// Names of the control plane's processes, in the order in which they end.
pub(crate) const PROCESSES: [&str; 5] =
    ["dns", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"];

/// How long a part may take to be ready on a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// Makes certificates and kubeconfigs for the control plane and `nodes` nodes.
pub(crate) fn ensure_pki(paths: &Paths, nodes: u8) -> Result<()> {
    let folder = paths.pki();
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let mut script = Command::new(paths.script("pki.sh"));
    script.arg(&folder).arg(nodes.to_string()).envs(script_environment());
    command::run_logged(&mut script, &paths.logs().join("pki.log")).context("make certificates")
}

/// Starts etcd and the API server and waits until the API answers.
pub(crate) fn start_api(paths: &Paths, programs: &Programs, options: Options) -> Result<bool> {
    let etcd = Process::new(paths, "etcd");
    let api = Process::new(paths, "kube-apiserver");
    let mut changed = start(paths, &etcd, &etcd_command(paths, programs), &[])?;
    // A copy, so that the command line is the same from every checkout and the next one restarts nothing.
    let policy = paths.state().join("audit.yaml");
    std::fs::copy(paths.local_kubernetes("templates/audit.yaml"), &policy)
        .context("copy the audit policy")?;
    changed |= start(paths, &api, &api_command(paths, programs, options, &policy), &[&policy])?;
    command::wait_for("the API server's readiness", PATIENCE, || {
        etcd.check()?;
        api.check()?;
        command::output(kubectl(paths, &programs.unpacked).args(["get", "--raw=/readyz"])).map(Some)
    })
    .with_context(|| format!("see {}", api.log().display()))?;
    Ok(changed)
}

/// Starts controller manager, scheduler and DNS; they need not be waited for.
pub(crate) fn start_controllers(paths: &Paths, programs: &Programs, options: Options) -> Result<bool> {
    let manager = Process::new(paths, "kube-controller-manager");
    let mut changed = start(paths, &manager, &manager_command(paths, programs, options), &[])?;
    let scheduler = Process::new(paths, "kube-scheduler");
    changed |= start(paths, &scheduler, &scheduler_command(paths, programs), &[])?;
    let rbac = paths.local_kubernetes("templates/dns-rbac.yaml");
    let dns = Process::new(paths, "dns");
    if dns.running().is_none() {
        command::output(kubectl(paths, &programs.unpacked).args(["apply", "-f"]).arg(&rbac))
            .context("let the DNS read services")?;
    }
    changed |= start(paths, &dns, &dns_command(paths, programs), &[&rbac])?;
    Ok(changed)
}

/// Starts a process; its fingerprint is its command line and the files that it reads at its start.
pub(crate) fn start(paths: &Paths, process: &Process, command: &Command, files: &[&Path]) -> Result<bool> {
    let mut key = Key::default().with("program", command.get_program().as_encoded_bytes());
    for argument in command.get_args() {
        key = key.with("argument", argument.as_encoded_bytes());
    }
    for file in files {
        key = key.with_file(file)?;
    }
    process.ensure(paths, &key.finish(), command)
}

fn etcd_command(paths: &Paths, programs: &Programs) -> Command {
    let client = format!("http://127.0.0.1:{ETCD_PORT}");
    let peer = format!("http://127.0.0.1:{ETCD_PEER_PORT}");
    let mut etcd = Command::new(&programs.unpacked.etcd);
    etcd.args(["--name=local", "--log-level=warn", "--auto-compaction-retention=1h"])
        // A crash of the whole machine may lose the data of this cluster; in return it is fast on any disk.
        .arg("--unsafe-no-fsync")
        .arg(format!("--data-dir={}", etcd_data(paths).display()))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=local={peer}"));
    etcd
}

/// etcd's data: all objects of the cluster.
pub(crate) fn etcd_data(paths: &Paths) -> PathBuf {
    paths.state().join("etcd")
}

fn api_command(paths: &Paths, programs: &Programs, options: Options, policy: &Path) -> Command {
    let pki = |file: &str| paths.pki().join(file).display().to_string();
    let mut api = Command::new(programs.kubernetes.join("kube-apiserver"));
    api.args(["--v=1", "--profiling=false", "--allow-privileged=true", "--enable-aggregator-routing=true"])
        .args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction,PodSecurity"])
        .args(["--kubelet-preferred-address-types=InternalIP", "--bind-address=0.0.0.0"])
        .arg(format!("--etcd-servers=http://127.0.0.1:{ETCD_PORT}"))
        .arg(format!("--secure-port={API_PORT}"))
        .arg(format!("--advertise-address={GATEWAY}"))
        .arg(format!("--service-cluster-ip-range={SERVICE_CIDR}"))
        .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
        .args(["--requestheader-allowed-names=front-proxy-client"])
        .args([
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
        ])
        .arg("--requestheader-extra-headers-prefix=X-Remote-Extra-");
    for (flag, file) in [
        ("tls-cert-file", "apiserver.crt"),
        ("tls-private-key-file", "apiserver.key"),
        ("client-ca-file", "ca.crt"),
        ("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
        ("kubelet-client-key", "apiserver-kubelet-client.key"),
        ("kubelet-certificate-authority", "ca.crt"),
        ("service-account-key-file", "sa.pub"),
        ("service-account-signing-key-file", "sa.key"),
        ("requestheader-client-ca-file", "ca.crt"),
        ("proxy-client-cert-file", "front-proxy-client.crt"),
        ("proxy-client-key-file", "front-proxy-client.key"),
    ] {
        api.arg(format!("--{flag}={}", pki(file)));
    }
    if options.audit == Audit::Operator {
        api.arg(format!("--audit-policy-file={}", policy.display()))
            .arg(format!("--audit-log-path={}", paths.audit_log().display()))
            .args(["--audit-log-maxsize=100", "--audit-log-maxbackup=2"]);
    }
    api
}

/// Flags that controller manager and scheduler share: their identity, and no election among one.
fn controller(paths: &Paths, programs: &Programs, name: &str, port: u16) -> Command {
    let kubeconfig = paths.pki().join(format!("{name}.kubeconfig")).display().to_string();
    let mut command = Command::new(programs.kubernetes.join(name));
    command
        .args(["--v=1", "--profiling=false", "--leader-elect=false", "--bind-address=127.0.0.1"])
        // With the defaults (20 requests a second) the controller manager is busy for seconds at its start.
        .args(["--kube-api-qps=500", "--kube-api-burst=1000"])
        .arg(format!("--secure-port={port}"));
    for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        command.arg(format!("--{flag}={kubeconfig}"));
    }
    command
}

fn manager_command(paths: &Paths, programs: &Programs, options: Options) -> Command {
    let mut manager = controller(paths, programs, "kube-controller-manager", CONTROLLER_MANAGER_PORT);
    manager.args(["--use-service-account-credentials=true", "--allocate-node-cidrs=false"]);
    // Its default is a folder of the machine.
    manager.arg(format!("--flex-volume-plugin-dir={}", paths.state().join("volume-plugins").display()));
    for (flag, file) in [
        ("service-account-private-key-file", "sa.key"),
        ("root-ca-file", "ca.crt"),
        ("cluster-signing-cert-file", "ca.crt"),
        ("cluster-signing-key-file", "ca.key"),
        ("client-ca-file", "ca.crt"),
        ("requestheader-client-ca-file", "ca.crt"),
    ] {
        manager.arg(format!("--{flag}={}", paths.pki().join(file).display()));
    }
    if let Grace::Seconds(seconds) = options.grace {
        manager.arg(format!("--node-monitor-grace-period={seconds}s")).arg("--node-monitor-period=1s");
    }
    manager
}

fn scheduler_command(paths: &Paths, programs: &Programs) -> Command {
    controller(paths, programs, "kube-scheduler", SCHEDULER_PORT)
}

fn dns_command(paths: &Paths, programs: &Programs) -> Command {
    let mut dns = Command::new(programs.kubernetes.join("dns"));
    dns.arg(format!("--kubeconfig={}", paths.pki().join("dns.kubeconfig").display()))
        .arg(format!("--listen={GATEWAY}:53"))
        .arg(format!("--nft-table={NFT_SERVICES_TABLE}"))
        .arg(format!("--pod-cidr={POD_CIDR}"));
    dns
}
