//! Pins of what is made, byte for byte: a new release of the operator must not change what a node is by accident.

use std::collections::BTreeMap;

use serde_json::json;
use shared::api::{Placement, ValkeyNode, ZoneSpread};

use super::node;
use crate::{configmap, pod};

fn placed(zone_spread: Option<ZoneSpread>) -> ValkeyNode {
    let mut node = node();
    node.spec.placement = Some(Placement {
        zones: ["b", "a", "b"].map(str::to_owned).to_vec(),
        zone_spread,
        node_selector: BTreeMap::from([("pool".to_owned(), "cache".to_owned())]),
    });
    node
}

#[test]
fn a_plaintext_pod() {
    let annotations = BTreeMap::from([("team.example/owner".to_owned(), "checkout".to_owned())]);
    insta::assert_yaml_snapshot!(pod::build(&node(), &annotations));
}

#[test]
fn a_tls_pod() {
    let mut node = node();
    node.spec.tls_secret = Some("cart-cert".to_owned());
    insta::assert_yaml_snapshot!(pod::build(&node, &BTreeMap::new()));
}

#[test]
fn zones_and_a_required_spread() {
    let spec = pod::build(&placed(Some(ZoneSpread::Required)), &BTreeMap::new()).spec.unwrap();
    insta::assert_yaml_snapshot!((spec.affinity, spec.node_selector, spec.topology_spread_constraints));
}

#[test]
fn a_best_effort_spread_is_the_same_as_none() {
    let spread = |zone_spread| {
        pod::build(&placed(zone_spread), &BTreeMap::new()).spec.unwrap().topology_spread_constraints
    };
    assert_eq!(spread(None), spread(Some(ZoneSpread::BestEffort)));
    assert_ne!(spread(None), spread(Some(ZoneSpread::Required)));
}

#[test]
fn without_resources_there_is_no_limit_and_no_maxmemory() {
    let mut node = node();
    (node.spec.cpu, node.spec.memory) = (None, None);
    let built = pod::build(&node, &BTreeMap::new());
    assert_eq!(built.spec.unwrap().containers[0].resources, None);
    let conf = configmap::build(&node).unwrap().config_map.data.unwrap();
    assert!(!conf["valkey.conf"].contains("maxmemory "), "{}", conf["valkey.conf"]);
}

#[test]
fn a_config_map() {
    insta::assert_yaml_snapshot!(configmap::build(&node()).unwrap().config_map);
}

#[test]
fn a_config_map_names_what_people_set_in_vain() {
    let mut node = node();
    node.spec.valkey_settings.insert("port".to_owned(), "7000".to_owned());
    assert_eq!(configmap::build(&node).unwrap().overridden, ["port"]);
}

#[test]
fn an_undeclared_or_unreadable_version_is_rendered_for_the_oldest_engine() {
    for version in [None, Some("latest"), Some("8.1.4")] {
        let mut node = node();
        node.spec.version = version.map(str::to_owned);
        let conf = configmap::build(&node).unwrap().config_map.data.unwrap();
        assert!(!conf["valkey.conf"].contains("slot-migration"), "{version:?}");
    }
}

#[test]
fn every_pod_passes_the_restricted_standard_and_carries_no_secret() {
    let built = serde_json::to_value(pod::build(&node(), &BTreeMap::new())).unwrap();
    let spec = &built["spec"];
    let container = &spec["containers"][0];
    assert_eq!(spec["securityContext"]["runAsNonRoot"], json!(true));
    assert_eq!(spec["securityContext"]["runAsUser"], json!(999));
    assert_eq!(spec["securityContext"]["seccompProfile"], json!({"type": "RuntimeDefault"}));
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], json!(false));
    assert_eq!(container["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], json!(true));
    assert_eq!(spec["automountServiceAccountToken"], json!(false));
    assert!(!built.to_string().contains("operator-password"));
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert_eq!(mount.get("subPath"), None);
        assert_eq!(mount["readOnly"] == json!(true), mount["name"] != json!("data"), "{mount}");
    }
}
