//! What the types serialise to, and what their CEL rules say, without a server. The rules are proved on a real API
//! server by the `test-api` package; here they are held against the Rust code that relies on them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::conditions::{self, ConditionStatus, ConditionType};
use super::*;

fn cluster(name: &str) -> ValkeyCluster {
    let spec = ValkeyClusterSpec {
        config_ref: "small".into(),
        shards: 3,
        replicas_per_shard: 1,
        ..ValkeyClusterSpec::default()
    };
    ValkeyCluster::new(name, spec)
}

fn node(lifecycle: Lifecycle) -> ValkeyNode {
    let spec = ValkeyNodeSpec {
        cluster_name: "c".into(),
        image: "valkey:9".into(),
        lifecycle,
        ..ValkeyNodeSpec::default()
    };
    ValkeyNode::new("c-12345", spec)
}

fn nulls(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Null => found.push(path.to_owned()),
        Value::Object(members) => {
            members.iter().for_each(|(name, member)| nulls(member, &format!("{path}.{name}"), found));
        }
        Value::Array(entries) => entries.iter().for_each(|entry| nulls(entry, &format!("{path}[]"), found)),
        _ => {}
    }
}

#[test]
fn what_is_unset_is_absent_and_never_null() {
    let mut full = cluster("c");
    full.spec.placement = Some(Placement::default());
    full.spec.acl = vec![AclBinding { permissions: vec![Permission::default()], ..AclBinding::default() }];
    full.status = Some(ValkeyClusterStatus::default());
    let mut joining = node(Lifecycle::Joining);
    joining.status =
        Some(ValkeyNodeStatus { pod: Some(PodRecord::default()), ..ValkeyNodeStatus::default() });
    let config = ValkeyConfigSpec { resources: Some(Resources::default()), ..ValkeyConfigSpec::default() };
    let command = CommandRule { name: "get".into(), subcommand: None, access: Access::Allow };
    let role = ValkeyRoleSpec { categories: Vec::new(), commands: vec![command] };
    for value in [
        serde_json::to_value(full.spec).unwrap(),
        serde_json::to_value(full.status).unwrap(),
        serde_json::to_value(joining.spec).unwrap(),
        serde_json::to_value(joining.status).unwrap(),
        serde_json::to_value(config).unwrap(),
        serde_json::to_value(role).unwrap(),
    ] {
        let mut found = Vec::new();
        nulls(&value, "", &mut found);
        assert_eq!(found, Vec::<String>::new(), "in {value}");
    }
}

#[test]
fn an_unset_acl_and_an_empty_one_are_different() {
    let read = |json: Value| serde_json::from_value::<ValkeyConfigSpec>(json).unwrap().acl;
    assert_eq!(read(json!({})), None);
    assert_eq!(read(json!({ "acl": [] })), Some(Vec::new()));
    let written = serde_json::to_value(ValkeyConfigSpec { acl: Some(Vec::new()), ..Default::default() });
    assert_eq!(written.unwrap(), json!({ "acl": [] }));
}

#[test]
fn enum_values_are_written_exactly_as_documented() {
    assert_eq!(
        json!([Lifecycle::Joining, Lifecycle::Active, Lifecycle::Leaving]),
        json!(["Joining", "Active", "Leaving"])
    );
    assert_eq!(json!([ZoneSpread::BestEffort, ZoneSpread::Required]), json!(["bestEffort", "required"]));
    assert_eq!(
        json!([KeyAccess::Read, KeyAccess::Write, KeyAccess::ReadWrite]),
        json!(["read", "write", "readwrite"])
    );
    assert_eq!(json!([Access::Allow, Access::Deny]), json!(["allow", "deny"]));
    assert_eq!(json!([NodeRole::Primary, NodeRole::Replica]), json!(["primary", "replica"]));
    for state in [ClusterState::Creating, ClusterState::Active, ClusterState::Updating, ClusterState::Invalid]
    {
        assert_eq!(json!(state), json!(state.as_str()));
    }
    for lifecycle in Lifecycle::ALL {
        assert_eq!(json!(lifecycle), json!(lifecycle.as_str()));
    }
    for kind in [JoinType::Replica, JoinType::Primary, JoinType::Shard] {
        assert_eq!(kind.as_str().parse(), Ok(kind));
    }
    assert!("Primary".parse::<JoinType>().is_err());
}

#[test]
fn a_minimal_manifest_gets_the_documented_defaults() {
    let spec: ValkeyNodeSpec =
        serde_json::from_value(json!({ "clusterName": "c", "image": "i:1", "shardIndex": 0 })).unwrap();
    assert_eq!((spec.lifecycle, spec.valkey_settings.len()), (Lifecycle::Active, 0));
    let key: KeyPattern = serde_json::from_value(json!({ "pattern": "*" })).unwrap();
    assert_eq!(key.access, KeyAccess::ReadWrite);
    let status: ValkeyClusterStatus = serde_json::from_value(json!({})).unwrap();
    assert_eq!(status.state, ClusterState::Creating);
}

#[test]
fn the_lifecycle_rule_of_the_crd_agrees_with_the_code() {
    for old in Lifecycle::ALL {
        for new in Lifecycle::ALL {
            let verdict = node(new).validate_cel_update(&node(old));
            assert_eq!(verdict.is_ok(), old.may_become(new), "{old} to {new}: {verdict:?}");
        }
    }
}

/// The name of a field, and a change of it.
type Edit = (&'static str, fn(&mut ValkeyNodeSpec));

#[test]
fn any_field_of_a_node_but_lifecycle_is_immutable() {
    let old = node(Lifecycle::Active);
    let edits: [Edit; 9] = [
        ("clusterName", |spec| spec.cluster_name = "other".into()),
        ("image", |spec| spec.image = "valkey:10".into()),
        ("cpu", |spec| spec.cpu = Some("1".into())),
        ("memory", |spec| spec.memory = Some("1Gi".into())),
        ("version", |spec| spec.version = Some("9".into())),
        ("valkeySettings", |spec| drop(spec.valkey_settings.insert("hz".into(), "10".into()))),
        ("shardIndex", |spec| spec.shard_index = 1),
        ("tlsSecret", |spec| spec.tls_secret = Some("tls".into())),
        ("placement", |spec| spec.placement = Some(Placement::default())),
    ];
    // A field that is added to the spec must be added to the rule, and here.
    let ValkeyNodeSpec {
        cluster_name: _,
        image: _,
        cpu: _,
        memory: _,
        version: _,
        valkey_settings: _,
        shard_index: _,
        tls_secret: _,
        placement: _,
        lifecycle: _,
    } = old.spec.clone();
    for (field, edit) in edits {
        let mut new = old.clone();
        edit(&mut new.spec);
        for (from, to) in [(&old, &new), (&new, &old)] {
            let refused = to.validate_cel_update(from).expect_err(field).to_string();
            assert!(refused.contains("immutable except for lifecycle"), "{field}: {refused}");
        }
    }
    assert!(old.validate_cel_update(&old).is_ok());
}

#[test]
fn tls_may_change_its_secret_but_neither_come_nor_go() {
    let plain = cluster("c");
    let with = |secret: &str| {
        let mut cluster = cluster("c");
        cluster.spec.tls = Some(TlsSpec { secret_ref: secret.into() });
        cluster
    };
    assert!(with("b").validate_cel_update(&with("a")).is_ok());
    assert!(with("a").validate_cel_update(&plain).is_err());
    assert!(plain.validate_cel_update(&with("a")).is_err());
}

#[test]
fn the_longest_legal_name_is_the_one_that_names_are_derived_from() {
    let longest = "c".repeat(crate::names::MAX_CLUSTER_NAME);
    assert!(cluster(&longest).validate_cel().is_ok());
    for name in [&format!("{longest}c"), "1a", "a.b", "a-", "-a"] {
        assert!(cluster(name).validate_cel().is_err(), "{name}");
    }
}

fn at(second: i64) -> Time {
    Time(jiff::Timestamp::from_second(second).unwrap())
}

#[test]
fn a_transition_time_moves_only_when_the_status_does() {
    let next = |previous: &[_], status, message, now| {
        conditions::next(previous, ConditionType::Ready, status, "Why", message, Some(1), &at(now))
    };
    let mut list = Vec::new();
    assert!(conditions::set(&mut list, next(&[], ConditionStatus::False, "a", 1)));
    let same = next(&list, ConditionStatus::False, "a", 2);
    assert!(!conditions::set(&mut list, same), "nothing changed");
    let reworded = next(&list, ConditionStatus::False, "b", 3);
    assert!(conditions::set(&mut list, reworded));
    assert_eq!(list[0].last_transition_time, at(1));
    let flipped = next(&list, ConditionStatus::True, "b", 4);
    assert!(conditions::set(&mut list, flipped));
    assert_eq!((list.len(), &list[0].last_transition_time), (1, &at(4)));
}

#[test]
fn a_long_message_is_cut_between_characters() {
    let message = "ü".repeat(40_000);
    let condition = conditions::next(
        &[],
        ConditionType::Degraded,
        ConditionStatus::True,
        "Lost",
        &format!("a{message}"),
        None,
        &at(0),
    );
    assert_eq!(condition.message.len(), 32_767);
}
