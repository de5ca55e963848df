//! The tick: observe → plan → gate → execute, with upkeep and status beside it. Glue only: decides nothing itself.

mod access;
mod prepare;

use std::time::Duration;

use shared::backoff::Backoff;
use shared::names;
use shared::secret::{RandomError, Redacted};
use shared::settings::Settings;
use tracing::{debug, warn};

use self::prepare::Prepared;
use crate::action::{Action, Decision, Pace};
use crate::ages;
use crate::build;
use crate::desired;
use crate::execute::{ExecuteError, Execution, Outcome};
use crate::machines;
use crate::memory::Memory;
use crate::metrics::ClusterMetrics;
use crate::model::{Desired, Millis, Objects, Observed, Ownership};
use crate::observe::{Access, has_finalizer, observe};
use crate::passwords::Passwords;
use crate::plan::{plan, safety};
use crate::ports::{ClusterKey, Host, Kube, KubeError, Valkey, World};
use crate::rotation;
use crate::status;
use crate::tell::{tell_action, tell_rotation, tell_wait, tell_warnings};
use crate::upkeep::rotation::{Rotated, RotationError};
use crate::upkeep::{self, nodes, objects, pods};
use crate::words::Reason;

/// Digits of a generated password: 512 bits.
const PASSWORD_DIGITS: usize = 128;
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
    /// The passwords could not be rotated.
    #[error(transparent)]
    Rotation(#[from] RotationError),
    /// No random numbers for names.
    #[error("drawing names failed")]
    Random(#[from] RandomError),
}

impl TickError {
    fn namespace_is_ending(&self) -> bool {
        let error = match self {
            Self::Kube(error)
            | Self::Objects(objects::ObjectError::Kube(error))
            | Self::Rotation(RotationError::Kube(error))
            | Self::Execute(ExecuteError::Kube { source: error, .. }) => error,
            Self::Objects(_) | Self::Execute(_) | Self::Rotation(_) | Self::Random(_) => return false,
        };
        matches!(error, KubeError::NamespaceEnding { .. })
    }
}

/// When the next tick is due, unless something wakes the cluster before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// After this time; zero means at once.
    After(Duration),
    /// The cluster is gone.
    Gone,
}

/// How a tick ended.
enum End {
    /// As it should: the next is due then.
    Next(Next),
    /// What was to be written has changed since the cache saw it: nothing is right to do until the watch shows that.
    Outdated,
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
    /// What is counted.
    pub metrics: ClusterMetrics,
    memory: Memory,
}

impl<K: Kube, V: Valkey, H: Host> Context<K, V, H> {
    /// A context with nothing remembered.
    pub fn new(kube: K, valkey: V, host: H, settings: Settings, metrics: ClusterMetrics) -> Self {
        Self { kube, valkey, host, settings, metrics, memory: Memory::default() }
    }

    /// One tick of one cluster: at most one mutating action. In a namespace that is being deleted it ends quietly.
    pub async fn tick(&self, key: &ClusterKey) -> Result<Next, TickError> {
        match self.act(key).await {
            Err(error) if error.namespace_is_ending() => Ok(Next::After(self.pace(Pace::Wait))),
            Ok(End::Outdated) => {
                let pause = self.until_seen(self.memory.outdated(key));
                let (reason, why) = (Reason::StaleView, "the cluster has changed");
                debug!(cluster_name = %key.name, namespace = %key.namespace, %reason, why, ?pause, "looking again");
                Ok(Next::After(pause))
            }
            Ok(End::Next(next)) => {
                self.memory.up_to_date(key);
                Ok(next)
            }
            Err(error) => Err(error),
        }
    }

    /// How long to wait for the watch to show what has changed, after so many ticks in a row that it had not. It wakes
    /// the cluster when it does. Where it lags because the API server is busy, asking again and again would keep it so.
    fn until_seen(&self, ticks: u32) -> Duration {
        Backoff::new(self.pace(Pace::Quick), self.settings.heartbeat).ceiling(ticks)
    }

    async fn act(&self, key: &ClusterKey) -> Result<End, TickError> {
        let Some(mut world) = self.kube.world(key).await? else {
            self.gone(key);
            return Ok(End::Next(Next::Gone));
        };
        self.memory.prefer_own_write(key, &mut world);
        let rest = self.commands_end_in(key, &world);
        if world.cluster.metadata.deletion_timestamp.is_some() {
            return self.tick_deletion(key, &world, rest).await;
        }
        if !has_finalizer(&world.cluster.metadata.finalizers, names::CLUSTER_FINALIZER) {
            return match self.kube.set_cluster_finalizer(&world.cluster, true).await {
                Ok(saved) => {
                    self.memory.saved(key, &world.cluster, saved);
                    Ok(End::Next(Next::After(self.pace(Pace::Now))))
                }
                Err(KubeError::Conflict { .. } | KubeError::NotFound { .. }) => Ok(End::Outdated),
                Err(error) => Err(error.into()),
            };
        }
        let uid = world.cluster.metadata.uid.as_deref().unwrap_or_default();
        let passwords = self.passwords(key, &world, uid);
        let access = passwords.as_ref().and_then(|passwords| self.access(key, &world, passwords));
        let objects = self.keep_objects(key, &world).await?;
        let now = self.host.now();
        let mut seen = observe(&self.kube, &self.valkey, &world, objects, access.as_ref(), now).await?;
        // A copy that a node accepted is worth more than what the Secret may have become.
        let accepted = seen.reports().next().is_some() || self.memory.passwords(key, uid).is_none();
        if let Some(passwords) = passwords.as_ref().filter(|_| accepted) {
            self.memory.keep_passwords(key, uid, passwords);
        }
        let facts = machines::facts(&seen, &world.machines);
        machines::prove(&mut seen, &self.memory.lasting(key, facts, self.host.uptime()));
        self.remember(key, &mut seen);
        self.restore_secret(&world, &seen, passwords.as_ref()).await?;
        let Prepared { want, publication, rotation } =
            self.prepare(key, &world, &mut seen, passwords.as_ref()).await?;
        if !nodes::record_ids(&self.kube, &world, &seen, self.fan_out()).await? {
            return Ok(End::Outdated);
        }
        let decision = gate(plan(&seen, &want), &seen);
        let warnings = self.memory.new_warnings(key, status::warnings(&want, now));
        tell_warnings(&self.kube, key, &world.cluster, warnings).await;
        self.metrics.show_certificate(key, want.certificate.as_ref());
        if let Some(next) = self.held_back(key, &world, &seen, &decision, rest).await {
            return Ok(End::Next(next));
        }
        let revisions = pods::Revisions {
            acl: publication.as_ref().map(|publication| publication.revision.as_str()),
            tls: world.tls.as_ref().map(|material| material.revision()),
        };
        // Whoever reads that the cluster is ready finds its members labelled. What fails there is told after the status.
        let kept = match decision.action {
            None => Some(self.keep_members(&world, &seen, revisions).await),
            Some(_) => None,
        };
        let end = self.carry_out(key, &world, &seen, &want, access.as_ref(), &decision).await?;
        if decision.pace != Pace::Now {
            match kept {
                Some(kept) => kept?,
                None => self.keep_members(&world, &seen, revisions).await?,
            }
            if let (Some(access), Some(passwords)) = (&access, &passwords) {
                self.rotate(key, &world, &seen, access, passwords, &rotation).await?;
            }
        }
        Ok(end)
    }

    /// Status of the nodes; gates, labels and annotations of the Pods.
    async fn keep_members(
        &self,
        world: &World,
        seen: &Observed,
        revisions: pods::Revisions<'_>,
    ) -> Result<(), KubeError> {
        nodes::show(&self.kube, world, seen, self.fan_out()).await?;
        pods::keep(&self.kube, world, seen, revisions, self.fan_out()).await.map(drop)
    }

    /// Adds to what was seen what this process remembers: pacing only.
    fn remember(&self, key: &ClusterKey, seen: &mut Observed) {
        let now = self.host.uptime();
        let (silent, with_keys) = (ages::silent_pods(seen), ages::pods_with_keys(seen));
        let silences = self.memory.silences(key, silent, now);
        ages::mark(seen, &silences, &self.memory.keys_kept(key, with_keys, now));
        seen.last_failover = self.memory.last_failover(key);
        seen.banned = self.memory.banned(key, now);
    }

    /// The cluster is not there any more: nothing of it is remembered or counted.
    pub fn gone(&self, key: &ClusterKey) {
        self.memory.forget(key);
        self.metrics.forget(key);
    }

    /// A cluster that is being deleted needs nothing but its nodes gone: nobody is asked, nothing is made.
    async fn tick_deletion(&self, key: &ClusterKey, world: &World, rest: Duration) -> Result<End, TickError> {
        let objects =
            Objects { service: Ownership::Missing, auth: Ownership::Missing, acl: Ownership::Missing };
        let seen = observe(&self.kube, &self.valkey, world, objects, None, self.host.now()).await?;
        let want =
            desired::desired(world, &desired::resolve(world), Vec::new(), self.settings.default_zone_spread);
        let decision = gate(plan(&seen, &want), &seen);
        if let Some(next) = self.held_back(key, world, &seen, &decision, rest).await {
            return Ok(End::Next(next));
        }
        self.carry_out(key, world, &seen, &want, None, &decision).await
    }

    /// How long commands of another operator, or of this one before its restart, may still be under way. Asked before
    /// anything is observed: what is seen later is what they have made of it.
    fn commands_end_in(&self, key: &ClusterKey, world: &World) -> Duration {
        let window = self.send_window() + self.settings.valkey_timeout;
        self.memory.commands_end_in(key, &world.cluster, self.host.uptime(), window)
    }

    /// How long after its intent a command may be sent: a dial and a look at the server.
    fn send_window(&self) -> Duration {
        self.settings.valkey_connect_timeout + self.settings.valkey_timeout
    }

    /// No action while commands of another process may be under way: nothing would order the two.
    async fn held_back(
        &self,
        key: &ClusterKey,
        world: &World,
        seen: &Observed,
        decision: &Decision,
        rest: Duration,
    ) -> Option<Next> {
        let action = decision.action.as_ref().filter(|_| !rest.is_zero())?;
        let message = format!("{} waits until no command of another process is under way", action.kind());
        let wait = Decision::wait(Reason::CommandsUnderWay, message, Pace::Quick);
        tell_wait(&self.kube, &self.memory, key, &world.cluster, seen, &wait).await;
        Some(Next::After(rest))
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

    /// Takes the next step of a rotation of passwords, and tells its beginning and its end.
    async fn rotate(
        &self,
        key: &ClusterKey,
        world: &World,
        seen: &Observed,
        access: &Access,
        passwords: &Passwords,
        step: &rotation::Step,
    ) -> Result<(), TickError> {
        let draw = || self.host.random_hex(PASSWORD_DIGITS).map(Redacted::new);
        let ports = (&self.kube, &self.valkey);
        let taken = upkeep::rotation::take(ports, world, seen, access, passwords, step, draw).await?;
        match taken {
            Rotated::Nothing => {}
            Rotated::NotYet(why) => {
                debug!(cluster_name = %key.name, namespace = %key.namespace, why, "passwords not rotated yet");
            }
            Rotated::Updated(ended) => tell_rotation(&self.kube, key, &world.cluster, passwords, ended).await,
        }
        Ok(())
    }

    /// Executes the action, if any, tells of it or of the wait, and shows the status.
    async fn carry_out(
        &self,
        key: &ClusterKey,
        world: &World,
        seen: &Observed,
        want: &Desired,
        access: Option<&Access>,
        decision: &Decision,
    ) -> Result<End, TickError> {
        let mut status = status::derive(&world.cluster, seen, want, decision, &build::time(seen.now));
        if let Some(last) = &mut status.last_action {
            last.over |= self.memory.is_over(key, &world.cluster);
        }
        self.metrics.show(key, seen, &status);
        let Some(action) = &decision.action else {
            tell_wait(&self.kube, &self.memory, key, &world.cluster, seen, decision).await;
            if !status::same(world.cluster.status.as_ref(), &status) {
                match self.kube.save_status(&world.cluster, &status).await {
                    Ok(saved) => self.memory.saved(key, &world.cluster, saved),
                    Err(KubeError::Conflict { .. } | KubeError::NotFound { .. }) => return Ok(End::Outdated),
                    Err(error) => return Err(error.into()),
                }
            }
            return Ok(End::Next(Next::After(self.pace(decision.pace))));
        };
        let begun = self.host.uptime();
        // Tried before, and planned again: the watch has not shown yet what came of it.
        if action.is_on_objects()
            && let Some(rest) = self.memory.rests(key, action, begun, |times| self.until_seen(times))
        {
            let (reason, why) = (Reason::StaleView, "what was done is not seen yet");
            debug!(cluster_name = %key.name, namespace = %key.namespace, %reason, why, pause = ?rest, "looking again");
            return Ok(End::Next(Next::After(rest)));
        }
        let window = self.send_window();
        let in_time = || self.host.uptime().saturating_sub(begun) <= window;
        let execution =
            Execution { kube: &self.kube, valkey: &self.valkey, world, seen, access, in_time: &in_time };
        let Some(saved) = execution.record(action, status, seen.now).await? else {
            self.metrics.acted(action, &Outcome::Stale(String::new()));
            return Ok(End::Outdated);
        };
        self.memory.saved(key, &world.cluster, saved);
        if let Action::Forget { id, .. } = action {
            self.memory.forgot(key, *id, self.host.uptime());
        }
        let outcome = execution.act(action).await;
        if action.is_on_objects() {
            self.memory.tried(key, action, self.host.uptime());
        }
        let outcome = outcome?;
        self.metrics.acted(action, &outcome);
        if let Action::Failover { from, .. } = action {
            self.memory.failed_over(key, *from, seen.now);
        }
        if outcome == Outcome::Done {
            self.memory.ended(key);
            tell_action(&self.kube, key, &world.cluster, action, decision).await;
        }
        match outcome {
            Outcome::Done => return Ok(End::Next(Next::After(self.pace(decision.pace)))),
            Outcome::Stale(why) => {
                let reason = Reason::StaleView;
                debug!(cluster_name = %key.name, namespace = %key.namespace, %reason, why, "looking again");
            }
            Outcome::Unknown(why) => {
                warn!(cluster_name = %key.name, namespace = %key.namespace, why, "a reply was lost, looking again");
            }
        }
        Ok(End::Next(Next::After(self.pace(Pace::Quick))))
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

/// Milliseconds since the Unix epoch of a `Timestamp`.
impl From<jiff::Timestamp> for Millis {
    fn from(time: jiff::Timestamp) -> Self {
        Self(time.as_millisecond())
    }
}
