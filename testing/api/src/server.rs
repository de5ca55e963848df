//! The API server under test, with the CRDs of this build on it.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use support::{Cluster, Probe, eventually};
use tokio::sync::OnceCell;

/// How long a CRD may take until it is served: a second as a rule, more on a busy machine.
const SERVED_WITHIN: Duration = Duration::from_mins(1);

/// Where dry runs of namespaced objects go.
const ANY_NAMESPACE: &str = "default";

/// An API server that serves our kinds.
#[derive(Clone)]
pub struct Server {
    /// The cluster.
    pub cluster: Cluster,
}

impl Server {
    /// Connects, and installs the CRDs of this build, once a process.
    ///
    /// # Errors
    ///
    /// No cluster, a refused CRD, or one that is not served in time.
    pub async fn ready() -> Result<Self> {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        let cluster = Cluster::connect().await?;
        INSTALLED.get_or_try_init(|| install(&cluster.client)).await?;
        Ok(Self { cluster })
    }

    /// Access to objects of the kind and namespace that `object` says; `namespace` for one that names none.
    ///
    /// # Errors
    ///
    /// It is no object of ours.
    pub fn api(&self, object: &Value, namespace: &str) -> Result<Api<DynamicObject>> {
        let kind = object.get("kind").and_then(Value::as_str).context("an object without kind")?;
        let crds = shared::api::crds();
        let crd = crds.iter().find(|crd| crd.spec.names.kind == kind).context("a kind that is not ours")?;
        let gvk = GroupVersionKind::gvk(shared::names::GROUP, shared::names::VERSION, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, &crd.spec.names.plural);
        let client = self.cluster.client.clone();
        if crd.spec.scope == "Namespaced" {
            return Ok(Api::namespaced_with(client, namespace, &resource));
        }
        Ok(Api::all_with(client, &resource))
    }

    /// What the server would store for `object`, or why it refuses it. Nothing is stored.
    ///
    /// # Errors
    ///
    /// Anything but an answer about the object.
    pub async fn dry_create(&self, object: &Value) -> Result<std::result::Result<Value, String>> {
        let api = self.api(object, ANY_NAMESPACE)?;
        let params = PostParams { dry_run: true, ..PostParams::default() };
        verdict(api.create(&params, &serde_json::from_value(object.clone())?).await)
    }

    /// Stores `object` in `namespace` (which a cluster-scoped one ignores).
    ///
    /// # Errors
    ///
    /// The server refuses it.
    pub async fn create(&self, object: &Value, namespace: &str) -> Result<Value> {
        let api = self.api(object, namespace)?;
        let stored = api.create(&PostParams::default(), &serde_json::from_value(object.clone())?).await?;
        Ok(serde_json::to_value(stored)?)
    }

    /// What the server would store if the existing object got `patch` (a merge patch), or why it refuses it.
    ///
    /// # Errors
    ///
    /// Anything but an answer about the object.
    pub async fn dry_patch(
        &self,
        stored: &Value,
        patch: &Value,
        status: bool,
    ) -> Result<std::result::Result<Value, String>> {
        self.patch(stored, patch, status, true).await
    }

    /// Changes the status of an existing object by a merge patch.
    ///
    /// # Errors
    ///
    /// The server refuses it.
    pub async fn patch_status(&self, stored: &Value, patch: &Value) -> Result<Value> {
        match self.patch(stored, patch, true, false).await? {
            Ok(stored) => Ok(stored),
            Err(refusal) => bail!("{refusal}"),
        }
    }

    async fn patch(
        &self,
        stored: &Value,
        patch: &Value,
        status: bool,
        dry_run: bool,
    ) -> Result<std::result::Result<Value, String>> {
        let namespace =
            stored.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or(ANY_NAMESPACE);
        let name = stored
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .context("a stored object without name")?;
        let api = self.api(stored, namespace)?;
        let params = PatchParams { dry_run, ..PatchParams::default() };
        let patch = Patch::Merge(patch);
        verdict(if status {
            api.patch_status(name, &params, &patch).await
        } else {
            api.patch(name, &params, &patch).await
        })
    }
}

/// An answer about the object: what would be stored, or the refusal of an invalid one.
fn verdict(answer: kube::Result<DynamicObject>) -> Result<std::result::Result<Value, String>> {
    match answer {
        Ok(object) => Ok(Ok(serde_json::to_value(object)?)),
        Err(kube::Error::Api(status)) if status.is_invalid() || status.code == 400 => {
            Ok(Err(status.message.clone()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Applies the CRDs and waits until each kind can be listed.
async fn install(client: &Client) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in shared::api::crds() {
        let name = crd.name_any();
        let params = PatchParams::apply("test-api").force();
        api.patch(&name, &params, &Patch::Apply(&crd))
            .await
            .with_context(|| format!("the API server refuses the CRD {name}"))?;
    }
    for crd in shared::api::crds() {
        let gvk = GroupVersionKind::gvk(shared::names::GROUP, shared::names::VERSION, &crd.spec.names.kind);
        let kind: Api<DynamicObject> =
            Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&gvk, &crd.spec.names.plural));
        eventually(&format!("{} to be served", crd.spec.names.kind), SERVED_WITHIN, || async {
            Ok(match kind.list(&ListParams::default().limit(1)).await {
                Ok(_) => Probe::Yes(()),
                Err(error) => Probe::NotYet(error.to_string()),
            })
        })
        .await?;
    }
    Ok(())
}
