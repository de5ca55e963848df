//! Whether a node is what would be created now. Compares specs, never running processes.

use std::collections::BTreeSet;

use shared::api::ValkeyNodeSpec;

/// Whether `spec` differs from `template` in anything that a node cannot change while it lives: image, cpu, memory,
/// the user's settings, zones (as a set), node selector, TLS Secret. Defaults and forced settings of the operator are
/// not part of a node's spec, so that a new release rolls nothing; the zone spread governs future pods only.
pub fn is_outdated(spec: &ValkeyNodeSpec, template: &ValkeyNodeSpec) -> bool {
    let zones = |spec: &ValkeyNodeSpec| -> BTreeSet<String> {
        spec.placement.as_ref().map(|placement| placement.zones.iter().cloned().collect()).unwrap_or_default()
    };
    let selector = |spec: &ValkeyNodeSpec| {
        spec.placement.as_ref().map(|placement| placement.node_selector.clone()).unwrap_or_default()
    };
    spec.image != template.image
        || spec.cpu != template.cpu
        || spec.memory != template.memory
        || spec.valkey_settings != template.valkey_settings
        || spec.tls_secret != template.tls_secret
        || zones(spec) != zones(template)
        || selector(spec) != selector(template)
}
