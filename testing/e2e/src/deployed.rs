//! A `ValkeyCluster`: how it is asked for, and what can be waited for.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use shared::slots::SLOT_COUNT;
use support::{Probe, eventually};

use crate::objects::{self, Kind, Propagation, at, condition, condition_is, text};
use crate::scene::Scene;

/// A cluster before it exists.
pub struct Blueprint<'a> {
    scene: &'a Scene,
    name: String,
    shards: usize,
    replicas: usize,
    spec: Value,
}

impl<'a> Blueprint<'a> {
    pub(crate) fn new(scene: &'a Scene, name: &str, shards: usize, replicas: usize) -> Self {
        let spec = json!({ "configRef": scene.name, "shards": shards, "replicasPerShard": replicas });
        Self { scene, name: name.to_owned(), shards, replicas, spec }
    }

    /// Sets further fields of the spec, or others.
    #[must_use]
    pub fn with(mut self, fields: &Value) -> Self {
        objects::merge(&mut self.spec, fields);
        self
    }

    /// Applies it.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn create(self) -> Result<Deployed<'a>> {
        let Self { scene, name, shards, replicas, spec } = self;
        let tls = spec.get("tls").is_some();
        let made = scene.objects.apply(Kind::CLUSTER, &name, json!({ "spec": spec })).await?;
        let uid = text(&made, "/metadata/uid").to_owned();
        Ok(Deployed { scene, uid, name, shards, replicas, tls, login: None })
    }
}

/// A cluster that was asked for.
pub struct Deployed<'a> {
    /// Where it is.
    pub scene: &'a Scene,
    /// Its name.
    pub name: String,
    /// UID of the `ValkeyCluster`.
    pub uid: String,
    /// Shards asked for.
    pub shards: usize,
    /// Replicas of each shard asked for.
    pub replicas: usize,
    /// Its members speak TLS.
    pub tls: bool,
    /// As whom clients log in, and with which password; none: as the default user, without one.
    pub login: Option<(String, String)>,
}

impl Deployed<'_> {
    /// Members asked for.
    pub fn members(&self) -> usize {
        self.shards * (1 + self.replicas)
    }

    /// The options with which valkey-cli in the client Pod reaches its members; with TLS the Pod has to be told whom to
    /// trust first, by [`Scene::trust`].
    pub fn client_options(&self) -> String {
        let tls = if self.tls { format!("--tls --cacert {}", crate::tls::TRUSTED) } else { String::new() };
        let login = self.login.as_ref();
        let login = login.map(|(user, word)| format!("--user {user} --pass {word} --no-auth-warning"));
        [tls, login.unwrap_or_default()].join(" ")
    }

    /// The labels that select what belongs to it.
    pub fn selector(&self) -> String {
        format!("app.kubernetes.io/name=valkey,app.kubernetes.io/instance={}", self.name)
    }

    /// The `ValkeyCluster`.
    ///
    /// # Errors
    ///
    /// It is gone, or the API server does not answer.
    pub async fn object(&self) -> Result<Value> {
        self.scene.objects.get(Kind::CLUSTER, &self.name).await
    }

    /// Objects of a kind that carry its labels.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn list(&self, kind: Kind) -> Result<Vec<Value>> {
        self.scene.objects.list(kind, &self.selector()).await
    }

    /// Changes fields of the spec.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn edit(&self, spec: &Value) -> Result<()> {
        self.scene.objects.patch(Kind::CLUSTER, &self.name, &json!({ "spec": spec })).await
    }

    /// Asks for its deletion.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn delete(&self, propagation: Propagation) -> Result<()> {
        self.scene.objects.delete(Kind::CLUSTER, &self.name, propagation).await
    }

    /// Waits until `holds` of the `ValkeyCluster`.
    ///
    /// # Errors
    ///
    /// Not within `limit`: the text has the last status.
    pub async fn until(&self, what: &str, limit: Duration, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        let what = format!("{}: {what}", self.name);
        eventually(&what, limit, || async {
            let object = self.object().await?;
            Ok(if holds(&object) { Probe::Yes(object) } else { Probe::NotYet(describe(&object)) })
        })
        .await
    }

    /// Waits until the status says that all is done: everything that a person could look at says so.
    ///
    /// # Errors
    ///
    /// Not within `limit`.
    pub async fn settled(&self, limit: Duration) -> Result<Value> {
        let ready = format!("{0}/{0}", self.members());
        self.until("to settle", limit, |object| {
            let status = at(object, "/status");
            condition_is(object, "Ready", "True")
                && condition_is(object, "Progressing", "False")
                && condition_is(object, "Degraded", "False")
                && at(status, "/observedGeneration") == at(object, "/metadata/generation")
                && *at(status, "/state") == "Active"
                && *at(status, "/ready") == *ready
                && at(status, "/readyNodes") == self.members()
                && at(status, "/slotsAssigned") == SLOT_COUNT
                && at(status, "/shards") == self.shards
                && at(status, "/nodes").as_array().is_some_and(|nodes| nodes.len() == self.members())
                && at(status, "/targetSpec").is_null()
                && at(status, "/message").is_null()
        })
        .await
    }

    /// Waits until `status.message` contains `words`.
    ///
    /// # Errors
    ///
    /// Not within `limit`.
    pub async fn says(&self, words: &str, limit: Duration) -> Result<Value> {
        self.until(&format!("to say {words:?}"), limit, |object| {
            text(object, "/status/message").contains(words)
        })
        .await
    }

    /// Waits until there are exactly as many objects of each kind as the cluster needs, each with a living owner.
    ///
    /// # Errors
    ///
    /// Not within `limit`: the text names what is too much or too little.
    pub async fn tidy(&self, limit: Duration) -> Result<()> {
        eventually(&format!("{} to have nothing left over", self.name), limit, || async {
            let mut owners = BTreeSet::from([self.uid.clone()]);
            let mut odd = Vec::new();
            for kind in Kind::MADE {
                let found = self.list(kind).await?;
                let wanted = match kind {
                    Kind::NODE | Kind::POD => self.members(),
                    Kind::CONFIG_MAP => self.members() + 1,
                    _ => 1,
                };
                if found.len() != wanted {
                    odd.push(format!("{} of kind {}, not {wanted}", found.len(), kind.name));
                }
                let orphans = found
                    .iter()
                    .filter(|it| objects::controller_uid(it).is_none_or(|owner| !owners.contains(owner)));
                odd.extend(
                    orphans.map(|it| format!("{} {} has no living owner", kind.name, objects::name(it))),
                );
                if kind == Kind::NODE {
                    owners.extend(found.iter().map(|node| text(node, "/metadata/uid").to_owned()));
                }
            }
            Ok(Probe::of(odd.is_empty(), odd.join("; ")))
        })
        .await
    }

    /// Waits until nothing carries its labels any more.
    ///
    /// # Errors
    ///
    /// Not within `limit`: the text names what is left.
    pub async fn gone(&self, limit: Duration) -> Result<()> {
        eventually(&format!("{} to be gone", self.name), limit, || async {
            let mut left = Vec::new();
            if self.scene.objects.find(Kind::CLUSTER, &self.name).await?.is_some() {
                left.push(format!("ValkeyCluster {}", self.name));
            }
            for kind in Kind::MADE {
                let found = self.list(kind).await?;
                left.extend(found.iter().map(|object| format!("{} {}", kind.name, objects::name(object))));
            }
            Ok(Probe::of(left.is_empty(), format!("{} left: {}", left.len(), left.join(", "))))
        })
        .await
    }
}

/// A status in a line.
fn describe(object: &Value) -> String {
    let status = at(object, "/status");
    let conditions: Vec<String> = ["Ready", "Progressing", "Degraded", "ReferencesResolved"]
        .iter()
        .filter_map(|kind| condition(object, kind))
        .map(|it| {
            format!(
                "{}={} {}: {}",
                text(it, "/type"),
                text(it, "/status"),
                text(it, "/reason"),
                text(it, "/message")
            )
        })
        .collect();
    format!(
        "state {}, ready {}, slots {}, message {}, conditions [{}]",
        at(status, "/state"),
        at(status, "/ready"),
        at(status, "/slotsAssigned"),
        at(status, "/message"),
        conditions.join("; ")
    )
}
