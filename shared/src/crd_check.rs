//! Checks at start that the API server knows our resources, with every field that this release writes.
//!
//! Owns the comparison of our CRDs with the served schema (`OpenAPI` v3, Kubernetes 1.27 and later), which every
//! authenticated client may read: no grant is needed. A CRD older than the operator would silently drop fields: what is
//! wanted would then never equal what is stored.

use std::collections::BTreeSet;

use kube::Client;
use serde_json::Value;

use crate::{api, names};

/// Most fields named in one error.
const MAX_NAMED: usize = 10;

/// Why the operator cannot work with this API server.
#[derive(Debug, thiserror::Error)]
pub enum CrdError {
    /// Resources are not there.
    #[error("the API server does not know {}: apply the release's crds.yaml", missing.join(", "))]
    Missing {
        /// Kinds, in alphabetical order.
        missing: Vec<String>,
    },
    /// Resources are there but older than this operator.
    #[error(
        "the installed CRDs are older than this operator and would drop {}: apply this release's crds.yaml",
        fields.join(", ")
    )]
    Outdated {
        /// Fields such as `ValkeyNode.status.pod.reason`.
        fields: Vec<String>,
    },
    /// The schema could not be read.
    #[error("cannot read the schema of {}/{} from the API server", names::GROUP, names::VERSION)]
    Unreadable(#[source] Box<kube::Error>),
    /// The request could not be built.
    #[error("cannot ask for the schema")]
    Request(#[source] http::Error),
}

/// Compares the served schema with ours.
///
/// # Errors
/// A kind or a field is missing, or the schema cannot be read.
pub async fn check(client: &Client) -> Result<(), CrdError> {
    let path = format!("/openapi/v3/apis/{}/{}", names::GROUP, names::VERSION);
    let request = http::Request::get(path).body(Vec::new()).map_err(CrdError::Request)?;
    let served = match client.request::<Value>(request).await {
        Ok(served) => served,
        // By its code: a document that is not there is answered without a Kubernetes status.
        Err(kube::Error::Api(status)) if status.code == 404 => Value::Null,
        Err(error) => return Err(CrdError::Unreadable(Box::new(error))),
    };
    compare(&served)
}

/// Compares an `OpenAPI` document with our CRDs.
fn compare(served: &Value) -> Result<(), CrdError> {
    let mut missing = BTreeSet::new();
    let mut fields = BTreeSet::new();
    for crd in api::crds() {
        let kind = crd.spec.names.kind;
        let Some(theirs) = schema_of(served, &kind) else {
            missing.insert(kind);
            continue;
        };
        let ours = crd.spec.versions.into_iter().find_map(|version| version.schema?.open_api_v3_schema);
        let ours = serde_json::to_value(ours).unwrap_or_default();
        dropped(&ours, theirs, &kind, &mut fields);
    }
    if !missing.is_empty() {
        return Err(CrdError::Missing { missing: missing.into_iter().collect() });
    }
    if fields.is_empty() {
        return Ok(());
    }
    let more = fields.len().saturating_sub(MAX_NAMED);
    let mut named: Vec<String> = fields.into_iter().take(MAX_NAMED).collect();
    if more > 0 {
        named.push(format!("{more} more"));
    }
    Err(CrdError::Outdated { fields: named })
}

/// The served schema of a kind of ours.
fn schema_of<'a>(served: &'a Value, kind: &str) -> Option<&'a Value> {
    let schemas = served.get("components")?.get("schemas")?.as_object()?;
    schemas.values().find(|schema| {
        let kinds = schema.get("x-kubernetes-group-version-kind").and_then(Value::as_array);
        kinds.into_iter().flatten().any(|named| {
            let is = |key: &str, value: &str| named.get(key).and_then(Value::as_str) == Some(value);
            is("group", names::GROUP) && is("version", names::VERSION) && is("kind", kind)
        })
    })
}

/// Adds each field of `ours` that `theirs` would drop.
fn dropped(ours: &Value, theirs: &Value, path: &str, fields: &mut BTreeSet<String>) {
    if theirs.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        return;
    }
    for (name, ours) in ours.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = format!("{path}.{name}");
        match theirs.get("properties").and_then(|properties| properties.get(name)) {
            // Every object has metadata; the server publishes it as a reference.
            Some(theirs) if name != "metadata" => dropped(ours, theirs, &path, fields),
            Some(_) => {}
            None => {
                fields.insert(path);
            }
        }
    }
    for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let (Some(ours), Some(theirs)) = (ours.get(key), theirs.get(key)) {
            dropped(ours, theirs, &format!("{path}{mark}"), fields);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What a server with exactly our CRDs publishes.
    fn served() -> Value {
        let mut schemas = serde_json::Map::new();
        for crd in api::crds() {
            let kind = crd.spec.names.kind.clone();
            let schema = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema;
            let mut schema = serde_json::to_value(schema).unwrap();
            schema["properties"]["metadata"] = json!({"$ref": "…ObjectMeta"});
            schema["x-kubernetes-group-version-kind"] =
                json!([{"group": names::GROUP, "version": names::VERSION, "kind": kind}]);
            schemas.insert(format!("com.gomomento.valkey.v1alpha1.{kind}"), schema);
        }
        json!({"components": {"schemas": schemas}})
    }

    fn node(served: &mut Value) -> &mut Value {
        &mut served["components"]["schemas"]["com.gomomento.valkey.v1alpha1.ValkeyNode"]
    }

    #[test]
    fn our_own_crds_are_enough() {
        compare(&served()).unwrap();
    }

    #[test]
    fn a_newer_crd_with_more_fields_is_enough() {
        let mut served = served();
        node(&mut served)["properties"]["spec"]["properties"]["later"] = json!({"type": "string"});
        compare(&served).unwrap();
    }

    #[test]
    fn an_empty_server_lacks_all_five_kinds() {
        let error = compare(&Value::Null).unwrap_err().to_string();
        insta::assert_snapshot!(error, @"the API server does not know ValkeyCluster, ValkeyConfig, ValkeyImage, ValkeyNode, ValkeyRole: apply the release's crds.yaml");
    }

    #[test]
    fn a_field_that_would_be_dropped_is_named() {
        let mut served = served();
        let status = &mut node(&mut served)["properties"]["status"]["properties"];
        status["pod"]["properties"].as_object_mut().unwrap().remove("reason");
        let error = compare(&served).unwrap_err().to_string();
        insta::assert_snapshot!(error, @"the installed CRDs are older than this operator and would drop ValkeyNode.status.pod.reason: apply this release's crds.yaml");
    }

    /// A client whose server gives this answer.
    fn client(status: u16, body: &'static str) -> Client {
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| async move {
            let body = kube::client::Body::from(body.as_bytes().to_vec());
            Ok::<_, tower::BoxError>(http::Response::builder().status(status).body(body)?)
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn a_group_that_is_not_served_is_missing_not_unreadable() {
        let error = check(&client(404, "404 page not found\n")).await.unwrap_err();
        assert!(matches!(&error, CrdError::Missing { missing } if missing.len() == 5), "{error:?}");
    }

    #[tokio::test]
    async fn a_server_in_trouble_is_unreadable() {
        let error = check(&client(500, "internal error")).await.unwrap_err();
        assert!(matches!(error, CrdError::Unreadable(_)), "{error:?}");
    }
}
