//! The modelled world: Kubernetes, Valkey, clients, time. One value, changed by one thing at a time.
//!
//! Owns what is true. What the operator believes of it goes through the ports.

pub mod apiserver;
pub mod clients;
pub mod kubelet;
pub mod people;
pub mod valkey;

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster_ctl::model::Millis;
use cluster_ctl::ports::Menu;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::Resource;
use shared::names;

use self::apiserver::ApiServer;
use self::clients::Clients;
use self::kubelet::Kubelets;
use self::valkey::Valkey;
use self::valkey::engine::STEP;
use self::valkey::node::Login;
use crate::audit::Audit;
use crate::clock::{Ms, Queue, START};
use crate::faults::Rates;
use crate::trace::Trace;

/// A machine whose kubelet is silent is called not Ready after this long, milliseconds.
const NOT_READY_AFTER: Ms = 40_000;

/// How quick the world is; part of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Tempo {
    /// Longest start of a container, milliseconds.
    pub pod_start: Ms,
}

/// Everything that is.
pub struct World {
    /// Virtual time.
    pub now: Ms,
    /// How far the operator's clocks are off.
    pub skew: Ms,
    /// Processes of the operator that do not reach the API server, and until when.
    pub without_api: BTreeMap<Arc<str>, Ms>,
    /// What is due.
    pub queue: Queue,
    /// Chance; every draw of the simulation comes from the seed.
    pub rng: fastrand::Rng,
    /// Kubernetes objects.
    pub api: ApiServer,
    /// Kubelets and machines.
    pub kubelets: Kubelets,
    /// Valkey processes.
    pub valkey: Valkey,
    /// Clients that write.
    pub clients: Clients,
    /// Two operators run side by side.
    pub twins: bool,
    /// A person confirms deaths that nothing else proves.
    pub confirms: bool,
    /// Pods that vanished without a record of their end, by UID, and since when.
    pub missed: BTreeMap<String, Ms>,
    /// The menu, as every cache shows it.
    pub menu: Arc<Menu>,
    /// How often calls fail.
    pub rates: Rates,
    /// How quick things are.
    pub pace: Tempo,
    /// What the operator did, judged.
    pub audit: Audit,
    /// What happened.
    pub trace: Trace,
}

impl World {
    /// An empty world.
    pub fn new(seed: u64, machines: u8, pace: Tempo, rates: Rates) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let valkey = Valkey::new(rng.fork());
        let mut world = Self {
            now: START,
            skew: 0,
            without_api: BTreeMap::new(),
            queue: Queue::default(),
            rng,
            api: ApiServer::default(),
            kubelets: Kubelets::new(machines),
            valkey,
            clients: Clients::default(),
            twins: false,
            confirms: true,
            missed: BTreeMap::new(),
            menu: Arc::new(people::menu("9.1.2")),
            rates,
            pace,
            audit: Audit::default(),
            trace: Trace::default(),
        };
        world.queue.plan(START, beat);
        world
    }

    /// Until when this process of the operator does not reach the API server; none when it does.
    pub fn without_api(&self, process: &str) -> Option<Ms> {
        self.without_api.get(process).copied().filter(|until| *until > self.now)
    }

    /// Adds a line to the trace.
    pub fn say(&mut self, actor: &str, what: &str) {
        self.trace.line(self.now, actor, what);
    }

    /// The Kubernetes nodes as the API shows them.
    pub fn machines(&self) -> BTreeMap<String, cluster_ctl::ports::Machine> {
        let machines = self.kubelets.machines.iter();
        machines
            .map(|(name, machine)| {
                let ready = machine.down_since.is_none_or(|since| self.now - since < NOT_READY_AFTER);
                let shown = cluster_ctl::ports::Machine {
                    zone: Some(machine.zone.clone()),
                    ready_since: ready.then_some(Millis(machine.ready_since)),
                    out_of_service: machine.out_of_service,
                };
                (name.clone(), shown)
            })
            .collect()
    }

    /// The cluster of a Pod, and what its process may log in with; `None` while something that it mounts is missing.
    pub(crate) fn login_of(&self, pod: &Pod) -> Option<(String, Login)> {
        let name = pod.metadata.name.as_deref()?;
        let cluster = pod.meta().labels.as_ref()?.get(names::LABEL_INSTANCE)?;
        self.api.get::<ConfigMap>(&names::node_config_map(name))?;
        let acl = self.api.get::<ConfigMap>(&names::acl_config_map(cluster))?;
        let auth = self.api.get::<Secret>(&names::auth_secret(cluster))?;
        let users_acl = acl.data.as_ref()?.get(names::KEY_USERS_ACL)?.as_str().into();
        let repl = auth.data.as_ref()?.get(names::KEY_REPL_PASSWORD)?;
        let repl = String::from_utf8_lossy(&repl.0).into();
        Some((cluster.clone(), Login { users_acl, repl }))
    }
}

/// What goes on by itself: engines, kubelets, garbage collection, clients.
fn beat(world: &mut World) {
    let now = world.now;
    world.valkey.step(now);
    world.run_kubelets();
    if (now / STEP) % 5 == 0 {
        world.api.collect_garbage(now);
        world.accept_acl();
        world.confirm_dead();
        world.write_keys();
        world.judge_forgetting();
    }
    world.hear_processes();
    world.judge_step();
    world.queue.plan(now + STEP, beat);
}

impl World {
    /// What the processes said goes to the trace.
    pub fn hear_processes(&mut self) {
        for (at, pod, what) in self.valkey.take_lines() {
            self.trace.line(at, &pod, &what);
        }
    }

    /// reconcile-loops: what a running node of the cluster loads is recorded as accepted.
    fn accept_acl(&mut self) {
        for map in self.api.list::<ConfigMap>() {
            let Some(data) = &map.data else { continue };
            let Some(text) = data.get(names::KEY_USERS_ACL) else { continue };
            if data.get(names::KEY_USERS_ACL_ACCEPTED) == Some(text) {
                continue;
            }
            let Some(cluster) = map.metadata.labels.as_ref().and_then(|it| it.get(names::LABEL_INSTANCE))
            else {
                continue;
            };
            let proved = self.valkey.of_cluster(cluster).any(|node| !node.frozen);
            if proved {
                let (name, text) = (map.metadata.name.clone().unwrap_or_default(), text.clone());
                let done = self.api.update::<ConfigMap>(self.now, &name, None, None, |map| {
                    let data = map.data.get_or_insert_default();
                    data.insert(names::KEY_USERS_ACL_ACCEPTED.to_owned(), text);
                    Ok(())
                });
                drop(done);
            }
        }
    }
}
