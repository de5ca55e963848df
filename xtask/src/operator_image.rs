//! `cargo xtask image`: the operator's image, without a container engine.
//!
//! Its root file system is three release binaries, the shared libraries that they name, and one user.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::builds::{self, Key};
use crate::command;
use crate::local::images::{self, Image};
use crate::local::node::Node;
use crate::local::options::Options;
use crate::local::{self, packages};
use crate::paths::Paths;
use crate::settings::OPERATOR_IMAGE;
use crate::ui::Part;

/// The operator's programs, by the names of their crates.
const BINARIES: [&str; 3] = ["cluster-ctl", "node-ctl", "reconcile-loops"];
/// Cargo profile of what the image holds.
const PROFILE: &str = "operator";
/// The user that they run as.
const USER: &str = "65532";

/// Builds the image, and imports it into every node of the local Kubernetes that has another one or none.
/// Returns the reference that names it by its content, so that using a rebuilt image is a change and using the
/// same one again is not.
pub(crate) fn build_and_import(paths: &Paths) -> Result<String> {
    import(paths, &build(paths, &Kind { result: "operator-image", tag: "dev", profile: PROFILE })?)
}

/// The same of other sources, under a name of its own. Not as small: it is there to be replaced.
pub(crate) fn build_and_import_other(paths: &Paths, sources: PathBuf) -> Result<String> {
    let other = paths.for_sources(sources);
    import(paths, &build(&other, &Kind { result: "other-operator-image", tag: "other", profile: "release" })?)
}

/// What is built, and how.
struct Kind {
    /// Name of the build result.
    result: &'static str,
    /// Tag that always names the newest.
    tag: &'static str,
    /// Cargo's profile.
    profile: &'static str,
}

fn build(paths: &Paths, kind: &Kind) -> Result<Image> {
    let binaries = build_binaries(paths, kind.profile)?;
    let part = Part::start("image");
    let image = ensure_image(paths, &part, kind, &binaries)?;
    part.done(&image.refs.join(" = "));
    Ok(image)
}

fn import(paths: &Paths, image: &Image) -> Result<String> {
    let part = Part::start("import");
    let _lock = local::begin(paths)?;
    let Some(options) = Options::saved(paths)? else {
        bail!("there is no local Kubernetes to import the image into: run `cargo xtask up` first");
    };
    let tools = packages::ensure_unpacked(paths)?;
    let mut imported = 0;
    for node in (1..=options.nodes).map(|number| Node::new(paths, number)) {
        if node.containerd().running().is_none() {
            bail!("containerd of {} does not run: run `cargo xtask up`", node.name());
        }
        imported += images::import(&node, &tools, std::slice::from_ref(image), &node.import_log())?;
    }
    part.done(&format!("into {imported} of {} nodes, the others had it", options.nodes));
    image.refs.last().cloned().context("an image without a name")
}

fn build_binaries(paths: &Paths, profile: &str) -> Result<Vec<PathBuf>> {
    let part = Part::start("release binaries");
    let mut build = command::cargo(paths);
    build.args(["build", "--profile", profile]);
    for name in BINARIES {
        build.args(["--package", name]);
    }
    // Its own progress is worth seeing, so it writes to the terminal and not to a log.
    let status = build.status().context("start cargo build")?;
    if !status.success() {
        bail!("cargo build --profile {profile}: {status}");
    }
    part.done(&BINARIES.join(", "));
    Ok(BINARIES.iter().map(|name| paths.target().join(profile).join(name)).collect())
}

fn ensure_image(paths: &Paths, part: &Part, kind: &Kind, binaries: &[PathBuf]) -> Result<Image> {
    let pack = paths.local_kubernetes("images/pack.py");
    let libraries = libraries(binaries)?;
    let mut key = Key::default().with_file(&pack)?.with("user", USER);
    for file in binaries.iter().chain(&libraries) {
        key = key.with("path", file.as_os_str().as_encoded_bytes()).with_file(file)?;
    }
    let tag = key.clone().finish();
    let refs = vec![format!("{OPERATOR_IMAGE}:{}", kind.tag), format!("{OPERATOR_IMAGE}:{tag}")];
    let built = builds::ensure(paths, part, kind.result, key, |folder| {
        let root = folder.join("rootfs");
        for binary in binaries {
            let name = binary.file_name().context("name of a binary")?;
            install(binary, &root.join("usr/local/bin").join(name))?;
        }
        for library in &libraries {
            install(library, &root.join(library.strip_prefix("/").unwrap_or(library)))?;
        }
        let etc = root.join("etc");
        fs::create_dir_all(&etc).context("create etc")?;
        let users =
            format!("root:x:0:0:root:/:/sbin/nologin\noperator:x:{USER}:{USER}:operator:/:/sbin/nologin\n");
        fs::write(etc.join("passwd"), users).context("write etc/passwd")?;
        let user = format!("{USER}:{USER}");
        let mut arguments = vec!["--user", &user];
        for name in &refs {
            arguments.extend(["--ref", name]);
        }
        images::pack_image(&pack, &root, folder, &arguments)?;
        fs::remove_dir_all(&root).context("delete the root file system, which is packed")
    })?;
    let image = images::read_image(&built.folder, refs)?;
    remove_older(paths, kind, &built.folder)?;
    Ok(image)
}

/// Every edit makes a new image; only the newest is of use.
fn remove_older(paths: &Paths, kind: &Kind, newest: &Path) -> Result<()> {
    let prefix = format!("{}-", kind.result);
    for entry in fs::read_dir(paths.builds()).context("read the build results")? {
        let path = entry.context("read the build results")?.path();
        let is_image = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
        if is_image && path != newest {
            fs::remove_dir_all(&path).with_context(|| format!("delete {}", path.display()))?;
        }
    }
    Ok(())
}

fn install(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a file without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("chmod {}", to.display()))
}

/// The shared libraries and the loader that the binaries need, by the paths under which they are looked up.
fn libraries(binaries: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = BTreeSet::new();
    for binary in binaries {
        let listing = command::output(Command::new("ldd").arg(binary))?;
        found.extend(parse_ldd(&listing).with_context(|| format!("libraries of {}", binary.display()))?);
    }
    Ok(found.into_iter().collect())
}

/// Paths in the output of `ldd`: `name => /path (0x…)` for a library, `/path (0x…)` for the loader.
fn parse_ldd(listing: &str) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for line in listing.lines().map(str::trim) {
        if line.ends_with("not found") {
            bail!("{line}");
        }
        let target = line.split_once("=> ").map_or(line, |(_name, target)| target);
        match target.split(" (").next() {
            Some(path) if path.starts_with('/') => paths.push(PathBuf::from(path)),
            // The kernel's own library, and `statically linked`.
            _ => {}
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_loader_are_read_from_ldd() {
        let listing = "\tlinux-vdso.so.1 (0x00007ffd)\n\
            \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f3d)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f3e)\n";
        let expected =
            ["/lib/x86_64-linux-gnu/libgcc_s.so.1", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(parse_ldd(listing).unwrap(), expected);
    }

    #[test]
    fn a_missing_library_is_an_error_and_none_is_fine() {
        assert!(parse_ldd("\tlibx.so.1 => not found\n").is_err());
        assert!(parse_ldd("\tstatically linked\n").unwrap().is_empty());
    }
}
