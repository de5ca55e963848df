//! The tick: observe → plan → gate → execute, with upkeep and status beside it. Glue only: decides nothing itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shared::api::ValkeyCluster;
use shared::events::Notice;
use shared::names;
use shared::secret::{RandomError, Redacted};
use shared::settings::Settings;
use shared::valkey::client::Credentials;
use tracing::{debug, info, warn};

use crate::action::{Action, Decision, Pace};
use crate::build;
use crate::desired;
use crate::execute::{ExecuteError, Execution, Outcome};
use crate::model::{Desired, Millis, Objects, Observed, Ownership};
use crate::observe::{Access, has_finalizer, observe};
use crate::plan::{plan, safety};
use crate::ports::{ClusterKey, Host, Kube, KubeError, Valkey, World};
use crate::status;
use crate::upkeep::{nodes, objects, pods};
use crate::words::Reason;

/// Digits of a generated password: 512 bits.
const PASSWORD_DIGITS: usize = 128;
/// Times a fresh node name is drawn again when taken, per needed name, before the tick gives up.
const NAME_DRAWS: usize = 4;

/// Why a tick failed. It is retried with back-off.
#[derive(Debug, thiserror::Error)]
pub enum TickError {
    /// The world could not be read, or a record not be written.
    #[error(transparent)]
    Kube(#[from] KubeError),
    /// Cluster-level objects could not be kept right.
    #[error(transparent)]
    Objects(#[from] objects::ObjectError),
    /// The action failed.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// No random numbers for names.
    #[error("drawing names failed")]
    Random(#[from] RandomError),
}

/// When the next tick is due, unless something wakes the cluster before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// After this time; zero means at once.
    After(Duration),
    /// The cluster is gone.
    Gone,
}

/// What ticks of all clusters share.
pub struct Context<K, V, H> {
    /// Kubernetes.
    pub kube: K,
    /// Valkey.
    pub valkey: V,
    /// Time and chance.
    pub host: H,
    /// Settings.
    pub settings: Settings,
    memory: Mutex<BTreeMap<ClusterKey, Memory>>,
}

/// What is remembered of a cluster between ticks. Losing it costs a wait or a repeated message, never safety.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// Our latest write of the cluster, and the resourceVersions that it supersedes: the cache may still show those.
    saved: Option<Arc<ValkeyCluster>>,
    superseded: Vec<String>,
    /// What was told last.
    told: Option<(Reason, String)>,
}

impl<K: Kube, V: Valkey, H: Host> Context<K, V, H> {
    /// A context with nothing remembered.
    pub fn new(kube: K, valkey: V, host: H, settings: Settings) -> Self {
        Self { kube, valkey, host, settings, memory: Mutex::default() }
    }

    /// One tick of one cluster: at most one mutating action.
    pub async fn tick(&self, key: &ClusterKey) -> Result<Next, TickError> {
        let Some(mut world) = self.kube.world(key).await? else {
            self.memory().remove(key);
            return Ok(Next::Gone);
        };
        self.prefer_own_write(key, &mut world);
        let deleting = world.cluster.metadata.deletion_timestamp.is_some();
        if !deleting && !has_finalizer(&world.cluster.metadata.finalizers, names::CLUSTER_FINALIZER) {
            self.kube.set_cluster_finalizer(&world.cluster, true).await.or_else(stale_is_fine)?;
            return Ok(Next::After(self.pace(Pace::Quick)));
        }
        let resolution = desired::resolve(&world);
        let objects = if deleting { unneeded() } else { self.keep_objects(key, &world).await? };
        let access = self.access(&world);
        let mut seen =
            observe(&self.kube, &self.valkey, &world, objects, access.as_ref(), self.host.now()).await?;
        let wanted_names = seen.cluster.snapshot.map_or(1, crate::model::Shape::members).max(1);
        let names = self.draw_names(key, &world, wanted_names)?;
        let mut want = desired::desired(&world, &resolution, names, self.settings.default_zone_spread);
        let mut revision = None;
        if !deleting && let Some(passwords) = desired::passwords(&world) {
            let engine = desired::acl_engine(&seen, &resolution);
            let file = desired::acl_file(&world, &resolution, &passwords, engine);
            seen.objects.acl = objects::acl(&self.kube, key, &world, file.as_ref().ok()).await?;
            revision = file.as_ref().ok().map(|file| file.revision.clone());
            want.acl = file.map(|_| ());
        }
        if !deleting {
            nodes::record_ids(&self.kube, &world, &seen, self.fan_out()).await?;
        }
        let decision = Self::gate(plan(&seen, &want), &seen);
        self.tell(key, &world.cluster, &decision).await;
        let next = self.carry_out(key, &world, &seen, &want, access.as_ref(), &decision).await?;
        if !deleting && decision.pace != Pace::Now {
            nodes::show(&self.kube, &world, &seen, self.fan_out()).await?;
            pods::keep(&self.kube, &world, &seen, revision.as_deref(), self.fan_out()).await?;
        }
        Ok(next)
    }

    /// Service and Secret; the ACL ConfigMap follows once the passwords are known.
    async fn keep_objects(&self, key: &ClusterKey, world: &World) -> Result<Objects, TickError> {
        let draw = || self.host.random_hex(PASSWORD_DIGITS).map(Redacted::new);
        Ok(Objects {
            service: objects::service(&self.kube, key, world).await?,
            auth: objects::auth_secret(&self.kube, key, world, draw).await?,
            acl: Ownership::Missing,
        })
    }

    /// The last gate. A refusal is shown, not executed.
    fn gate(decision: Decision, seen: &Observed) -> Decision {
        let Some(action) = &decision.action else { return decision };
        match safety::check(action, seen) {
            Ok(()) => decision,
            Err(violation) => {
                let message = format!("{} refused by the safety gate: {violation}", action.kind());
                Decision::wait(Reason::SafetyRefused, message, Pace::Wait)
            }
        }
    }

    /// Executes the action, if any, and shows the status.
    async fn carry_out(
        &self,
        key: &ClusterKey,
        world: &World,
        seen: &Observed,
        want: &Desired,
        access: Option<&Access>,
        decision: &Decision,
    ) -> Result<Next, TickError> {
        let now = build::time(seen.now);
        let status = status::derive(&world.cluster, seen, want, decision, &now);
        let Some(action) = &decision.action else {
            if !status::same(world.cluster.status.as_ref(), &status) {
                match self.kube.save_status(&world.cluster, &status).await {
                    Ok(saved) => self.remember(key, &world.cluster, saved),
                    Err(KubeError::Conflict { .. } | KubeError::NotFound { .. }) => {
                        return Ok(Next::After(self.pace(Pace::Quick)));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            return Ok(Next::After(self.pace(decision.pace)));
        };
        let execution = Execution { kube: &self.kube, valkey: &self.valkey, world, seen, access };
        let (outcome, saved) = execution.run(action, status, seen.now).await?;
        if let Some(saved) = saved {
            self.remember(key, &world.cluster, saved);
        }
        match outcome {
            Outcome::Done => Ok(Next::After(self.pace(decision.pace))),
            Outcome::Stale(why) => {
                debug!(cluster_name = %key.name, namespace = %key.namespace, reason = %Reason::StaleView, why, "looking again");
                Ok(Next::After(self.pace(Pace::Quick)))
            }
            Outcome::Unknown(why) => {
                warn!(cluster_name = %key.name, namespace = %key.namespace, why, "a reply was lost, looking again");
                Ok(Next::After(self.pace(Pace::Quick)))
            }
        }
    }

    /// Logs and events: each action once, each wait when it changes.
    async fn tell(&self, key: &ClusterKey, cluster: &ValkeyCluster, decision: &Decision) {
        let (reason, detail) = (decision.reason, decision.message.as_str());
        if let Some(action) = &decision.action {
            log_action(key, action, decision);
            if !matches!(action, Action::TakeSnapshot { .. }) {
                self.kube.notify(cluster, &Notice::normal(reason.as_str(), action.kind(), detail)).await;
            }
        }
        let told = Some((reason, detail.to_owned()));
        let news = {
            let mut memory = self.memory();
            let entry = memory.entry(key.clone()).or_default();
            let news = entry.told != told;
            entry.told = told;
            news
        };
        if !news || decision.action.is_some() {
            return;
        }
        match decision.waits.iter().find(|wait| wait.reason.is_obstacle()) {
            Some(wait) => {
                warn!(cluster_name = %key.name, namespace = %key.namespace, reason = %wait.reason, detail = %wait.message, "{}", wait_message(wait.reason));
                self.kube
                    .notify(cluster, &Notice::warning(wait.reason.as_str(), "Wait", wait.message.as_str()))
                    .await;
            }
            None => {
                info!(cluster_name = %key.name, namespace = %key.namespace, reason = %reason, detail, "waiting");
            }
        }
    }

    fn access(&self, world: &World) -> Option<Access> {
        let passwords = desired::passwords(world)?;
        let uid = world.cluster.metadata.uid.as_deref().unwrap_or_default();
        let ours = world.auth.as_ref().is_some_and(|secret| build::owned_by(&secret.metadata, uid));
        ours.then(|| Access {
            credentials: Arc::new(Credentials {
                user: names::USER_OPERATOR.to_owned(),
                password: passwords.operator,
            }),
            ca_pem: None,
            fan_out: self.fan_out(),
        })
    }

    /// `count` node names that no node of the cluster has.
    fn draw_names(&self, key: &ClusterKey, world: &World, count: usize) -> Result<Vec<String>, RandomError> {
        let taken = |name: &String| world.nodes.iter().any(|node| node.metadata.name.as_ref() == Some(name));
        let mut names: Vec<String> = Vec::with_capacity(count);
        for _ in 0..count.saturating_mul(NAME_DRAWS) {
            if names.len() == count {
                break;
            }
            let name = names::node(&key.name, &self.host.random_hex(names::NODE_SUFFIX_LEN)?);
            if !taken(&name) && !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn pace(&self, pace: Pace) -> Duration {
        match pace {
            Pace::Now => Duration::ZERO,
            Pace::Quick => self.settings.wait_requeue / 5,
            Pace::Wait => self.settings.wait_requeue,
            Pace::Heartbeat => self.settings.heartbeat,
        }
    }

    fn fan_out(&self) -> usize {
        usize::from(self.settings.node_fan_out)
    }

    fn memory(&self) -> MutexGuard<'_, BTreeMap<ClusterKey, Memory>> {
        // Each change under the lock is whole: what a panic elsewhere left is still right.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses our own latest write instead of an older state that the cache still shows.
    fn prefer_own_write(&self, key: &ClusterKey, world: &mut World) {
        let mut memory = self.memory();
        let Some(entry) = memory.get_mut(key) else { return };
        let cached = world.cluster.metadata.resource_version.as_ref();
        match &entry.saved {
            Some(saved) if cached.is_some_and(|version| entry.superseded.contains(version)) => {
                world.cluster = Arc::clone(saved);
            }
            _ => {
                entry.saved = None;
                entry.superseded.clear();
            }
        }
    }

    fn remember(&self, key: &ClusterKey, before: &ValkeyCluster, saved: ValkeyCluster) {
        let mut memory = self.memory();
        let entry = memory.entry(key.clone()).or_default();
        entry.superseded.extend(before.metadata.resource_version.clone());
        entry.saved = Some(Arc::new(saved));
    }
}

fn log_action(key: &ClusterKey, action: &Action, decision: &Decision) {
    let on = action.on().join(",");
    let (kind, reason, detail) = (action.kind(), decision.reason, &decision.message);
    let message = match action {
        Action::Meet { .. } => "cluster meet issued",
        Action::Activate { .. } if detail.starts_with("cluster formed") => {
            "cluster formed, transitioning to Active"
        }
        Action::Activate { .. } => "completed join",
        Action::Failover { kind: shared::valkey::commands::FailoverKind::Takeover, .. } => {
            "no quorum — issued TAKEOVER on replica"
        }
        _ => "action",
    };
    info!(cluster_name = %key.name, namespace = %key.namespace, action = kind, reason = %reason, on, detail, "{message}");
}

/// The message that people search for, by reason.
fn wait_message(reason: Reason) -> &'static str {
    match reason {
        Reason::PodUnschedulable => "bootstrap blocked: pod cannot be scheduled",
        Reason::AwaitingFailover => "primary unhealthy but replicas exist, waiting for auto-failover",
        Reason::TlsInvalid => "TLS Secret validation failed, setting cluster Invalid",
        _ => "waiting",
    }
}

/// While a cluster is being deleted its objects are not needed and not kept.
fn unneeded() -> Objects {
    Objects { service: Ownership::Missing, auth: Ownership::Missing, acl: Ownership::Missing }
}

fn stale_is_fine(error: KubeError) -> Result<(), KubeError> {
    match error {
        KubeError::Conflict { .. } | KubeError::NotFound { .. } => Ok(()),
        error => Err(error),
    }
}

/// Milliseconds since the Unix epoch of a `Timestamp`.
impl From<jiff::Timestamp> for Millis {
    fn from(time: jiff::Timestamp) -> Self {
        Self(time.as_millisecond())
    }
}
