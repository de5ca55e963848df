//! Objects as a person sees them: JSON by kind and name.
//!
//! Owns the table of kinds that tests touch. Knows nothing of what the objects mean.

use anyhow::{Context as _, Result};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::{ApiGroup, Discovery, Scope, verbs};
use serde_json::Value;

/// Field manager of the tests.
const MANAGER: &str = "end-to-end-tests";

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    group: &'static str,
    version: &'static str,
    /// As in manifests.
    pub name: &'static str,
    plural: &'static str,
    namespaced: bool,
}

impl Kind {
    /// `ValkeyCluster`.
    pub const CLUSTER: Self = Self::valkey("ValkeyCluster", "valkeyclusters", true);
    /// `ValkeyNode`.
    pub const NODE: Self = Self::valkey("ValkeyNode", "valkeynodes", true);
    /// `ValkeyConfig`.
    pub const CONFIG: Self = Self::valkey("ValkeyConfig", "valkeyconfigs", false);
    /// `ValkeyImage`.
    pub const IMAGE: Self = Self::valkey("ValkeyImage", "valkeyimages", false);
    /// `ValkeyRole`.
    pub const ROLE: Self = Self::valkey("ValkeyRole", "valkeyroles", false);
    /// `Pod`.
    pub const POD: Self = Self::core("Pod", "pods", true);
    /// `ConfigMap`.
    pub const CONFIG_MAP: Self = Self::core("ConfigMap", "configmaps", true);
    /// `Secret`.
    pub const SECRET: Self = Self::core("Secret", "secrets", true);
    /// `Service`.
    pub const SERVICE: Self = Self::core("Service", "services", true);
    /// `Namespace`.
    pub const NAMESPACE: Self = Self::core("Namespace", "namespaces", false);
    /// `Deployment`.
    pub const DEPLOYMENT: Self =
        Self { group: "apps", version: "v1", name: "Deployment", plural: "deployments", namespaced: true };
    /// `Event` of events.k8s.io.
    pub const EVENT: Self =
        Self { group: "events.k8s.io", version: "v1", name: "Event", plural: "events", namespaced: true };

    /// The kinds of which the operator makes objects in a namespace.
    pub const MADE: [Self; 5] = [Self::NODE, Self::POD, Self::CONFIG_MAP, Self::SECRET, Self::SERVICE];

    const fn valkey(name: &'static str, plural: &'static str, namespaced: bool) -> Self {
        Self { group: shared::names::GROUP, version: shared::names::VERSION, name, plural, namespaced }
    }

    const fn core(name: &'static str, plural: &'static str, namespaced: bool) -> Self {
        Self { group: "", version: "v1", name, plural, namespaced }
    }

    fn resource(self) -> ApiResource {
        ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk(self.group, self.version, self.name),
            self.plural,
        )
    }

    /// `apiVersion` in a manifest.
    pub fn api_version(self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

/// How the children of a deleted object end.
pub type Propagation = kube::api::PropagationPolicy;

/// Access to the objects of one namespace, and to cluster-scoped ones.
#[derive(Clone)]
pub struct Objects {
    client: Client,
    namespace: String,
}

impl Objects {
    /// Access to `namespace`.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        if kind.namespaced {
            Api::namespaced_with(self.client.clone(), &self.namespace, &kind.resource())
        } else {
            Api::all_with(self.client.clone(), &kind.resource())
        }
    }

    /// The object, if there is one.
    ///
    /// # Errors
    ///
    /// The API server does not answer or refuses.
    pub async fn find(&self, kind: Kind, name: &str) -> Result<Option<Value>> {
        let found =
            self.api(kind).get_opt(name).await.with_context(|| format!("get {} {name}", kind.name))?;
        found.map(serde_json::to_value).transpose().context("object as JSON")
    }

    /// The object, which must exist.
    ///
    /// # Errors
    ///
    /// There is none, or the API server does not answer.
    pub async fn get(&self, kind: Kind, name: &str) -> Result<Value> {
        self.find(kind, name).await?.with_context(|| format!("there is no {} {name}", kind.name))
    }

    /// All objects of the kind whose labels match `selector`; all there are with an empty one.
    ///
    /// # Errors
    ///
    /// The API server does not answer or refuses.
    pub async fn list(&self, kind: Kind, selector: &str) -> Result<Vec<Value>> {
        let params = ListParams::default().labels(selector);
        let list = self.api(kind).list(&params).await.with_context(|| format!("list {}", kind.plural))?;
        list.items.into_iter().map(|item| serde_json::to_value(item).context("object as JSON")).collect()
    }

    /// Every object in the namespace, of every kind that the server lists, with its kind.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn everything(&self) -> Result<Vec<(String, Value)>> {
        let discovery = Discovery::new(self.client.clone()).run().await.context("discover the kinds")?;
        let mut objects = Vec::new();
        for (resource, capabilities) in discovery.groups().flat_map(ApiGroup::recommended_resources) {
            if capabilities.scope != Scope::Namespaced || !capabilities.supports_operation(verbs::LIST) {
                continue;
            }
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
            let list = api.list(&ListParams::default()).await;
            for object in list.with_context(|| format!("list {}", resource.plural))?.items {
                objects.push((resource.kind.clone(), serde_json::to_value(object)?));
            }
        }
        Ok(objects)
    }

    /// Applies a manifest on the server; `kind` and `metadata.name` are read from it.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn apply(&self, kind: Kind, name: &str, body: Value) -> Result<Value> {
        let mut manifest = body;
        merge(
            &mut manifest,
            &serde_json::json!({ "apiVersion": kind.api_version(), "kind": kind.name, "metadata": { "name": name } }),
        );
        let params = PatchParams::apply(MANAGER).force();
        let applied = self
            .api(kind)
            .patch(name, &params, &Patch::Apply(&manifest))
            .await
            .with_context(|| format!("apply {} {name}", kind.name))?;
        serde_json::to_value(applied).context("object as JSON")
    }

    /// Changes fields of an object by a merge patch.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn patch(&self, kind: Kind, name: &str, patch: &Value) -> Result<()> {
        self.api(kind)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("patch {} {name}", kind.name))?;
        Ok(())
    }

    /// Asks for the deletion of an object; one that is gone already is fine.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn delete(&self, kind: Kind, name: &str, propagation: Propagation) -> Result<()> {
        let params = DeleteParams { propagation_policy: Some(propagation), ..DeleteParams::default() };
        self.delete_with(kind, name, &params).await
    }

    /// Deletes a Pod at once, as `kubectl delete --force --grace-period=0` does.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn delete_at_once(&self, kind: Kind, name: &str) -> Result<()> {
        let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.delete_with(kind, name, &params).await
    }

    async fn delete_with(&self, kind: Kind, name: &str, params: &DeleteParams) -> Result<()> {
        match self.api(kind).delete(name, params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error).with_context(|| format!("delete {} {name}", kind.name)),
        }
    }
}

/// Puts `patch` into `value`, objects field by field.
pub fn merge(value: &mut Value, patch: &Value) {
    match (value, patch) {
        (Value::Object(fields), Value::Object(patches)) => {
            for (key, patch) in patches {
                merge(fields.entry(key).or_insert(Value::Null), patch);
            }
        }
        (value, patch) => *value = patch.clone(),
    }
}

/// The value at a JSON pointer, null if there is none.
pub fn at<'a>(object: &'a Value, pointer: &str) -> &'a Value {
    object.pointer(pointer).unwrap_or(&Value::Null)
}

/// The text at a JSON pointer, empty if there is none.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// `metadata.name`.
pub fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// The condition of type `kind` in `status.conditions`.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| text(condition, "/type") == kind)
}

/// Whether the condition of type `kind` has this status.
pub fn condition_is(object: &Value, kind: &str, status: &str) -> bool {
    condition(object, kind).is_some_and(|condition| text(condition, "/status") == status)
}

/// The controller owner's UID.
pub fn controller_uid(object: &Value) -> Option<&str> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    owners
        .iter()
        .find(|owner| owner.pointer("/controller") == Some(&Value::Bool(true)))
        .map(|it| text(it, "/uid"))
}
