//! The ConfigMap with a node's valkey.conf.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use shared::api::ValkeyNode;
use shared::conf::{self, ConfError, ConfInput};
use shared::names;

use crate::meta;

/// A node's ConfigMap, and the settings in it that people wrote without effect.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    /// The object to create.
    pub config_map: ConfigMap,
    /// Settings that the operator forces and people tried to set.
    pub overridden: Vec<String>,
}

/// Builds the ConfigMap from the node alone, so that it can be made again with the same bytes.
///
/// # Errors
/// A setting cannot be written safely.
pub fn build(node: &ValkeyNode) -> Result<Rendered, ConfError> {
    let name = node.name_any();
    let namespace = node.namespace().unwrap_or_default();
    let spec = &node.spec;
    let declared = spec.version.as_deref().and_then(|version| version.parse().ok());
    let conf = conf::render(&ConfInput {
        settings: &spec.valkey_settings,
        memory: spec.memory.as_deref(),
        tls: spec.tls_secret.is_some(),
        version: declared.unwrap_or(conf::OLDEST_ENGINE),
        host: &names::pod_host(&name, &spec.cluster_name, &namespace),
    })?;
    let config_map = ConfigMap {
        metadata: meta::owned(node, names::node_config_map(&name)),
        data: Some(BTreeMap::from([(names::KEY_VALKEY_CONF.to_owned(), conf.text)])),
        ..ConfigMap::default()
    };
    Ok(Rendered { config_map, overridden: conf.overridden })
}
