//! Build results that are kept: each in a folder named by what it is and by a hash of what it is made from.
//!
//! A result is made in a temporary folder and renamed when it is complete, so a half-written one never counts.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::local::leftovers;
use crate::paths::Paths;
use crate::ui::Part;

/// Hex digits of a hash that names a build result.
const KEY_LENGTH: usize = 12;

/// The hash of a build's inputs. Every input has a name and a content, and both count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Key(Sha256);

impl Key {
    /// Adds an input.
    pub(crate) fn with(mut self, name: &str, content: impl AsRef<[u8]>) -> Self {
        let content = content.as_ref();
        // Lengths first: no two lists of inputs may look the same when they are written after each other.
        self.0.update((name.len() as u64).to_be_bytes());
        self.0.update(name);
        self.0.update((content.len() as u64).to_be_bytes());
        self.0.update(content);
        self
    }

    /// Adds a file by its name and content.
    pub(crate) fn with_file(self, path: &Path) -> Result<Self> {
        let content = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(self.with(&name, content))
    }

    /// The name that the inputs give to the result.
    pub(crate) fn finish(self) -> String {
        let mut digits = hex::encode(self.0.finalize());
        digits.truncate(KEY_LENGTH);
        digits
    }
}

/// A finished build result.
#[derive(Debug, Clone)]
pub(crate) struct Built {
    /// Where it is.
    pub(crate) folder: PathBuf,
}

/// The result `name` for the inputs `key`, if it is there already.
pub(crate) fn find(paths: &Paths, name: &str, key: Key) -> Option<Built> {
    Some(Built { folder: folder(paths, name, key) }).filter(|built| built.folder.exists())
}

fn folder(paths: &Paths, name: &str, key: Key) -> PathBuf {
    paths.builds().join(format!("{name}-{}", key.finish()))
}

/// Returns the result `name` for the inputs `key`; if it is not there yet, `make` makes it in the folder it
/// is given. Two callers at once build it once.
pub(crate) fn ensure(
    paths: &Paths,
    part: &Part,
    name: &str,
    key: Key,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<Built> {
    let all = paths.builds();
    let built = Built { folder: folder(paths, name, key) };
    if built.folder.exists() {
        return Ok(built);
    }
    fs::create_dir_all(&all).with_context(|| format!("create {}", all.display()))?;
    let lock = File::create(all.join(format!(".{name}.lock"))).context("open the build lock")?;
    if lock.try_lock().is_err() {
        part.alive("another xtask is building it, waiting");
        lock.lock().context("wait for the build lock")?;
    }
    if built.folder.exists() {
        return Ok(built);
    }
    let unfinished = all.join(format!(".{name}.unfinished"));
    remove_unfinished(&unfinished)?;
    fs::create_dir_all(&unfinished).with_context(|| format!("create {}", unfinished.display()))?;
    make(&unfinished)?;
    fs::rename(&unfinished, &built.folder).with_context(|| format!("publish {}", built.folder.display()))?;
    Ok(built)
}

/// Deletes what a killed build left. Never through a mount: below it may be the machine's own /dev.
fn remove_unfinished(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    if let Some(mount) = leftovers::mounts_below(&[folder])?.first() {
        bail!("{} is still mounted: umount it, then try again", mount.display());
    }
    fs::remove_dir_all(folder).with_context(|| format!("delete {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_follows_every_input() {
        let key = Key::default().with("a", "1").with("b", "2").finish();
        assert_eq!(key, Key::default().with("a", "1").with("b", "2").finish());
        assert_eq!(key.len(), KEY_LENGTH);
        assert_ne!(key, Key::default().with("a", "1").with("b", "3").finish());
        assert_ne!(key, Key::default().with("a", "1").finish());
    }

    #[test]
    fn the_border_between_name_and_content_counts() {
        assert_ne!(Key::default().with("ab", "c").finish(), Key::default().with("a", "bc").finish());
        assert_ne!(
            Key::default().with("a", "").with("b", "").finish(),
            Key::default().with("a", "b").finish()
        );
    }
}
