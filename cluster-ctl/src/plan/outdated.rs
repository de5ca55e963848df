//! Whether a node is what would be created now. Compares specs, never running processes.

use std::collections::{BTreeMap, BTreeSet};

use shared::api::ValkeyNodeSpec;

/// Whether `spec` differs from `template` in anything that a node cannot change while it lives: image, cpu, memory,
/// the user's settings, zones (as a set), node selector, TLS Secret. Defaults and forced settings of the operator are
/// not part of a node's spec, so that a new release rolls nothing; the zone spread governs future pods only.
pub fn is_outdated(spec: &ValkeyNodeSpec, template: &ValkeyNodeSpec) -> bool {
    fn zones(spec: &ValkeyNodeSpec) -> &[String] {
        spec.placement.as_ref().map_or(&[], |placement| &placement.zones)
    }
    fn sorted(zones: &[String]) -> BTreeSet<&str> {
        zones.iter().map(String::as_str).collect()
    }
    fn selector(spec: &ValkeyNodeSpec) -> Option<&BTreeMap<String, String>> {
        let placement = spec.placement.as_ref();
        placement.map(|placement| &placement.node_selector).filter(|selector| !selector.is_empty())
    }
    let same_zones = |left: &[String], right: &[String]| left == right || sorted(left) == sorted(right);
    spec.image != template.image
        || spec.cpu != template.cpu
        || spec.memory != template.memory
        || spec.valkey_settings != template.valkey_settings
        || spec.tls_secret != template.tls_secret
        || !same_zones(zones(spec), zones(template))
        || selector(spec) != selector(template)
}
