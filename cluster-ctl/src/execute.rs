//! Carries out one action. Makes no choice: what to do is in the action, whether it may still be done is re-checked
//! where it acts.
//!
//! Before the first command the intent is recorded on the cluster under the resourceVersion that the tick read: of two
//! operators, or of two plans, one gets through. The commands follow within a limit, so that another operator knows when
//! none of them is under way any more.

mod checks;

use futures::StreamExt as _;
use shared::api::{LastAction, Lifecycle, ValkeyCluster, ValkeyClusterStatus};
use shared::names;
use shared::valkey::commands::FailoverKind;
use shared::valkey::report::NodeReport;
use shared::valkey::types::NodeId;

use self::checks::{alone, is, may_forget, may_give, may_hand_over, may_reset, may_take_over, owns_nothing};
use crate::action::{Action, NewNode, NodeRef, Target};
use crate::build;
use crate::model::{Millis, Observed};
use crate::observe::Access;
use crate::plan::failover;
use crate::ports::{
    Check, ClusterKey, ClusterObject, Command, Kube, KubeError, PodUpkeep, SendError, Server, ServerTls,
    Valkey, World,
};

/// Why the rest of an action is not done.
const TOO_LATE: &str = "its intent is too old, another operator may act by now";

/// What came of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every part of it was accepted.
    Done,
    /// The world is not what the plan saw; nothing, or only a part, was done. The next tick looks again.
    Stale(String),
    /// A reply was lost: it may have been done or not. The next tick looks.
    Unknown(String),
}

/// Why an action failed.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// A call to the Kubernetes API failed.
    #[error("{action} failed")]
    Kube {
        /// Kind of the action.
        action: &'static str,
        /// Why.
        #[source]
        source: KubeError,
    },
    /// A server refused the command.
    #[error("{action} on {node} failed")]
    Valkey {
        /// Kind of the action.
        action: &'static str,
        /// The node.
        node: String,
        /// Why.
        #[source]
        source: SendError,
    },
    /// There is nothing to log in with.
    #[error("{action} needs the auth Secret")]
    NoAccess {
        /// Kind of the action.
        action: &'static str,
    },
}

/// What an execution needs besides the action.
pub struct Execution<'a, K, V> {
    /// Kubernetes.
    pub kube: &'a K,
    /// Valkey.
    pub valkey: &'a V,
    /// The Kubernetes half of the observation.
    pub world: &'a World,
    /// The observation that the action was planned on.
    pub seen: &'a Observed,
    /// How to reach servers.
    pub access: Option<&'a Access>,
    /// Whether a command may still be sent: others count on it that none follows its intent by more than a while.
    pub in_time: &'a (dyn Fn() -> bool + Send + Sync),
}

impl<K: Kube, V: Valkey> Execution<'_, K, V> {
    /// Records the intent with `status`; the cluster as it is saved then, or `None` when it has changed meanwhile.
    pub async fn record(
        &self,
        action: &Action,
        mut status: ValkeyClusterStatus,
        now: Millis,
    ) -> Result<Option<ValkeyCluster>, ExecuteError> {
        let kind = action.kind();
        let number = self
            .world
            .cluster
            .status
            .as_ref()
            .and_then(|status| status.last_action.as_ref())
            .map_or(0, |last| last.number);
        status.last_action = Some(LastAction {
            number: number + 1,
            kind: kind.to_owned(),
            on: summary(&action.on()),
            time: build::time(now),
            over: false,
        });
        if let Action::TakeSnapshot { .. } = action {
            status.target_spec = Some(Box::new(self.world.cluster.spec.clone()));
        }
        match self.kube.save_status(&self.world.cluster, &status).await {
            Ok(saved) => Ok(Some(saved)),
            Err(KubeError::Conflict { .. }) => Ok(None),
            Err(source) => Err(ExecuteError::Kube { action: kind, source }),
        }
    }

    /// Acts on the recorded intent.
    pub async fn act(&self, action: &Action) -> Result<Outcome, ExecuteError> {
        match action {
            Action::TakeSnapshot { .. } => Ok(Outcome::Done),
            Action::CreateNodes { nodes, known } => self.create_nodes(nodes, known).await,
            Action::SetConfigEpochs { epochs } => {
                self.send_all(
                    action,
                    epochs.iter().map(|(target, epoch)| (target, Command::SetConfigEpoch(*epoch))),
                    &alone,
                )
                .await
            }
            Action::AssignSlots { slots } => {
                let commands =
                    slots.iter().map(|(target, slots)| (target, Command::AddSlots(slots.ranges().to_vec())));
                self.send_all(action, commands, &|report| self.knows_only_ours(report)).await
            }
            Action::Meet { seed, others } => self.meet(action, seed, others).await,
            Action::Replicate { links } => {
                let commands = links.iter().map(|(target, primary)| (target, Command::Replicate(*primary)));
                self.send_all(action, commands, &owns_nothing).await
            }
            Action::Activate { nodes, clear_join_type, .. } => {
                for node in nodes {
                    if !(self.in_time)() {
                        return Ok(Outcome::Stale(TOO_LATE.to_owned()));
                    }
                    let moved = self.move_lifecycle(node, Lifecycle::Active, *clear_join_type).await;
                    if let Some(outcome) = kube_outcome(action, moved)? {
                        return Ok(outcome);
                    }
                }
                Ok(Outcome::Done)
            }
            Action::MarkLeaving { node } => self.mark_leaving(action, node).await,
            Action::Reset { on } => self.send_all(action, [(on, Command::Reset)], &may_reset).await,
            Action::MigrateSlots { source, target, slots } => {
                let command = Command::MigrateSlots(slots.ranges().to_vec(), target.id);
                self.send_all(action, [(source, command)], &|report| may_give(report, target.id, slots)).await
            }
            Action::Forget { id, on } => {
                let commands = on.iter().map(|target| (target, Command::Forget(*id)));
                self.send_all(action, commands, &|report| may_forget(report, *id)).await
            }
            Action::Failover { kind, on, from } => self.fail_over(action, *kind, on, *from).await,
            Action::DeleteNodes { nodes, .. } => {
                for node in nodes {
                    if !(self.in_time)() {
                        return Ok(Outcome::Stale(TOO_LATE.to_owned()));
                    }
                    let deleted = self.kube.delete_node(self.namespace(), &node.name, &node.uid).await;
                    if let Some(outcome) = kube_outcome(action, deleted)? {
                        return Ok(outcome);
                    }
                }
                Ok(Outcome::Done)
            }
            Action::EndPod { node, pod_uid, .. } => {
                let ended = self.kube.delete_pod(self.namespace(), &node.name, pod_uid).await;
                Ok(kube_outcome(action, ended)?.unwrap_or(Outcome::Done))
            }
            Action::ReleaseCluster => self.release().await,
        }
    }

    async fn fail_over(
        &self,
        action: &Action,
        kind: FailoverKind,
        on: &Target,
        from: NodeId,
    ) -> Result<Outcome, ExecuteError> {
        let check: &Check<'_> = match kind {
            FailoverKind::Planned => &|report| may_hand_over(report, from),
            FailoverKind::Force => &|report| may_take_over(report, from),
            FailoverKind::Takeover => &|report| {
                // A primary that was cut off may have come back since the tick looked.
                if failover::vote_possible(self.seen, report, from) {
                    return Err("a majority can vote again in its view".to_owned());
                }
                may_take_over(report, from)
            },
        };
        self.send_all(action, [(on, Command::Failover(kind))], check).await
    }

    fn fan_out(&self) -> usize {
        self.access.map_or(1, |access| access.fan_out.max(1))
    }

    fn namespace(&self) -> &str {
        &self.seen.cluster.namespace
    }

    async fn move_lifecycle(
        &self,
        node: &NodeRef,
        to: Lifecycle,
        clear_join_type: bool,
    ) -> Result<(), KubeError> {
        self.kube.set_lifecycle(self.namespace(), &node.name, &node.uid, to, clear_join_type).await
    }

    /// Unpublished first: clients must not be sent to a member that is about to go.
    async fn mark_leaving(&self, action: &Action, node: &NodeRef) -> Result<Outcome, ExecuteError> {
        let joined = self
            .seen
            .members
            .get(&node.name)
            .and_then(|member| member.pod.as_ref())
            .is_some_and(|pod| pod.joined);
        if joined && let Some(pod) = self.world.pods.get(&node.name) {
            let change = PodUpkeep { joined: Some(false), ..PodUpkeep::default() };
            if let Some(outcome) = kube_outcome(action, self.kube.upkeep_pod(pod, &change).await)? {
                return Ok(outcome);
            }
        }
        let moved = self.move_lifecycle(node, Lifecycle::Leaving, false).await;
        Ok(kube_outcome(action, moved)?.unwrap_or(Outcome::Done))
    }

    /// Creates the nodes, if the live set of nodes is exactly the one that the plan knew.
    async fn create_nodes(
        &self,
        nodes: &[NewNode],
        known: &std::collections::BTreeSet<String>,
    ) -> Result<Outcome, ExecuteError> {
        let failed = |source| ExecuteError::Kube { action: "CreateNodes", source };
        let live = self.kube.live_nodes(&self.world.cluster).await.map_err(failed)?;
        let live: std::collections::BTreeSet<String> =
            live.into_iter().filter_map(|node| node.metadata.uid).collect();
        if live != *known {
            return Ok(Outcome::Stale("the set of nodes has changed".to_owned()));
        }
        for node in nodes {
            if !(self.in_time)() {
                return Ok(Outcome::Stale(TOO_LATE.to_owned()));
            }
            match self.kube.create_node(&build::node(&self.world.cluster, node)).await {
                Ok(()) => {}
                Err(KubeError::Exists { .. }) => {
                    return Ok(Outcome::Stale(format!("{} exists, drawing again", node.name)));
                }
                Err(source) => return Err(failed(source)),
            }
        }
        Ok(Outcome::Done)
    }

    /// Each target is asked who it is and whether it knows strangers before the seed hears of it: a MEET to another
    /// cluster's node would merge the two.
    async fn meet(&self, action: &Action, seed: &Target, others: &[Target]) -> Result<Outcome, ExecuteError> {
        let mut asked = Vec::new();
        for other in others {
            asked.push((other.node.name.clone(), other.id, self.server(action, other)?));
        }
        let answers: Vec<_> = futures::stream::iter(asked)
            .map(|(name, id, server)| async move { (name, id, self.valkey.report(&server).await) })
            .buffer_unordered(self.fan_out())
            .collect()
            .await;
        for (name, id, answer) in answers {
            match answer {
                Ok(report) => {
                    if let Err(why) = is(id)(&report).and_then(|()| self.knows_only_ours(&report)) {
                        return Ok(Outcome::Stale(format!("{name}: {why}")));
                    }
                }
                Err(source) => return valkey_outcome(action, &name, source.into()),
            }
        }
        let commands = others.iter().map(|other| (seed, Command::Meet(other.ip)));
        self.send_all(action, commands, &|_| Ok(())).await
    }

    async fn release(&self) -> Result<Outcome, ExecuteError> {
        let failed = |source| ExecuteError::Kube { action: "ReleaseCluster", source };
        let key = ClusterKey {
            namespace: self.seen.cluster.namespace.clone(),
            name: self.seen.cluster.name.clone(),
        };
        // Live: the cache may not show yet what was made just before the deletion was asked for.
        if !self.kube.live_nodes(&self.world.cluster).await.map_err(failed)?.is_empty() {
            return Ok(Outcome::Stale("nodes of the cluster are left".to_owned()));
        }
        let like = ClusterObject::Secret(Box::new(build::auth_secret_guard(&self.world.cluster)));
        // Live: the garbage collector may just have taken the owner reference off, when children are to be orphaned.
        let live = self.kube.live_object(&key, &like).await.map_err(failed)?;
        if let Some(ClusterObject::Secret(secret)) = live
            && build::may_release(&secret.metadata, &self.seen.cluster)
            && crate::observe::has_finalizer(&secret.metadata.finalizers, names::AUTH_FINALIZER)
        {
            match self.kube.release_secret(&secret).await {
                Ok(()) | Err(KubeError::NotFound { .. }) => {}
                Err(KubeError::Conflict { .. }) => {
                    return Ok(Outcome::Stale("the auth Secret has changed".to_owned()));
                }
                Err(source) => return Err(failed(source)),
            }
        }
        // The intent has moved the resourceVersion: this write carries none, and touches only our own entry.
        match self.kube.set_cluster_finalizer(&self.world.cluster, false).await {
            Ok(_) | Err(KubeError::NotFound { .. }) => Ok(Outcome::Done),
            Err(KubeError::Conflict { .. }) => Ok(Outcome::Stale("the cluster has changed".to_owned())),
            Err(source) => Err(failed(source)),
        }
    }

    /// Sends one command per target, all at once but bounded; the first that is not accepted decides the outcome.
    async fn send_all<'t>(
        &self,
        action: &Action,
        commands: impl IntoIterator<Item = (&'t Target, Command)>,
        check: &Check<'_>,
    ) -> Result<Outcome, ExecuteError> {
        let mut jobs = Vec::new();
        for (target, command) in commands {
            jobs.push((target.node.name.clone(), target.id, self.server(action, target)?, command));
        }
        let results: Vec<(String, Result<(), SendError>)> = futures::stream::iter(jobs)
            .map(|(name, id, server, command)| async move {
                let check = |report: &NodeReport| {
                    is(id)(report)?;
                    check(report)?;
                    if (self.in_time)() { Ok(()) } else { Err(TOO_LATE.to_owned()) }
                };
                (name, self.valkey.send(&server, &check, &command).await)
            })
            .buffer_unordered(self.fan_out())
            .collect()
            .await;
        let mut outcome = Outcome::Done;
        for (name, result) in results {
            if let Err(error) = result {
                outcome = valkey_outcome(action, &name, error)?;
            }
        }
        Ok(outcome)
    }

    fn server(&self, action: &Action, target: &Target) -> Result<Server, ExecuteError> {
        let access = self.access.ok_or(ExecuteError::NoAccess { action: action.kind() })?;
        let cluster = &self.seen.cluster;
        Ok(Server {
            pod_uid: target.pod_uid.clone(),
            pod: target.node.name.clone(),
            ip: target.ip,
            tls: access.ca_pem.as_ref().map(|ca_pem| ServerTls {
                name: names::pod_host(&target.node.name, &cluster.name, &cluster.namespace),
                ca_pem: ca_pem.clone(),
            }),
            credentials: access.credentials.clone(),
        })
    }

    fn knows_only_ours(&self, report: &NodeReport) -> Result<(), String> {
        let ours = self.seen.ids();
        let stranger = report.nodes.iter().find(|line| !line.flags.handshake && !ours.contains(&line.id));
        stranger.map_or(Ok(()), |line| Err(format!("it knows {}, which is not of this cluster", line.id)))
    }
}

fn valkey_outcome(action: &Action, node: &str, error: SendError) -> Result<Outcome, ExecuteError> {
    match error {
        SendError::Precondition(why) => Ok(Outcome::Stale(format!("{node}: {why}"))),
        SendError::Valkey(source) if source.outcome_unknown() => {
            Ok(Outcome::Unknown(format!("{node}: {}", shared::telemetry::chain(&source))))
        }
        source @ SendError::Valkey(_) => {
            Err(ExecuteError::Valkey { action: action.kind(), node: node.to_owned(), source })
        }
    }
}

fn kube_outcome(action: &Action, result: Result<(), KubeError>) -> Result<Option<Outcome>, ExecuteError> {
    match result {
        Ok(()) => Ok(None),
        Err(error @ (KubeError::Conflict { .. } | KubeError::NotFound { .. } | KubeError::Exists { .. })) => {
            Ok(Some(Outcome::Stale(error.to_string())))
        }
        Err(source) => Err(ExecuteError::Kube { action: action.kind(), source }),
    }
}

/// Names for a person, cut where a field of the API would be too long.
fn summary(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown} and {} more", names.len() - SHOWN) } else { shown }
}
