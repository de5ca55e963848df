//! Building Kubernetes and the cluster DNS from their pinned Go modules.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::builds::{self, Key};
use crate::command;
use crate::paths::Paths;
use crate::settings::KUBERNETES_VERSION;
use crate::ui::Part;

/// Names under which the one Kubernetes binary is called.
const PROGRAMS: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"];
/// Sources, relative to the folder of the modules.
const SOURCES: [&str; 7] = [
    "go.mod",
    "go.sum",
    "kubernetes/main.go",
    "dns/main.go",
    "dns/proxy.go",
    "dns/resolver.go",
    "dns/world.go",
];
/// How often a build that takes minutes says that it lives.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);

/// Builds what is missing, and returns the folder with the four programs and `dns`.
pub(crate) fn ensure_built(paths: &Paths, part: &Part) -> Result<PathBuf> {
    let modules = paths.local_kubernetes("modules");
    let mut key = Key::default().with("flags", linker_flags()).with("arch", std::env::consts::ARCH);
    for source in SOURCES {
        key = key.with("file", source).with_file(&modules.join(source))?;
    }
    let built = builds::ensure(paths, part, "kubernetes", key, |folder| {
        let log = paths.build_logs().join("kubernetes.log");
        build(part, &modules, folder, &log).context("build Kubernetes from its Go modules")
    })?;
    Ok(built.folder)
}

/// Kubernetes tells its version only from these: it is not in the sources.
fn linker_flags() -> String {
    let version = "k8s.io/component-base/version";
    let mut numbers = KUBERNETES_VERSION.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    format!(
        "-s -w -X {version}.gitVersion={KUBERNETES_VERSION} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"
    )
}

fn go(modules: &Path) -> std::process::Command {
    let mut go = command::bound_to_us("go");
    go.current_dir(modules).env("CGO_ENABLED", "0").env_remove("GOFLAGS");
    go
}

fn build(part: &Part, modules: &Path, folder: &Path, log: &Path) -> Result<()> {
    part.alive("fetching Go modules");
    // Also tells how many packages there are to compile, for the progress.
    let packages =
        command::output(go(modules).args(["list", "-mod=readonly", "-deps", "./kubernetes", "./dns"]))?;
    let total = packages.lines().count();
    part.alive(&format!("compiling up to {total} Go packages (8 to 10 minutes on two cores the first time)"));
    // The log grows by one line a compiled package; it starts empty to be counted.
    command::open_log(log)?.set_len(0).context("empty the build log")?;
    let mut compile = go(modules);
    compile
        .args(["build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", &linker_flags()])
        .arg("-o")
        .arg(folder.join("")) // with a slash at its end: a folder, not a file
        .args(["./kubernetes", "./dns"]);
    let (finished, wait) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while wait.recv_timeout(SIGN_OF_LIFE) == Err(RecvTimeoutError::Timeout) {
                let compiled = fs::read_to_string(log).map_or(0, |text| text.lines().count());
                part.alive(&format!("{compiled} of at most {total} packages compiled"));
            }
        });
        let result = command::run_logged(&mut compile, log);
        drop(finished); // ends the signs of life
        result
    })?;
    for program in PROGRAMS {
        symlink("kubernetes", folder.join(program)).with_context(|| format!("link {program}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_of_the_modules_is_part_of_the_key() {
        let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/local-kubernetes/modules");
        let mut found: Vec<String> = Vec::new();
        for folder in ["", "kubernetes/", "dns/"] {
            for entry in fs::read_dir(modules.join(folder)).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_file() {
                    found.push(format!("{folder}{}", entry.file_name().to_string_lossy()));
                }
            }
        }
        found.sort();
        let mut named = SOURCES.to_vec();
        named.sort_unstable();
        assert_eq!(found, named);
    }

    #[test]
    fn the_version_is_linked_in_whole_and_in_parts() {
        let flags = linker_flags();
        assert!(flags.contains("gitVersion=v1.") && flags.contains("gitMajor=1 "), "{flags}");
    }
}
