//! Does one step: a few calls, no decisions. What the caches cannot know the step's preconditions guard.

use kube::ResourceExt;
use shared::conf::ConfError;
use shared::events::Notice;
use shared::names;
use tracing::{info, warn};

use crate::observe::Owner;
use crate::plan::{Refusal, Step};
use crate::ports::{CallClass, CallError, Created, Key, Kube};
use crate::reconcile::Look;
use crate::{configmap, pod};

/// Event reason: a name that the node needs is taken.
pub const REASON_NAME_TAKEN: &str = "NameTaken";
/// Event reason: a setting cannot be written to valkey.conf.
pub const REASON_INVALID_SETTING: &str = "InvalidSetting";
/// Event reason: the API server refused the Pod or the ConfigMap.
pub const REASON_CREATE_REFUSED: &str = "CreateRefused";
/// Event reason: the node has no cluster, or a second Pod.
pub const REASON_INCONSISTENT: &str = "Inconsistent";
/// Event reason: settings that people wrote have no effect.
pub const REASON_OVERRIDDEN: &str = "SettingsOverridden";
/// Event reason: the Pod was created.
pub const REASON_POD_CREATED: &str = "PodCreated";
/// Event reason: the Pod was told to stop.
pub const REASON_POD_DELETED: &str = "PodDeleted";

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// valkey.conf cannot be rendered.
    #[error("cannot render valkey.conf")]
    Render(#[source] ConfError),
}

/// What follows a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Look again at once, live: the step changed what is there.
    Again,
    /// Nothing to do until an event.
    Idle,
    /// Nothing to do, but what blocks may end without an event.
    Blocked,
}

/// Does one step.
///
/// # Errors
/// A call failed; what happened is found out by the next look.
pub async fn execute<K: Kube>(kube: &K, look: &Look, step: &Step) -> Result<Next, ExecuteError> {
    let node = &look.node;
    let key = Key::new(node.namespace().unwrap_or_default(), node.name_any());
    match step {
        Step::AddFinalizer => {
            let mut finalizers = node.finalizers().to_vec();
            finalizers.push(names::NODE_FINALIZER.to_owned());
            kube.set_finalizers(node, finalizers).await?;
            Ok(Next::Again)
        }
        Step::RecordPod(record) => {
            if let Some(at) = &record.terminated_at {
                info!(
                    terminated_at = %at.0,
                    exit_code = record.exit_code,
                    reason = record.reason.as_deref(),
                    "container terminated"
                );
            }
            kube.record_pod(node, record).await?;
            Ok(Next::Again)
        }
        Step::CreateConfigMap => create_config_map(kube, look).await,
        Step::CreatePod => create_pod(kube, look, &key).await,
        Step::ReleasePod { uid } => {
            kube.release_pod(&key, uid).await?;
            Ok(Next::Again)
        }
        Step::DeletePod { uid, grace } => {
            info!(uid, grace = grace.map(u64::from), "deleting Pod of node");
            kube.delete_pod(&key, uid, *grace).await?;
            let note = format!("Pod {} (UID {uid}) was told to stop: its node goes", key.name);
            kube.tell(node, Notice::normal(REASON_POD_DELETED, "DeletePod", note)).await;
            Ok(Next::Idle)
        }
        Step::DeleteConfigMap { uid } => {
            kube.delete_config_map(&key.sibling(names::node_config_map(&key.name)), uid).await?;
            Ok(Next::Again)
        }
        Step::RemoveFinalizer => {
            let others = node.finalizers().iter().filter(|name| *name != names::NODE_FINALIZER);
            kube.set_finalizers(node, others.cloned().collect()).await?;
            info!("node is gone");
            Ok(Next::Idle)
        }
        Step::Refuse(refusal) => {
            refuse(kube, look, refusal).await;
            Ok(Next::Blocked)
        }
        Step::Wait(_) => Ok(Next::Blocked),
        Step::Rest => Ok(Next::Idle),
    }
}

async fn create_config_map<K: Kube>(kube: &K, look: &Look) -> Result<Next, ExecuteError> {
    let node = &look.node;
    let rendered = match configmap::build(node) {
        Ok(rendered) => rendered,
        Err(error) => {
            let notice = Notice::failure(REASON_INVALID_SETTING, "RenderConfig", &error);
            kube.tell_change(node, notice).await;
            return Err(ExecuteError::Render(error));
        }
    };
    info!("creating ConfigMap for node");
    told_refusal(kube, look, "CreateConfigMap", kube.create_config_map(&rendered.config_map).await).await?;
    if !rendered.overridden.is_empty() {
        let note = format!(
            "these settings have no effect, the operator sets them itself: {}",
            rendered.overridden.join(", ")
        );
        kube.tell_change(node, Notice::normal(REASON_OVERRIDDEN, "RenderConfig", note)).await;
    }
    Ok(Next::Again)
}

async fn create_pod<K: Kube>(kube: &K, look: &Look, key: &Key) -> Result<Next, ExecuteError> {
    let node = &look.node;
    let pod = pod::build(node, &look.annotations);
    info!(image = node.spec.image, "creating Pod for node");
    let created = told_refusal(kube, look, "CreatePod", kube.create_pod(&pod).await).await?;
    let Created::New(uid) = created else {
        // Ours whose reply was lost, or another's: the next look tells them apart.
        return Ok(Next::Again);
    };
    // At once: until then the Pod cannot go, whoever deletes it.
    let record = shared::api::PodRecord { uid, ..shared::api::PodRecord::default() };
    kube.record_pod(node, &record).await?;
    kube.release_pod(key, &record.uid).await?;
    for reason in [REASON_NAME_TAKEN, REASON_CREATE_REFUSED, REASON_INVALID_SETTING, REASON_INCONSISTENT] {
        kube.tell_ended(node, reason);
    }
    let note = format!("Pod {} was created (UID {})", node.name_any(), record.uid);
    kube.tell(node, Notice::normal(REASON_POD_CREATED, "CreatePod", note)).await;
    Ok(Next::Idle)
}

/// Passes a create's outcome on; where the API server refused the object itself, people are told first.
async fn told_refusal<K: Kube>(
    kube: &K,
    look: &Look,
    action: &str,
    outcome: Result<Created, CallError>,
) -> Result<Created, CallError> {
    if let Err(error) = &outcome
        && error.class == CallClass::Refused
    {
        kube.tell_change(&look.node, Notice::failure(REASON_CREATE_REFUSED, action, error)).await;
    }
    outcome
}

async fn refuse<K: Kube>(kube: &K, look: &Look, refusal: &Refusal) {
    let node = &look.node;
    let (reason, note) = match refusal {
        Refusal::NameTaken(whose) => (
            REASON_NAME_TAKEN,
            format!(
                "{whose}, not to this node: nothing is touched. Delete or rename it, or delete this node"
            ),
        ),
        Refusal::SecondPod(uid) => (
            REASON_INCONSISTENT,
            format!("a second Pod (UID {uid}) of this node exists: nothing is touched. Delete this node"),
        ),
        Refusal::NoCluster => (
            REASON_INCONSISTENT,
            format!(
                "the node is not controlled by a ValkeyCluster named {:?}: no Pod is made. Nodes are made by the \
                 operator only",
                node.spec.cluster_name
            ),
        ),
    };
    if kube.tell_change(node, Notice::warning(reason, "Refuse", note.clone())).await {
        warn!(reason, note, "refused");
    }
}

/// Whether an error is only that the object changed meanwhile.
pub fn is_conflict(error: &ExecuteError) -> bool {
    matches!(error, ExecuteError::Call(CallError { class: CallClass::Conflict, .. }))
}

/// The owner as a live read shows it.
pub fn owner(named: Option<(&str, &str)>, found: Option<&shared::api::ValkeyCluster>) -> Owner {
    match (named, found) {
        (None, _) => Owner::Nobody,
        (Some(_), None) => Owner::Gone,
        (Some((_, uid)), Some(cluster)) if cluster.uid().as_deref() != Some(uid) => Owner::Gone,
        (Some(_), Some(cluster)) if cluster.metadata.deletion_timestamp.is_some() => Owner::Deleting,
        (Some(_), Some(_)) => Owner::Present,
    }
}
