//! Config resolution: from the config that a cluster names, along `baseRef`, to what a node runs. Pure.
//!
//! Owns which value wins and the exact words of what can be wrong. The nearest config that sets a value decides; `valkey`
//! merges key by key, `acl` is taken whole. A failure is never total: the names visited are always known (so that an
//! edit of any of them wakes the right clusters), and the ACL is known whenever no missing config could change it.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{AclBinding, ValkeyConfigSpec, ValkeyImageSpec};

#[cfg(test)]
mod tests;

/// Most configs in a chain, the selected one included.
pub const MAX_CHAIN: usize = 10;

/// Why a config cannot be resolved. The texts are part of the API: people search for them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum ResolveError {
    /// A config of the chain does not exist.
    #[error("ValkeyConfig \"{name}\" not found")]
    ConfigNotFound {
        /// The missing config.
        name: String,
    },
    /// The image that the chain selects does not exist.
    #[error("ValkeyImage \"{name}\" not found")]
    ImageNotFound {
        /// The missing image.
        name: String,
    },
    /// No config of a complete chain selects an image.
    #[error("no image_ref in config chain ending at \"{name}\"")]
    NoImage {
        /// The config that the cluster selects.
        name: String,
    },
    /// More than [`MAX_CHAIN`] configs in the chain; most likely it runs in a circle.
    #[error("config inheritance depth exceeds 10 (cycle?)")]
    TooDeep,
    /// A username that the config and the cluster both bind, or one of them twice.
    #[error("duplicate username \"{username}\" in merged ACL bindings")]
    DuplicateUsername {
        /// The username.
        username: String,
    },
}

impl ResolveError {
    /// The bounded word for condition reasons, events and metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::ConfigNotFound { .. } => "ConfigNotFound",
            Self::ImageNotFound { .. } => "ImageNotFound",
            Self::NoImage { .. } => "NoImage",
            Self::TooDeep => "ConfigChainTooDeep",
            Self::DuplicateUsername { .. } => "DuplicateUsername",
        }
    }
}

/// What a node of a cluster runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveConfig {
    /// Container image: `repository:tag`, or `repository@sha256:…`.
    pub image: String,
    /// Name of the `ValkeyImage`.
    pub image_name: String,
    /// Version that the `ValkeyImage` declares; not checked.
    pub version: String,
    /// CPU as a Kubernetes quantity; none: no request and no limit.
    pub cpu: Option<String>,
    /// Memory as a Kubernetes quantity; none: no request and no limit.
    pub memory: Option<String>,
    /// Valkey settings as people wrote them, by directive name in lower case.
    pub valkey: BTreeMap<String, String>,
    /// ACL bindings of the config; those of the cluster are added by [`merge_acl`].
    pub acl: Vec<AclBinding>,
    /// Names of the configs, from the selected one to its root.
    pub chain: Vec<String>,
}

/// The result of a resolution, of which each part is known or not by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// Names of the configs looked up, in order, a missing one included. At most [`MAX_CHAIN`]. An edit of any of them
    /// can change the result.
    pub chain: Vec<String>,
    /// Name of the image looked up, also if it is missing. An edit of it can change the result.
    pub image_name: Option<String>,
    /// ACL bindings of the config. Known even if the image is missing, or a config farther away than the one that sets
    /// them: neither can change them.
    pub acl: Result<Vec<AclBinding>, ResolveError>,
    /// Everything that a new node needs. The first error in the order: chain, image reference, image.
    pub config: Result<EffectiveConfig, ResolveError>,
}

impl Resolution {
    /// Whether an edit of the config `name` (its creation and deletion included) can change this result.
    pub fn uses_config(&self, name: &str) -> bool {
        self.chain.iter().any(|visited| visited == name)
    }

    /// Whether an edit of the image `name` (its creation and deletion included) can change this result.
    pub fn uses_image(&self, name: &str) -> bool {
        self.image_name.as_deref() == Some(name)
    }
}

/// Resolves the config `selected` against the menu: all configs and images by name.
///
/// Total: whatever the menu holds, cycles included, it ends after [`MAX_CHAIN`] look-ups.
pub fn resolve(
    selected: &str,
    configs: &BTreeMap<String, ValkeyConfigSpec>,
    images: &BTreeMap<String, ValkeyImageSpec>,
) -> Resolution {
    let (chain, specs, broken) = walk(selected, configs);
    let image_name = specs.iter().find_map(|spec| spec.image_ref.clone());
    let acl = match (specs.iter().find_map(|spec| spec.acl.clone()), &broken) {
        (Some(acl), _) => Ok(acl),
        (None, Some(error)) => Err(error.clone()),
        (None, None) => Ok(Vec::new()),
    };
    let config = match broken {
        Some(error) => Err(error),
        None => merge(selected, &chain, &specs, images),
    };
    Resolution { chain, image_name, acl, config }
}

/// The configs from `selected` towards the root, as far as they exist, and what ended the walk before the root.
fn walk<'a>(
    selected: &str,
    configs: &'a BTreeMap<String, ValkeyConfigSpec>,
) -> (Vec<String>, Vec<&'a ValkeyConfigSpec>, Option<ResolveError>) {
    let mut chain = Vec::new();
    let mut specs = Vec::new();
    let mut next = Some(selected);
    while let Some(name) = next {
        if chain.len() == MAX_CHAIN {
            return (chain, specs, Some(ResolveError::TooDeep));
        }
        chain.push(name.to_owned());
        let Some(spec) = configs.get(name) else {
            return (chain, specs, Some(ResolveError::ConfigNotFound { name: name.to_owned() }));
        };
        specs.push(spec);
        next = spec.base_ref.as_deref();
    }
    (chain, specs, None)
}

/// Combines a complete chain, nearest config first.
fn merge(
    selected: &str,
    chain: &[String],
    specs: &[&ValkeyConfigSpec],
    images: &BTreeMap<String, ValkeyImageSpec>,
) -> Result<EffectiveConfig, ResolveError> {
    let image_name = specs
        .iter()
        .find_map(|spec| spec.image_ref.as_deref())
        .ok_or_else(|| ResolveError::NoImage { name: selected.to_owned() })?;
    let image =
        images.get(image_name).ok_or_else(|| ResolveError::ImageNotFound { name: image_name.to_owned() })?;
    let mut valkey = BTreeMap::new();
    for spec in specs {
        for (key, value) in &spec.valkey {
            valkey.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    let mut sizes = specs.iter().filter_map(|spec| spec.resources.as_ref());
    Ok(EffectiveConfig {
        image: image.image(),
        image_name: image_name.to_owned(),
        version: image.version.clone(),
        cpu: sizes.clone().find_map(|size| size.cpu.clone()),
        memory: sizes.find_map(|size| size.memory.clone()),
        valkey,
        acl: specs.iter().find_map(|spec| spec.acl.clone()).unwrap_or_default(),
        chain: chain.to_vec(),
    })
}

/// The bindings of the resolved config, then those of the cluster.
///
/// # Errors
///
/// [`ResolveError::DuplicateUsername`] with the first username that occurs a second time: which of two bindings is
/// meant is not to be guessed.
pub fn merge_acl(config: &[AclBinding], cluster: &[AclBinding]) -> Result<Vec<AclBinding>, ResolveError> {
    let mut seen = BTreeSet::new();
    for binding in config.iter().chain(cluster) {
        if !seen.insert(binding.username.as_str()) {
            return Err(ResolveError::DuplicateUsername { username: binding.username.clone() });
        }
    }
    Ok([config, cluster].concat())
}
