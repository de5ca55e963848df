//! The shape of requests, and what is made of objects.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::Value;
use shared::api::conditions::ConditionStatus;

use super::*;

/// What a request said.
#[derive(Debug, Clone)]
struct Sent {
    line: String,
    content_type: String,
    body: Value,
}

/// A client whose server answers everything with `answer` and keeps what it was sent.
fn client(answer: &Value) -> (Client, Arc<Mutex<Vec<Sent>>>) {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let (kept, answer) = (Arc::clone(&sent), answer.to_string());
    let service = tower::service_fn(move |request: Request<Body>| {
        let (kept, answer) = (Arc::clone(&kept), answer.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let content_type =
                head.headers.get("content-type").map(|value| value.to_str().unwrap().to_owned());
            kept.lock().unwrap().push(Sent {
                line: format!("{} {}", head.method, head.uri),
                content_type: content_type.unwrap_or_default(),
                body: serde_json::from_slice(&body).unwrap_or_default(),
            });
            Ok::<_, Infallible>(Response::new(Body::from(answer.into_bytes())))
        }
    });
    (Client::new(service, "default"), sent)
}

fn seen(conditions: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>) -> ClusterSeen {
    ClusterSeen {
        key: ClusterKey(ObjectKey { namespace: "ns".to_owned(), name: "c".to_owned() }),
        uid: "uid-c".to_owned(),
        version: Some("5".to_owned()),
        generation: Some(4),
        conditions,
        tls_secret: None,
        nodes: Vec::new(),
    }
}

fn cluster_answer() -> Value {
    json!({
        "apiVersion": "valkey.gomomento.com/v1alpha1", "kind": "ValkeyCluster",
        "metadata": { "name": "c", "namespace": "ns" },
        "spec": { "configRef": "x", "shards": 1, "replicasPerShard": 0 },
    })
}

fn verdict(message: &str) -> Verdict {
    Verdict { status: ConditionStatus::True, reason: "Applied", message: message.to_owned() }
}

const KIND: ConditionType = ConditionType::AclApplied;

#[tokio::test]
async fn a_condition_is_applied_once_by_its_own_manager_and_not_again() {
    let (client, sent) = client(&cluster_answer());
    let cluster = seen(Vec::new());
    assert!(write_condition(&client, &cluster, KIND, &verdict("on 1 of 1"), "us/acl").await.unwrap());
    let first = sent.lock().unwrap().pop().unwrap();
    assert_eq!(
        first.line,
        "PATCH /apis/valkey.gomomento.com/v1alpha1/namespaces/ns/valkeyclusters/c/status?&force=true&fieldManager=us%2Facl"
    );
    assert_eq!(first.content_type, "application/apply-patch+yaml");
    assert_eq!(first.body["metadata"]["uid"], "uid-c");
    assert_eq!(
        first.body["metadata"]["resourceVersion"], "5",
        "a UID alone is ignored in an apply of a status"
    );
    let conditions = &first.body["status"]["conditions"];
    assert_eq!(conditions.as_array().unwrap().len(), 1, "others' conditions are not ours to apply");
    assert_eq!(
        (&conditions[0]["type"], &conditions[0]["observedGeneration"]),
        (&json!("ACLApplied"), &json!(4))
    );

    let stored = serde_json::from_value(conditions.clone()).unwrap();
    let same = seen(stored);
    assert!(!write_condition(&client, &same, KIND, &verdict("on 1 of 1"), "us/acl").await.unwrap());
    assert!(sent.lock().unwrap().is_empty(), "nothing differs, so nothing is written");

    assert!(write_condition(&client, &same, KIND, &verdict("on 2 of 2"), "us/acl").await.unwrap());
    let second = sent.lock().unwrap().pop().unwrap();
    let since = |sent: &Sent| sent.body["status"]["conditions"][0]["lastTransitionTime"].clone();
    assert_eq!(since(&second), since(&first), "the status did not change");
}

fn config_map(text: &str, accepted: Option<&str>, owner_uid: &str) -> ConfigMap {
    serde_json::from_value(json!({
        "metadata": {
            "name": "c-acl", "namespace": "ns", "uid": "uid-map", "resourceVersion": "7",
            "annotations": { names::ANNOTATION_ACL_REFUSED: refusal::record("older", "ERR x") },
            "ownerReferences": [{
                "apiVersion": "v", "kind": "ValkeyCluster", "name": "c", "uid": owner_uid, "controller": true,
            }],
        },
        "data": { "users.acl": text, "users.acl.accepted": accepted },
    }))
    .unwrap()
}

fn file() -> acl::AclFile {
    let hash = [acl::PasswordHash::of(&Redacted::new("x".to_owned()))];
    acl::render(&acl::AclInput {
        config: &[],
        cluster: &[],
        roles: &BTreeMap::new(),
        operator_passwords: &hash,
        repl_passwords: &hash,
        engine: shared::valkey::EngineVersion::new(9, 1, 2),
    })
    .unwrap()
}

#[test]
fn a_config_map_is_read_only_as_what_it_proves_to_be() {
    let file = file();
    let map = acl_map_of(&config_map(&file.text, Some(&file.text), "uid-c"), "uid-c");
    let published = map.published.unwrap();
    assert_eq!((published.revision, published.accepted), (file.revision.clone(), true));
    assert_eq!((published.refused.as_deref(), published.fits_twice), (Some("older"), true));
    let published =
        |text: &str, owner| acl_map_of(&config_map(text, Some("older"), owner), "uid-c").published;
    assert!(!published(&file.text, "uid-c").unwrap().accepted);
    assert_eq!(published(&file.text, "uid-of-another"), Err(Unpublished::Foreign));
    assert_eq!(published(&file.text.replace("+ping", "+@all"), "uid-c"), Err(Unpublished::Malformed));
    assert_eq!(published("", "uid-c"), Err(Unpublished::Malformed));
}

#[tokio::test]
async fn an_acceptance_replaces_the_copy_and_drops_the_refusal() {
    let file = file();
    let map = acl_map_of(&config_map(&file.text, Some("older"), "uid-c"), "uid-c");
    let (client, sent) = client(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {} }));
    write_record(&client, &seen(Vec::new()).key, &map, &Record::Accepted).await.unwrap();
    let sent = sent.lock().unwrap().pop().unwrap();
    assert!(sent.line.contains("/namespaces/ns/configmaps/c-acl?"), "{}", sent.line);
    assert!(sent.line.contains("fieldManager=valkey-operator%2Freconcile-loops"), "{}", sent.line);
    assert_eq!(sent.body["data"], json!({ "users.acl.accepted": file.text }));
    assert_eq!(sent.body["metadata"], json!({ "name": "c-acl", "uid": "uid-map", "annotations": {} }));
}

#[tokio::test]
async fn a_refusal_names_the_revision_and_keeps_the_accepted_copy() {
    let file = file();
    let map = acl_map_of(&config_map(&file.text, Some("older"), "uid-c"), "uid-c");
    let (client, sent) = client(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {} }));
    let record = Record::Refused { words: "ERR line 2".to_owned() };
    write_record(&client, &seen(Vec::new()).key, &map, &record).await.unwrap();
    let sent = sent.lock().unwrap().pop().unwrap();
    assert_eq!(sent.body["data"], json!({ "users.acl.accepted": "older" }), "left out it would be removed");
    let note = sent.body["metadata"]["annotations"][names::ANNOTATION_ACL_REFUSED].as_str().unwrap();
    assert_eq!(
        (refusal::revision(note), refusal::words(note)),
        (Some(file.revision.as_str()), Some("ERR line 2"))
    );
}

#[tokio::test]
async fn the_operators_login_comes_from_the_clusters_own_secret_only() {
    let secret = |owner: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": "c-operator-auth", "ownerReferences": [
                { "apiVersion": "v", "kind": "ValkeyCluster", "name": "c", "uid": owner, "controller": true },
            ] },
            "data": { "operator-password": "c2VjcmV0" },
        })
    };
    let cluster = seen(Vec::new());
    let login = operator_credentials(&client(&secret("uid-c")).0, &cluster).await.unwrap();
    assert_eq!((login.user.as_str(), login.password.expose().as_str()), (names::USER_OPERATOR, "secret"));
    assert!(!format!("{login:?}").contains("secret"));
    let foreign = operator_credentials(&client(&secret("another")).0, &cluster).await;
    assert!(matches!(foreign, Err(SecretError::Foreign { .. })));
}

/// A client whose server refuses `conflicts` writes, and in between shows the cluster `live`.
fn contended(conflicts: usize, live: Value) -> (Client, Arc<Mutex<Vec<Sent>>>) {
    let sent: Arc<Mutex<Vec<Sent>>> = Arc::default();
    let kept = Arc::clone(&sent);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (kept, live) = (Arc::clone(&kept), live.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let writing = head.method == http::Method::PATCH;
            let mut kept = kept.lock().unwrap();
            let writes = kept.iter().filter(|sent| sent.line == "PATCH").count();
            let refused = writing && writes < conflicts;
            kept.push(Sent {
                line: head.method.to_string(),
                content_type: String::new(),
                body: serde_json::from_slice(&body).unwrap_or_default(),
            });
            let conflict = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "changed", "reason": "Conflict", "code": 409 });
            let (status, answer) = if refused { (409, conflict) } else { (200, live) };
            Ok::<_, Infallible>(
                Response::builder().status(status).body(Body::from(answer.to_string().into_bytes())).unwrap(),
            )
        }
    });
    (Client::new(service, "default"), sent)
}

fn live(uid: &str, version: &str) -> Value {
    let mut cluster = cluster_answer();
    cluster["metadata"]["uid"] = json!(uid);
    cluster["metadata"]["resourceVersion"] = json!(version);
    cluster
}

#[tokio::test]
async fn a_condition_that_lost_a_race_is_written_on_the_live_version() {
    let (client, sent) = contended(1, live("uid-c", "9"));
    assert!(write_condition(&client, &seen(Vec::new()), KIND, &verdict("x"), "us/acl").await.unwrap());
    let sent = sent.lock().unwrap();
    let versions: Vec<&Value> = sent
        .iter()
        .filter(|sent| sent.line == "PATCH")
        .map(|sent| &sent.body["metadata"]["resourceVersion"])
        .collect();
    assert_eq!(versions, ["5", "9"]);
}

#[tokio::test]
async fn a_namesake_that_came_after_the_cluster_gets_no_condition_of_it() {
    let (client, sent) = contended(usize::MAX, live("uid-of-another", "9"));
    assert!(!write_condition(&client, &seen(Vec::new()), KIND, &verdict("x"), "us/acl").await.unwrap());
    assert_eq!(sent.lock().unwrap().iter().filter(|sent| sent.line == "PATCH").count(), 1);
}

#[tokio::test]
async fn a_status_that_is_always_written_by_somebody_else_is_left_to_the_next_pass() {
    let (client, sent) = contended(usize::MAX, live("uid-c", "9"));
    assert!(write_condition(&client, &seen(Vec::new()), KIND, &verdict("x"), "us/acl").await.is_err());
    assert_eq!(sent.lock().unwrap().iter().filter(|sent| sent.line == "PATCH").count(), WRITES);
}

#[tokio::test]
async fn authorities_are_recorded_by_the_tls_loops_own_manager_and_nothing_else_of_the_secret_is_named() {
    let (client, sent) = client(&json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": { "name": "c-operator-auth" },
    }));
    let record = AuthorityRecord { proved: "old".to_owned(), pending: "new".to_owned() };
    write_authorities(&client, &seen(Vec::new()), "uid-secret", &record).await.unwrap();
    let sent = sent.lock().unwrap().pop().unwrap();
    assert_eq!(
        sent.line,
        "PATCH /api/v1/namespaces/ns/secrets/c-operator-auth?&force=true&fieldManager=valkey-operator%2Freconcile-loops-tls"
    );
    assert_eq!(sent.content_type, "application/apply-patch+yaml");
    // With the UID a Secret that was made anew is a conflict, and one that is gone is not made.
    assert_eq!(sent.body["metadata"], json!({ "name": "c-operator-auth", "uid": "uid-secret" }));
    assert_eq!(sent.body["data"], json!({ "ca.crt.proved": "b2xk", "ca.crt.pending": "bmV3" }));
}

#[tokio::test]
async fn authorities_are_read_from_the_clusters_own_auth_secret_alone() {
    let secret = |owner: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": "c-operator-auth", "uid": "uid-secret",
                "ownerReferences": [{
                    "apiVersion": "v", "kind": "ValkeyCluster", "name": "c", "uid": owner, "controller": true,
                }],
            },
            "data": { "operator-password": "eA==" },
        })
    };
    let (ours, _) = client(&secret("uid-c"));
    let read = recorded(&ours, &seen(Vec::new())).await.unwrap();
    assert_eq!(read, Recorded { uid: "uid-secret".to_owned(), record: None }, "nothing is recorded yet");
    let (others, _) = client(&secret("uid-of-another"));
    let refused = recorded(&others, &seen(Vec::new())).await.unwrap_err();
    assert!(matches!(refused, SecretError::Foreign { .. }), "{refused}");
}
