//! One pass for one node: look at the caches, decide; where the step needs it look again live and decide anew; do.
//!
//! Owns the order look → decide → do and nothing of the three. At rest a pass costs no request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::try_join;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use shared::api::ValkeyNode;
use shared::names;

use crate::execute::{self, ExecuteError, Next};
use crate::meta;
use crate::observe::{self, Observed, Owner};
use crate::plan::{Step, plan};
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
        let key = Key::new(of.namespace().unwrap_or_default(), of.name_any());
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

/// One pass. `stop` says whether the process was asked to end: then no new step starts. `done` is told each step.
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
        if stop() {
            return Ok(AT_REST);
        }
        if step.needs_live() && !live {
            let Some(now) = Look::live(kube, &look.node).await? else { return Ok(AT_REST) };
            (look, live) = (now, true);
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
