//! Scheduler, kubelets and machines: Pods are bound, started with an address, ended, and let go with grace.
//!
//! Owns what runs where and the addresses. A kubelet whose machine is down writes nothing. Pods are never restarted
//! (`restartPolicy: Never`).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    Pod, PodCondition, PodStatus,
};
use shared::names;
use shared::valkey::types::NodeId;

use super::World;
use super::apiserver::{self, ApiError};
use super::valkey::node::Home;
use crate::clock::Ms;

/// An address is not given again for this long, as CNIs that draw round robin or cool down do.
const COOL_DOWN: Ms = 60_000;
/// Addresses of a machine.
const POOL: u8 = 24;

/// A Kubernetes node.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its zone.
    pub zone: String,
    /// Its number, part of its addresses.
    number: u8,
    /// It is there and its kubelet works.
    pub up: bool,
    /// Since when its kubelet has worked.
    pub ready_since: Ms,
    /// Since when it has not.
    pub down_since: Option<Ms>,
    /// It does not come back.
    pub doomed: bool,
    /// A person tainted it: nothing runs there.
    pub out_of_service: bool,
    /// When each address was given up.
    freed: BTreeMap<IpAddr, Ms>,
    used: BTreeMap<IpAddr, String>,
}

/// What the kubelets know of their Pods, by UID.
#[derive(Debug, Default)]
pub struct Kubelets {
    /// Machines by name.
    pub machines: BTreeMap<String, Machine>,
    pods: BTreeMap<String, Held>,
}

#[derive(Clone, Debug)]
struct Held {
    name: String,
    machine: String,
    ip: Option<IpAddr>,
    /// Its container runs.
    running: bool,
    /// It was told to stop.
    stopping: bool,
    /// Time of its preStop hook.
    hook: Ms,
}

impl Kubelets {
    /// `count` machines over three zones.
    pub fn new(count: u8) -> Self {
        let machine = |number: u8| Machine {
            zone: format!("zone-{}", number % 3),
            number,
            up: true,
            ready_since: crate::clock::START,
            down_since: None,
            doomed: false,
            out_of_service: false,
            freed: BTreeMap::new(),
            used: BTreeMap::new(),
        };
        let machines = (0..count).map(|number| (format!("m{number}"), machine(number))).collect();
        Self { machines, pods: BTreeMap::new() }
    }

    fn draw_ip(&mut self, machine: &str, pod_uid: &str, now: Ms) -> Option<IpAddr> {
        let machine = self.machines.get_mut(machine)?;
        let ip =
            (1..=POOL).map(|host| IpAddr::V4(Ipv4Addr::new(10, 0, machine.number, host))).find(|ip| {
                !machine.used.contains_key(ip) && machine.freed.get(ip).is_none_or(|at| now - at >= COOL_DOWN)
            })?;
        machine.used.insert(ip, pod_uid.to_owned());
        Some(ip)
    }

    fn free_ip(&mut self, machine: &str, ip: IpAddr, now: Ms) {
        if let Some(machine) = self.machines.get_mut(machine) {
            machine.used.remove(&ip);
            machine.freed.insert(ip, now);
        }
    }
}

impl World {
    /// Looks for Pods to be bound and Pods told to go; called often.
    pub fn run_kubelets(&mut self) {
        for pod in self.api.list::<Pod>() {
            let Some(uid) = pod.metadata.uid.clone() else { continue };
            let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let going = pod.metadata.deletion_timestamp.is_some();
            match (bound, self.kubelets.pods.contains_key(&uid)) {
                (None, _) if going => self.remove_pod(&uid, pod.metadata.name.as_deref().unwrap_or_default()),
                (None, _) => self.bind(&pod, &uid),
                (Some(machine), false) if self.is_up(&machine) => self.accept(&pod, uid, machine, going),
                (Some(machine), true) if going && self.is_up(&machine) => self.stop(&pod, &uid),
                (Some(_), _) => {}
            }
        }
        self.stop_the_unknown();
    }

    /// A kubelet ends what is no Pod any more.
    fn stop_the_unknown(&mut self) {
        let here: std::collections::BTreeSet<String> =
            self.api.list::<Pod>().iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
        let gone: Vec<String> = self
            .kubelets
            .pods
            .iter()
            .filter(|(uid, held)| !here.contains(*uid) && !held.stopping && self.is_up(&held.machine))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            self.stop(&Pod::default(), &uid);
        }
    }

    fn is_up(&self, machine: &str) -> bool {
        self.kubelets.machines.get(machine).is_some_and(|machine| machine.up)
    }

    /// Binds a Pod to the machine with the fewest of its shard, then of all.
    fn bind(&mut self, pod: &Pod, uid: &str) {
        if self.rng.u8(0..4) == 0 {
            return;
        }
        let shard = |pod: &Pod| {
            let labels = pod.metadata.labels.clone().unwrap_or_default();
            (labels.get(names::LABEL_INSTANCE).cloned(), labels.get(names::LABEL_SHARD_INDEX).cloned())
        };
        let ours = shard(pod);
        let mut load: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for other in self.api.list::<Pod>() {
            if let Some(machine) = other.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
                let entry = load.entry(machine).or_default();
                entry.0 += usize::from(shard(&other) == ours);
                entry.1 += 1;
            }
        }
        let machines = self.kubelets.machines.iter().filter(|(_, machine)| machine.up);
        let best = machines
            .map(|(name, _)| (load.get(name).copied().unwrap_or_default(), name.clone()))
            .min()
            .map(|(_, name)| name);
        let name = pod.metadata.name.clone().unwrap_or_default();
        let scheduled = best.is_some();
        self.write_pod(&name, uid, |pod| {
            if let (Some(spec), Some(machine)) = (pod.spec.as_mut(), best) {
                spec.node_name = Some(machine);
            }
            set_condition(pod, "PodScheduled", scheduled, "0/0 nodes are available");
        });
    }

    /// The kubelet sees the Pod for the first time.
    fn accept(&mut self, pod: &Pod, uid: String, machine: String, going: bool) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        if going {
            self.remove_pod(&uid, &name);
            return;
        }
        let hook = hook(pod);
        self.kubelets
            .pods
            .insert(uid.clone(), Held { name, machine, ip: None, running: false, stopping: false, hook });
        let at = self.now + 200 + self.rng.i64(0..self.pace.pod_start);
        self.queue.plan(at, move |world| world.start_container(&uid));
    }

    /// Starts the container, once what it mounts is there and its image can be pulled.
    fn start_container(&mut self, uid: &str) {
        let Some(held) = self.kubelets.pods.get(uid).cloned() else { return };
        let Some(pod) =
            self.api.get::<Pod>(&held.name).filter(|pod| pod.metadata.uid.as_deref() == Some(uid))
        else {
            return;
        };
        if held.stopping || !self.is_up(&held.machine) {
            return;
        }
        let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.clone());
        let again = self.now + 500;
        let retry = uid.to_owned();
        if image.is_some_and(|image| image.contains("bad")) {
            self.write_pod(&held.name, uid, |pod| set_waiting(pod, "ErrImagePull", "no such image"));
            self.queue.plan(again, move |world| world.start_container(&retry));
            return;
        }
        let Some((cluster, login)) = self.login_of(&pod) else {
            self.queue.plan(again, move |world| world.start_container(&retry));
            return;
        };
        let Some(ip) = self.kubelets.draw_ip(&held.machine, uid, self.now) else {
            self.queue.plan(again, move |world| world.start_container(&retry));
            return;
        };
        let home = Home {
            pod: held.name.clone(),
            pod_uid: uid.to_owned(),
            cluster,
            machine: held.machine.clone(),
            ip,
        };
        self.valkey.start(home, login, self.now);
        if let Some(held) = self.kubelets.pods.get_mut(uid) {
            held.ip = Some(ip);
            held.running = true;
        }
        self.say("kubelet", &format!("{} runs at {ip}", held.name));
        let seen = self.now + 50 + self.rng.i64(0..400);
        let (name, uid, started) = (held.name, uid.to_owned(), apiserver::time(self.now));
        self.queue.plan(seen, move |world| {
            if world.kubelets.pods.get(&uid).is_some_and(|held| held.running) {
                let state = ContainerState {
                    running: Some(ContainerStateRunning { started_at: Some(started) }),
                    ..ContainerState::default()
                };
                world.write_pod(&name, &uid, |pod| set_state(pod, "Running", state, Some(ip)));
            }
        });
    }

    /// A Pod was told to go: its preStop hook, SIGTERM, and SIGKILL after the grace period.
    fn stop(&mut self, pod: &Pod, uid: &str) {
        let Some(held) = self.kubelets.pods.get_mut(uid) else { return };
        if held.stopping {
            return;
        }
        held.stopping = true;
        let (running, name, hook) = (held.running, held.name.clone(), held.hook);
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(30) * 1000;
        let process = self.valkey.in_pod(uid).map(|node| (node.id, node.frozen));
        let Some((_, frozen)) = process.filter(|_| running) else {
            // Its container has ended, or never ran.
            let (uid, at) = (uid.to_owned(), self.now + 100 + self.rng.i64(0..500));
            self.queue.plan(at, move |world| world.finish_pod(&uid));
            return;
        };
        // After a hook that took all of it the process still has two seconds.
        let wait = if frozen { grace } else { hook.min(grace) + (50 + self.rng.i64(0..700)).min(grace) };
        self.say("kubelet", &format!("stops {name}"));
        let (uid, at) = (uid.to_owned(), self.now + wait);
        self.queue.plan(at, move |world| world.end_stopped(&uid));
    }

    /// The process of a Pod that was told to go ends; one that is stopped by a signal is killed.
    fn end_stopped(&mut self, uid: &str) {
        if let Some((process, frozen)) = self.valkey.in_pod(uid).map(|node| (node.id, node.frozen)) {
            self.before_end(process);
            self.valkey.end_gracefully(process, self.now);
            let (exit_code, reason) = if frozen { (137, "Error") } else { (0, "Completed") };
            self.container_ended(process, exit_code, reason);
        }
        let (uid, at) = (uid.to_owned(), self.now + 700 + self.rng.i64(0..1_000));
        self.queue.plan(at, move |world| world.finish_pod(&uid));
    }

    /// A process continues: a SIGTERM that came meanwhile is taken now.
    pub fn take_signals(&mut self, process: NodeId) {
        let Some(uid) = self.valkey.known.get(&process).map(|home| home.pod_uid.clone()) else { return };
        if self.kubelets.pods.get(&uid).is_some_and(|held| held.stopping) {
            let at = self.now + 50 + self.rng.i64(0..700);
            self.queue.plan(at, move |world| world.end_stopped(&uid));
        }
    }

    /// The kubelet's last write: the Pod may vanish once no finalizer holds it.
    fn finish_pod(&mut self, uid: &str) {
        let Some(held) = self.kubelets.pods.get(uid).cloned() else { return };
        if !self.is_up(&held.machine) {
            return;
        }
        self.release_ip(uid);
        self.kubelets.pods.remove(uid);
        self.remove_pod(uid, &held.name);
    }

    fn remove_pod(&mut self, uid: &str, name: &str) {
        drop(self.api.delete::<Pod>(self.now, name, Some(uid), Some(0)));
    }

    /// The process has ended: a moment later the kubelet says so, and some seconds later the address is nobody's.
    pub fn container_ended(&mut self, process: NodeId, exit_code: i32, reason: &str) {
        let Some(uid) = self.valkey.known.get(&process).map(|home| home.pod_uid.clone()) else { return };
        let Some(held) = self.kubelets.pods.get_mut(&uid) else { return };
        held.running = false;
        let (name, machine) = (held.name.clone(), held.machine.clone());
        let reason = reason.to_owned();
        let at = self.now + 300 + self.rng.i64(0..600);
        let torn_down = self.now + 1_000 + self.rng.i64(0..4_000);
        let of_pod = uid.clone();
        self.queue.plan(at, move |world| {
            if world.is_up(&machine) {
                world.write_end(&name, &uid, exit_code, &reason);
            }
        });
        self.queue.plan(torn_down, move |world| world.release_ip(&of_pod));
    }

    fn write_end(&mut self, name: &str, uid: &str, exit_code: i32, reason: &str) {
        let state = ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code,
                reason: Some(reason.to_owned()),
                finished_at: Some(apiserver::time(self.now)),
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        };
        let phase = if exit_code == 0 { "Succeeded" } else { "Failed" };
        self.say("kubelet", &format!("{name} has ended: {reason}, exit code {exit_code}"));
        self.write_pod(name, uid, |pod| set_state(pod, phase, state, None));
    }

    fn release_ip(&mut self, uid: &str) {
        let now = self.now;
        let Some(held) = self.kubelets.pods.get_mut(uid) else { return };
        if let Some(ip) = held.ip.take() {
            let machine = held.machine.clone();
            self.valkey.network.silence(ip);
            self.kubelets.free_ip(&machine, ip, now);
        }
    }

    /// A machine goes down with all that runs on it.
    pub fn machine_down(&mut self, name: &str) {
        let now = self.now;
        if let Some(machine) = self.kubelets.machines.get_mut(name) {
            machine.up = false;
            machine.down_since = Some(now);
        }
        let on: Vec<NodeId> = self.processes_on(name);
        for process in on {
            self.before_end(process);
            self.valkey.vanish(process);
        }
    }

    /// A machine that is lost for good leaves the cluster, or is tainted by a person; its Pods are collected.
    pub fn give_up_machine(&mut self, name: &str, taint: bool) {
        if taint {
            if let Some(machine) = self.kubelets.machines.get_mut(name) {
                machine.out_of_service = true;
            }
        } else {
            self.kubelets.machines.remove(name);
        }
        let on: Vec<(String, Held)> = self
            .kubelets
            .pods
            .iter()
            .filter(|(_, held)| held.machine == name)
            .map(|(uid, held)| (uid.clone(), held.clone()))
            .collect();
        for (uid, held) in on {
            self.release_ip(&uid);
            self.kubelets.pods.remove(&uid);
            self.remove_pod(&uid, &held.name);
        }
        // Bound there, and never seen by its kubelet.
        for pod in self.api.list::<Pod>() {
            if pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(name) {
                let uid = pod.metadata.uid.clone().unwrap_or_default();
                self.remove_pod(&uid, pod.metadata.name.as_deref().unwrap_or_default());
            }
        }
    }

    /// It comes back: its kubelet finds the containers ended.
    pub fn machine_up(&mut self, name: &str) {
        let now = self.now;
        if let Some(machine) = self.kubelets.machines.get_mut(name) {
            machine.up = true;
            if machine.down_since.take().is_some_and(|since| now - since >= super::NOT_READY_AFTER) {
                machine.ready_since = now;
            }
        }
        let held: Vec<(String, Held)> =
            self.kubelets.pods.iter().map(|(uid, held)| (uid.clone(), held.clone())).collect();
        for (uid, held) in held.into_iter().filter(|(_, held)| held.machine == name) {
            self.release_ip(&uid);
            let ran = self.api.get::<Pod>(&held.name).is_some_and(|pod| {
                pod.metadata.uid.as_deref() == Some(uid.as_str())
                    && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
            });
            if let Some(held) = self.kubelets.pods.get_mut(&uid) {
                held.running = false;
                held.stopping = false;
            }
            if ran {
                self.write_end(&held.name, &uid, 255, "Unknown");
            } else {
                let again = self.now + 500;
                self.queue.plan(again, move |world| world.start_container(&uid));
            }
        }
    }

    /// Processes on a machine.
    pub fn processes_on(&self, machine: &str) -> Vec<NodeId> {
        self.valkey.nodes.values().filter(|node| node.home.machine == machine).map(|node| node.id).collect()
    }

    fn write_pod(&mut self, name: &str, uid: &str, change: impl FnOnce(&mut Pod)) {
        let done = self.api.update::<Pod>(self.now, name, Some(uid), None, |pod| {
            change(pod);
            Ok::<(), ApiError>(())
        });
        // A Pod that is gone needs no status.
        drop(done);
    }
}

/// The seconds that the container's preStop hook sleeps.
fn hook(pod: &Pod) -> Ms {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let handler = container.and_then(|container| container.lifecycle.as_ref()?.pre_stop.as_ref());
    let command = handler.and_then(|handler| handler.exec.as_ref()?.command.as_ref());
    command.and_then(|words| words.last()?.parse::<Ms>().ok()).map_or(0, |seconds| seconds * 1000)
}

fn set_condition(pod: &mut Pod, kind: &str, status: bool, message: &str) {
    let conditions =
        pod.status.get_or_insert_with(PodStatus::default).conditions.get_or_insert_with(Vec::new);
    conditions.retain(|condition| condition.type_ != kind);
    conditions.push(PodCondition {
        type_: kind.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        message: (!status).then(|| message.to_owned()),
        ..PodCondition::default()
    });
}

fn set_waiting(pod: &mut Pod, reason: &str, message: &str) {
    let waiting =
        ContainerStateWaiting { reason: Some(reason.to_owned()), message: Some(message.to_owned()) };
    let state = ContainerState { waiting: Some(waiting), ..ContainerState::default() };
    set_state(pod, "Pending", state, None);
}

fn set_state(pod: &mut Pod, phase: &str, state: ContainerState, ip: Option<IpAddr>) {
    let status = pod.status.get_or_insert_with(PodStatus::default);
    status.phase = Some(phase.to_owned());
    if let Some(ip) = ip {
        status.pod_ip = Some(ip.to_string());
    }
    status.container_statuses = Some(vec![ContainerStatus {
        name: names::CONTAINER.to_owned(),
        state: Some(state),
        ..ContainerStatus::default()
    }]);
}
