//! One pass for one node: look at the caches, decide; where the step needs it look again live and decide anew; do.
//!
//! Owns the order look → decide → do and nothing of the three. At rest a pass costs no request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::try_join;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use shared::api::ValkeyNode;
use shared::names;

use crate::execute::{self, ExecuteError, Next};
use crate::meta;
use crate::observe::{self, Observed, Owner};
use crate::plan::{Refusal, Step, plan};
use crate::ports::{CallError, Key, Kube};

/// Most steps of one pass: finalizer, ConfigMap, Pod, its record and release after a lost reply, and one to spare. The rest waits for the next pass.
const MAX_STEPS: usize = 6;
/// A pass without an event: the net under a watch that died silently. Costs no request.
pub const AT_REST: Duration = Duration::from_mins(5);
/// What blocks may end without an event of ours: somebody else's object is deleted.
pub const WHILE_BLOCKED: Duration = Duration::from_secs(15);

/// One look at a node: the object in hand, what it means, and what only a live look knows.
#[derive(Debug, Clone)]
pub struct Look {
    /// The node.
    pub node: Arc<ValkeyNode>,
    /// Its cluster's `podAnnotations`, from a live look.
    pub annotations: BTreeMap<String, String>,
    /// What is known.
    pub seen: Observed,
}

impl Look {
    /// A look at what the caches hold.
    pub fn cached(node: Arc<ValkeyNode>, pod: Option<&Pod>, config_map: Option<&ObjectMeta>) -> Self {
        let owner = if meta::cluster_of(&node).is_some() { Owner::Unread } else { Owner::Nobody };
        let seen = observe::observe(&node, pod, config_map, owner);
        Self { node, annotations: BTreeMap::new(), seen }
    }

    /// A look at what the API server holds now; `None` when this very node is gone.
    async fn live<K: Kube>(kube: &K, of: &ValkeyNode) -> Result<Option<Self>, CallError> {
        let key = key_of(of);
        let named = meta::cluster_of(of);
        let cluster = async {
            match named {
                Some((name, _)) => kube.cluster(&key.sibling(name)).await,
                None => Ok(None),
            }
        };
        let config_map = key.sibling(names::node_config_map(&key.name));
        let (node, pod, config_map, cluster) =
            try_join!(kube.node(&key), kube.pod(&key), kube.config_map(&config_map), cluster)?;
        let Some(node) = node.filter(|node| node.uid() == of.uid()) else { return Ok(None) };
        let owner = execute::owner(named, cluster.as_ref());
        let seen = observe::observe(&node, pod.as_ref(), config_map.as_ref(), owner);
        let annotations = cluster.map(|cluster| cluster.spec.pod_annotations).unwrap_or_default();
        Ok(Some(Self { node: Arc::new(node), annotations, seen }))
    }
}

/// One pass. `stop` says whether the process was asked to end: then no new step starts, but that a process has ended is
/// still recorded, because nobody may be able to tell it later. `done` is told each step.
/// Returns when to look again without an event.
///
/// # Errors
/// A call failed; the next pass starts from what is there then.
pub async fn reconcile<K: Kube>(
    kube: &K,
    cached: Look,
    stop: impl Fn() -> bool,
    done: impl Fn(&Step),
) -> Result<Duration, ExecuteError> {
    let mut look = cached;
    let mut live = false;
    for _ in 0..MAX_STEPS {
        let step = plan(&look.seen);
        if stop() && !matches!(step, Step::RecordPod(_)) {
            return Ok(AT_REST);
        }
        if step.needs_live() && !live {
            let Some(now) = Look::live(kube, &look.node).await? else { return Ok(AT_REST) };
            (look, live) = (now, true);
            continue;
        }
        if matches!(step, Step::Refuse(Refusal::NameTaken(_)))
            && release_orphan(kube, &key_of(&look.node)).await?
        {
            let Some(now) = Look::live(kube, &look.node).await? else { return Ok(AT_REST) };
            look = now;
            continue;
        }
        let next = execute::execute(kube, &look, &step).await?;
        done(&step);
        match next {
            Next::Idle => return Ok(AT_REST),
            Next::Blocked => return Ok(WHILE_BLOCKED),
            Next::Again => {
                let Some(now) = Look::live(kube, &look.node).await? else { return Ok(AT_REST) };
                (look, live) = (now, true);
            }
        }
    }
    // Something undoes our steps as fast as we take them: go on, but not in a hot loop.
    Ok(Duration::from_secs(1))
}

fn key_of(node: &ValkeyNode) -> Key {
    Key::new(node.namespace().unwrap_or_default(), node.name_any())
}

/// Takes our finalizer off the Pod of this name if the node that it was made for is gone: a create that was under way
/// when another took the node away, so that nobody recorded the Pod and it could never go. Whether it did.
///
/// # Errors
/// A call failed; nothing else but the finalizer can have been touched.
pub async fn release_orphan<K: Kube>(kube: &K, of: &Key) -> Result<bool, CallError> {
    let Some(pod) = kube.pod(of).await? else { return Ok(false) };
    let Some(owner) = orphan_of(&pod).map(str::to_owned) else { return Ok(false) };
    // After the Pod: a UID that is gone never comes back.
    if kube.node(of).await?.is_some_and(|node| node.uid() == Some(owner)) {
        return Ok(false);
    }
    kube.release_pod(of, &pod.uid().unwrap_or_default()).await?;
    tracing::info!(pod = of.name, namespace = of.namespace, "released the Pod of a node that is gone");
    Ok(true)
}

/// The UID of the node that a Pod was made for, if our finalizer holds the Pod: what to look at when that node is not there.
pub fn orphan_of(pod: &Pod) -> Option<&str> {
    let held = pod.finalizers().iter().any(|name| name == names::POD_FINALIZER);
    let owner = meta::controller_of(&pod.metadata).filter(|_| held)?;
    let of_node = owner.kind == ValkeyNode::kind(&())
        && owner.api_version == ValkeyNode::api_version(&())
        && Some(&owner.name) == pod.metadata.name.as_ref();
    of_node.then_some(owner.uid.as_str())
}
