//! The images of the local Kubernetes, and getting images into the nodes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::builds::{self, Key};
use crate::command;
use crate::local::node::Node;
use crate::local::packages::Unpacked;
use crate::paths::Paths;
use crate::settings;
use crate::ui::Part;

/// An image as a tar that containerd can import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    /// The tar, an OCI image layout.
    pub(crate) tar: PathBuf,
    /// All its references.
    pub(crate) refs: Vec<String>,
    /// Digest of its manifest, with `sha256:`.
    pub(crate) digest: String,
}

/// A Valkey built for the local Kubernetes: an image, and programs that run directly on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Valkey {
    /// The minor version, such as `9.1`.
    pub(crate) minor: &'static str,
    /// The image, under the tags of its minor and of its full version.
    pub(crate) image: Image,
    /// The folder of `valkey-server` and `valkey-cli`.
    pub(crate) folder: PathBuf,
}

/// Builds the pause image if it is missing.
pub(crate) fn ensure_pause(paths: &Paths, part: &Part) -> Result<Image> {
    let source = paths.local_kubernetes("images/pause.c");
    let pack = paths.local_kubernetes("images/pack.py");
    let key = Key::default().with_file(&source)?.with_file(&pack)?.with("ref", settings::PAUSE_IMAGE);
    let built = builds::ensure(paths, part, "pause", key, |folder| {
        let log = paths.build_logs().join("pause.log");
        let root = folder.join("rootfs");
        fs::create_dir(&root).context("create the root file system")?;
        let mut compile = Command::new("gcc");
        compile.args(["-Os", "-static", "-s", "-o"]).arg(root.join("pause")).arg(&source);
        command::run_logged(&mut compile, &log).context("compile the pause program")?;
        let arguments =
            ["--ref", settings::PAUSE_IMAGE, "--entrypoint", r#"["/pause"]"#, "--user", "65535:65535"];
        pack_image(&pack, &root, folder, &arguments)
    })?;
    read_image(&built.folder, vec![settings::PAUSE_IMAGE.to_owned()])
}

/// Builds the Valkey of that Debian suite if it is missing.
pub(crate) fn ensure_valkey(paths: &Paths, part: &Part, minor: &'static str, suite: &str) -> Result<Valkey> {
    let script = paths.script("valkey.sh");
    let key = Key::default()
        .with_file(&script)?
        .with_file(&paths.local_kubernetes("images/pack.py"))?
        .with_file(&paths.local_kubernetes("images/run-in-rootfs"))?
        .with("suite", suite)
        .with("minor", minor);
    let name = format!("valkey-{minor}");
    let built = builds::ensure(paths, part, &name, key, |folder| {
        part.alive(&format!("making a root file system from Debian {suite}"));
        let mut make = command::bound_to_us(&script);
        make.arg(folder).arg(suite).arg(minor);
        command::run_logged(&mut make, &paths.build_logs().join(format!("{name}.log")))
            .with_context(|| format!("build the image of Valkey {minor}"))
    })?;
    let version = fs::read_to_string(built.folder.join("version")).context("version of Valkey")?;
    let refs = [version.trim(), minor].map(|tag| format!("docker.io/valkey/valkey:{tag}")).to_vec();
    Ok(Valkey { minor, image: read_image(&built.folder, refs)?, folder: built.folder })
}

/// Packs `root` as `folder`/image.tar and writes its digest beside it.
pub(crate) fn pack_image(pack: &Path, root: &Path, folder: &Path, arguments: &[&str]) -> Result<()> {
    let mut packing = Command::new("python3");
    packing.arg(pack).arg(root).arg(folder.join("image.tar")).args(arguments);
    let digest = command::output(&mut packing).context("pack the image")?;
    fs::write(folder.join("digest"), digest).context("write the image's digest")
}

/// An image whose folder is complete.
pub(crate) fn read_image(folder: &Path, refs: Vec<String>) -> Result<Image> {
    let digest = fs::read_to_string(folder.join("digest")).context("digest of the image")?;
    Ok(Image { tar: folder.join("image.tar"), refs, digest: digest.trim().to_owned() })
}

/// Imports those of the images that the node does not have under all their names; returns how many.
pub(crate) fn import(node: &Node, tools: &Unpacked, images: &[Image], log: &Path) -> Result<usize> {
    let present = present(node, tools)?;
    let mut imported = 0;
    for image in images {
        let known = |name: &String| present.get(name) == Some(&image.digest);
        if image.refs.iter().all(known) {
            continue;
        }
        let mut import = node.ctr(tools);
        // Without --local the server unpacks by itself and ignores names beyond the first.
        import.args(["images", "import", "--local"]).arg(&image.tar);
        command::run_logged(&mut import, log)
            .with_context(|| format!("import {} into {}", image.refs.join(" and "), node.name()))?;
        for name in &image.refs {
            let mut pin = node.ctr(tools);
            pin.args([
                "images",
                "label",
                name,
                "io.cri-containerd.image=managed",
                "io.cri-containerd.pinned=pinned",
            ]);
            command::run_logged(&mut pin, log).with_context(|| format!("pin {name}"))?;
        }
        imported += 1;
    }
    Ok(imported)
}

fn present(node: &Node, tools: &Unpacked) -> Result<BTreeMap<String, String>> {
    let listing = command::output(node.ctr(tools).args(["images", "ls"]))
        .with_context(|| format!("list the images of {}", node.name()))?;
    Ok(parse_listing(&listing))
}

/// Name and digest of each image in the output of `ctr images ls`.
fn parse_listing(listing: &str) -> BTreeMap<String, String> {
    let rows = listing.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter_map(|columns| match columns.as_slice() {
        [name, _kind, digest, ..] if digest.starts_with("sha256:") => {
            Some(((*name).to_owned(), (*digest).to_owned()))
        }
        _ => None,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listing_of_images_gives_names_and_digests() {
        let listing = "REF TYPE DIGEST SIZE PLATFORMS LABELS\n\
            docker.io/valkey/valkey:9.1 application/vnd.oci.image.manifest.v1+json sha256:ab 89.6 MiB linux/amd64 -\n";
        let images = parse_listing(listing);
        assert_eq!(images.len(), 1);
        assert_eq!(images["docker.io/valkey/valkey:9.1"], "sha256:ab");
    }

    #[test]
    fn an_empty_listing_has_no_images() {
        assert!(parse_listing("REF TYPE DIGEST SIZE PLATFORMS LABELS\n").is_empty());
    }
}
