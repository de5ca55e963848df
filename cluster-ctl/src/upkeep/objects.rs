//! Service, auth Secret and ACL ConfigMap of a cluster. Ours are kept as they should be; somebody else's object of the
//! same name is reported and left alone.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use shared::names;
use shared::secret::{RandomError, Redacted};
use tracing::info;

use crate::build;
use crate::model::Ownership;
use crate::observe::has_finalizer;
use crate::passwords::{Pair, Passwords};
use crate::ports::{ClusterKey, ClusterObject, Kube, KubeError, World};

/// Why the cluster-level objects could not be kept right.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// A call to the Kubernetes API failed.
    #[error("keeping the cluster's objects right failed")]
    Kube(#[from] KubeError),
    /// The system gave no random numbers for the passwords.
    #[error("drawing passwords failed")]
    Random(#[from] RandomError),
}

/// Ensures the headless Service.
pub async fn service<K: Kube>(kube: &K, key: &ClusterKey, world: &World) -> Result<Ownership, ObjectError> {
    let wanted = build::service(&world.cluster);
    let differs = world.service.as_ref().is_some_and(|have| {
        let ports = |service: &k8s_openapi::api::core::v1::Service| -> Vec<(Option<String>, i32)> {
            let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
            ports.map(|port| (port.name.clone(), port.port)).collect()
        };
        let spec = |service: &k8s_openapi::api::core::v1::Service| {
            service
                .spec
                .as_ref()
                .map(|spec| (spec.selector.clone(), spec.publish_not_ready_addresses.unwrap_or(false)))
        };
        ports(have) != ports(&wanted)
            || spec(have) != spec(&wanted)
            || lacks_labels(&have.metadata, &wanted.metadata)
    });
    if world.service.is_none() {
        info!(cluster_name = %key.name, namespace = %key.namespace, "creating headless Service");
    }
    let meta = world.service.as_ref().map(|have| &have.metadata);
    ensure(kube, key, world, meta, differs, || Ok(ClusterObject::Service(Box::new(wanted)))).await
}

/// Ensures the auth Secret. Once a cluster has nodes, a missing one is not made anew: fresh passwords would lock the
/// operator out of them; see [`restore_secret`].
pub async fn auth_secret<K: Kube>(
    kube: &K,
    key: &ClusterKey,
    world: &World,
    draw: impl Fn() -> Result<Redacted<String>, RandomError>,
) -> Result<Ownership, ObjectError> {
    if world.auth.is_none() && !world.nodes.is_empty() {
        return Ok(Ownership::Missing);
    }
    let meta = world.auth.as_ref().map(|have| &have.metadata);
    let unguarded = meta.is_some_and(|meta| {
        meta.deletion_timestamp.is_none() && !has_finalizer(&meta.finalizers, names::AUTH_FINALIZER)
    });
    ensure(kube, key, world, meta, unguarded, || {
        // Ours, unguarded: only metadata is applied, the passwords stay as they are.
        if world.auth.is_some() {
            return Ok(ClusterObject::Secret(Box::new(build::auth_secret_guard(&world.cluster))));
        }
        let fresh = Passwords::fresh(Pair::draw(draw)?, requested_rotation(world));
        Ok(ClusterObject::Secret(Box::new(build::auth_secret(&world.cluster, &fresh))))
    })
    .await
}

/// Token of the rotation of passwords that a person asked for.
pub fn requested_rotation(world: &World) -> Option<&str> {
    let annotations = world.cluster.metadata.annotations.as_ref()?;
    annotations.get(names::ANNOTATION_ROTATE_PASSWORDS).map(String::as_str)
}

/// Makes a lost auth Secret anew from passwords that a node has just accepted.
pub async fn restore_secret<K: Kube>(
    kube: &K,
    world: &World,
    passwords: &Passwords,
) -> Result<(), ObjectError> {
    let secret = ClusterObject::Secret(Box::new(build::auth_secret(&world.cluster, passwords)));
    match kube.create_object(&secret).await {
        Ok(()) | Err(KubeError::Exists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Ensures the ACL ConfigMap with `users_acl`; without one (something does not resolve) the published file stays.
pub async fn acl<K: Kube>(
    kube: &K,
    key: &ClusterKey,
    world: &World,
    users_acl: Option<&str>,
) -> Result<Ownership, ObjectError> {
    let meta = world.acl.as_ref().map(|have| &have.metadata);
    let Some(users_acl) = users_acl else {
        let ours = meta.is_some_and(|meta| build::owned_by(meta, uid(world)));
        return Ok(if ours { Ownership::Ours } else { Ownership::Missing });
    };
    let published = world
        .acl
        .as_ref()
        .and_then(|have| have.data.as_ref())
        .and_then(|data| data.get(names::KEY_USERS_ACL));
    let differs = published.map(String::as_str) != Some(users_acl);
    ensure(kube, key, world, meta, differs, || {
        Ok(ClusterObject::ConfigMap(Box::new(build::acl_config_map(&world.cluster, users_acl))))
    })
    .await
}

async fn ensure<K: Kube>(
    kube: &K,
    key: &ClusterKey,
    world: &World,
    cached: Option<&ObjectMeta>,
    differs: bool,
    wanted: impl FnOnce() -> Result<ClusterObject, RandomError>,
) -> Result<Ownership, ObjectError> {
    if let Some(meta) = cached {
        if !build::owned_by(meta, uid(world)) {
            return Ok(foreign(meta, "an object"));
        }
        if differs {
            let wanted = wanted()?;
            if may_hold(kube, world, &wanted).await? {
                kube.apply_object(&wanted).await?;
            }
        }
        return Ok(Ownership::Ours);
    }
    let wanted = wanted()?;
    // The caches select by our labels: only a live read tells that the name is taken by somebody else.
    if let Some(live) = kube.live_object(key, &wanted).await? {
        let (meta, kind) = live.meta();
        return Ok(if build::owned_by(meta, uid(world)) { Ownership::Ours } else { foreign(meta, kind) });
    }
    if !may_hold(kube, world, &wanted).await? {
        return Ok(Ownership::Missing);
    }
    match kube.create_object(&wanted).await {
        // Not `Ours` yet: a node is made only after the object was seen.
        Ok(()) | Err(KubeError::Exists { .. }) => Ok(Ownership::Missing),
        Err(error) => Err(error.into()),
    }
}

/// Whether the object may be written. One that holds itself by a finalizer may only while the cluster is not to go: another
/// process may have released it and then the cluster, of which this one's cache knows nothing yet, and nobody would ever
/// take the finalizer off again.
async fn may_hold<K: Kube>(kube: &K, world: &World, object: &ClusterObject) -> Result<bool, KubeError> {
    if object.meta().0.finalizers.is_none() {
        return Ok(true);
    }
    // The cluster has its finalizer already: this changes nothing and says how it is now.
    match kube.set_cluster_finalizer(&world.cluster, true).await {
        Ok(now) => Ok(now.metadata.deletion_timestamp.is_none()),
        Err(KubeError::Conflict { .. } | KubeError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn foreign(meta: &ObjectMeta, kind: &str) -> Ownership {
    let name = meta.name.as_deref().unwrap_or_default();
    Ownership::Foreign(format!(
        "{kind} named \"{name}\" exists and does not belong to this cluster; it is left alone: remove or rename it"
    ))
}

fn uid(world: &World) -> &str {
    world.cluster.metadata.uid.as_deref().unwrap_or_default()
}

fn lacks_labels(have: &ObjectMeta, wanted: &ObjectMeta) -> bool {
    let have = have.labels.clone().unwrap_or_default();
    wanted.labels.iter().flatten().any(|(key, value)| have.get(key) != Some(value))
}
