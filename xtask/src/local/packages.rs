//! Programs that come from Debian packages: installed (the machine's own suite) or unpacked (a newer suite).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::builds::{self, Key};
use crate::command::{self, find_program};
use crate::paths::Paths;
use crate::settings;
use crate::ui::Part;

/// Packages unpacked from the newer suite.
const UNPACKED: [&str; 3] = ["etcd-server", "containerd", "kubectl"];

/// Where the unpacked programs are.
#[derive(Debug, Clone)]
pub(crate) struct Unpacked {
    /// `etcd`
    pub(crate) etcd: PathBuf,
    /// Folder of `containerd`, its shim and `ctr`.
    pub(crate) containerd: PathBuf,
    /// `kubectl`
    pub(crate) kubectl: PathBuf,
    /// `package version`, one a line.
    pub(crate) versions: String,
}

/// Where the installed programs are.
#[derive(Debug, Clone)]
pub(crate) struct Installed {
    /// `runc`
    pub(crate) runc: PathBuf,
    /// Folder of the CNI plugins.
    pub(crate) cni: PathBuf,
}

/// Installs what the machine lacks; at once done when all commands are there.
pub(crate) fn ensure_installed(paths: &Paths) -> Result<Installed> {
    let log = paths.build_logs().join("packages.log");
    command::run_logged(&mut Command::new(paths.script("packages.sh")), &log)
        .context("install Debian packages")?;
    let runc = find_program("runc").context("runc is installed, yet not found")?;
    let cni = ["/usr/lib/cni", "/opt/cni/bin"].map(PathBuf::from);
    let cni = cni.into_iter().find(|folder| folder.join("bridge").exists());
    Ok(Installed { runc, cni: cni.context("the CNI plugins are installed, yet not found")? })
}

/// Name of the build result.
const NAME: &str = "packages";

fn key(paths: &Paths) -> Result<Key> {
    let key = Key::default().with_file(&paths.script("unpack.sh"))?;
    Ok(key.with("suite", settings::PACKAGE_SUITE).with("packages", UNPACKED.join(" ")))
}

/// Unpacks etcd, containerd and kubectl, if this checkout's choice of them is not in the cache already.
pub(crate) fn ensure_unpacked(paths: &Paths) -> Result<Unpacked> {
    let part = Part::start(NAME);
    let built = builds::ensure(paths, &part, NAME, key(paths)?, |folder| {
        let mut unpack = command::bound_to_us(paths.script("unpack.sh"));
        unpack.arg(folder).arg(settings::PACKAGE_SUITE).args(UNPACKED);
        command::run_logged(&mut unpack, &paths.build_logs().join("packages.log"))
            .context("unpack etcd, containerd and kubectl")
    })?;
    Unpacked::in_folder(&built.folder)
}

/// The unpacked programs, if they are in the cache already.
pub(crate) fn find_unpacked(paths: &Paths) -> Option<Unpacked> {
    let built = builds::find(paths, NAME, key(paths).ok()?)?;
    Unpacked::in_folder(&built.folder).ok()
}

impl Unpacked {
    fn in_folder(folder: &Path) -> Result<Self> {
        Ok(Self {
            etcd: folder.join("etcd-server/usr/bin/etcd"),
            containerd: folder.join("containerd/usr/bin"),
            kubectl: folder.join("kubectl/usr/bin/kubectl"),
            versions: fs::read_to_string(folder.join("versions")).context("versions of the packages")?,
        })
    }

    /// The versions in one line: `etcd-server 3.5.30-2, containerd 2.1.9`.
    pub(crate) fn summary(&self) -> String {
        self.versions.lines().collect::<Vec<_>>().join(", ")
    }
}
