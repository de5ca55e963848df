//! The NetworkPolicies that people copy, against the Pods that are made: each selects exactly these by their labels, and
//! opens exactly their ports. A label or a port that drifts on either side fails here, where no network would tell.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use shared::names;

use super::node;
use crate::{configmap, pod};

const POLICIES: &str = include_str!("../../../deploy/network-policies.yaml");
const OPERATOR: &str = include_str!("../../../deploy/operator.yaml");
/// The cluster in the manifest.
const CLUSTER: &str = "my-cluster";

type Labels = BTreeMap<String, String>;

fn documents(text: &str) -> Vec<Value> {
    text.split("\n---\n").filter_map(|part| serde_saphyr::from_str::<Option<Value>>(part).unwrap()).collect()
}

fn policy(name: &str) -> Value {
    let named = |it: &Value| it["kind"] == json!("NetworkPolicy") && it["metadata"]["name"] == json!(name);
    documents(POLICIES).into_iter().find(named).unwrap()
}

fn operator() -> Value {
    let deployment = |it: &Value| it["kind"] == json!("Deployment");
    documents(OPERATOR).into_iter().find(deployment).unwrap()
}

fn labels(of: &Value) -> Labels {
    serde_json::from_value(of.clone()).unwrap()
}

/// Whether a selector, which must be one of labels alone and not an empty one, takes a Pod with these labels.
fn takes(selector: &Value, pod: &Labels) -> bool {
    let keys: Vec<&String> = selector.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["matchLabels"], "{selector}");
    let wanted = labels(&selector["matchLabels"]);
    assert!(!wanted.is_empty(), "an empty selector takes every Pod");
    wanted.iter().all(|(key, value)| pod.get(key) == Some(value))
}

/// Labels and ports of a Pod of `cluster`.
fn member(cluster: &str, tls: bool) -> (Labels, BTreeMap<String, i64>) {
    let mut node = node();
    cluster.clone_into(&mut node.spec.cluster_name);
    node.spec.tls_secret = tls.then(|| "certificate".to_owned());
    let built = serde_json::to_value(pod::build(&node, &BTreeMap::new())).unwrap();
    let ports = built["spec"]["containers"][0]["ports"].as_array().unwrap().iter();
    let ports = ports
        .map(|port| (port["name"].as_str().unwrap().to_owned(), port["containerPort"].as_i64().unwrap()))
        .collect();
    (labels(&built["metadata"]["labels"]), ports)
}

/// The ports of a rule, all TCP.
fn ports(rule: &Value) -> BTreeSet<i64> {
    let ports = rule["ports"].as_array().unwrap().iter();
    ports
        .map(|port| {
            assert_eq!(port["protocol"], json!("TCP"), "{rule}");
            port["port"].as_i64().unwrap()
        })
        .collect()
}

fn operator_labels() -> Labels {
    labels(&operator()["spec"]["template"]["metadata"]["labels"])
}

#[test]
fn the_policy_of_a_cluster_is_for_its_members_and_nobody_else() {
    let spec = &policy(CLUSTER)["spec"];
    for tls in [false, true] {
        assert!(takes(&spec["podSelector"], &member(CLUSTER, tls).0), "its members");
    }
    for (what, other) in [
        ("another cluster's", member("my-cluster-1", false).0),
        ("the operator's", operator_labels()),
        ("a client's", labels(&json!({ "my-cluster-client": "true", names::LABEL_INSTANCE: CLUSTER }))),
    ] {
        assert!(!takes(&spec["podSelector"], &other), "{what}");
    }
    assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]), "all else is shut, in both directions");
}

#[test]
fn members_reach_each_other_at_all_their_ports_and_nothing_else() {
    let spec = &policy(CLUSTER)["spec"];
    let egress = spec["egress"].as_array().unwrap();
    assert_eq!(egress.len(), 1);
    for tls in [false, true] {
        let (labels, all) = member(CLUSTER, tls);
        let all: BTreeSet<i64> = all.into_values().collect();
        assert_eq!(all, BTreeSet::from([names::CLIENT_PORT.into(), names::BUS_PORT.into()]));
        for (rule, peers) in [(&spec["ingress"][0], "from"), (&egress[0], "to")] {
            let peers = rule[peers].as_array().unwrap();
            assert_eq!(peers.len(), 1, "{rule}");
            assert!(takes(&peers[0]["podSelector"], &labels) && peers[0]["namespaceSelector"].is_null());
            assert!(!takes(&peers[0]["podSelector"], &member("my-cluster-1", tls).0), "another cluster's");
            assert_eq!(ports(rule), all);
        }
    }
}

#[test]
fn clients_and_the_operator_reach_the_port_of_clients_and_not_the_bus() {
    let spec = &policy(CLUSTER)["spec"];
    let ingress = spec["ingress"].as_array().unwrap();
    assert_eq!(ingress.len(), 3, "members, clients, the operator");
    let client = BTreeSet::from([member(CLUSTER, false).1["valkey"]]);
    for rule in &ingress[1..] {
        assert_eq!(ports(rule), client);
        assert_eq!(rule["from"].as_array().unwrap().len(), 1, "{rule}");
    }
    let from = &ingress[1]["from"][0];
    assert!(takes(&from["podSelector"], &labels(&json!({ "my-cluster-client": "true" }))));
    assert!(from["namespaceSelector"].is_null(), "clients of the namespace alone");
    let from = &ingress[2]["from"][0];
    assert!(takes(&from["podSelector"], &operator_labels()));
    let namespace =
        json!({ "matchLabels": { "kubernetes.io/metadata.name": operator()["metadata"]["namespace"] } });
    assert_eq!(from["namespaceSelector"], namespace);
}

#[test]
fn the_ports_are_those_that_the_server_is_told_to_listen_on() {
    for tls in [false, true] {
        let mut node = node();
        node.spec.tls_secret = tls.then(|| "certificate".to_owned());
        let conf = configmap::build(&node).unwrap().config_map.data.unwrap()[names::KEY_VALKEY_CONF].clone();
        let told: Vec<&str> = conf.lines().filter(|line| line.contains("port ")).collect();
        let client = member(CLUSTER, tls).1["valkey"];
        let listens = format!("{}port {client}", if tls { "tls-" } else { "" });
        assert!(told.contains(&listens.as_str()), "{told:?}");
        assert!(
            told.iter().all(|line| !line.starts_with("cluster-")),
            "the bus is where the engine puts it: {told:?}"
        );
        assert_eq!(member(CLUSTER, tls).1["valkey-bus"], client + 10_000);
    }
}

#[test]
fn the_operator_answers_at_the_ports_of_its_containers_alone() {
    let (policy, deployment) = (policy("valkey-operator"), operator());
    assert!(takes(&policy["spec"]["podSelector"], &operator_labels()));
    assert_eq!(policy["metadata"]["namespace"], deployment["metadata"]["namespace"]);
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]), "what it may reach is left open");
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let (mut declared, mut listened) = (BTreeSet::new(), BTreeSet::new());
    for container in containers {
        for port in container["ports"].as_array().unwrap() {
            declared.insert(port["containerPort"].as_i64().unwrap());
        }
        let address =
            container["env"].as_array().unwrap().iter().find(|it| it["name"] == json!("LISTEN_ADDRESS"));
        let address = address.unwrap()["value"].as_str().unwrap();
        listened.insert(address.rsplit(':').next().unwrap().parse::<i64>().unwrap());
    }
    let ingress = policy["spec"]["ingress"].as_array().unwrap();
    assert_eq!(ingress.len(), 1);
    assert_eq!((ports(&ingress[0]), listened.len()), (listened.clone(), 3));
    assert_eq!(declared, listened);
}
