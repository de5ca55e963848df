//! Makes the events of a story happen, and takes every trouble back at its end.

use std::sync::Arc;

use shared::valkey::types::NodeId;

use crate::clock::Ms;
use crate::node_loop::NodeCtl;
use crate::operator::ClusterCtl;
use crate::scenario::{Event, Victim};
use crate::simulation::Simulation;
use crate::world::World;
use crate::world::valkey::network::Cut;

/// How soon after a cut the watches of who was cut off show again what there is.
const RECONNECTED: Ms = 5_000;

/// Holds every cache of one operator.
fn hold_all(cluster: &ClusterCtl, node: &mut NodeCtl, until: Ms) {
    for kind in 0..4 {
        cluster.hold_cache(kind, until);
        node.hold_cache(kind, until);
    }
}

impl Simulation {
    /// Makes `event` happen now.
    pub(crate) fn happen(&mut self, event: &Event) {
        let now = self.world().now;
        match event {
            Event::Stale(process, kind, lasting) => self.hold_cache(*process, *kind, now + lasting),
            Event::NoApi(operator, lasting) => self.cut_from_api(usize::from(*operator), now + lasting),
            Event::Clock(by, lasting) => {
                let mut world = self.world();
                world.say("fault", &format!("the operator's clocks jump by {by} ms"));
                world.skew += by;
                let (at, by) = (now + lasting, *by);
                world.queue.plan(at, move |world| {
                    if world.skew != 0 {
                        world.skew -= by;
                    }
                });
            }
            Event::Crash(process, calls, after) => self.plan_crash(*process, *calls, *after),
            event => self.world().happen(event),
        }
    }

    fn hold_cache(&mut self, process: u8, kind: u8, until: Ms) {
        self.world().say("fault", &format!("cache {kind} of process {process} is held"));
        let index = usize::from(process / 2);
        if process.is_multiple_of(2) {
            if let Some(it) = self.cluster_ctls.get(index) {
                it.hold_cache(kind, until);
            }
        } else if let Some(it) = self.node_ctls.get_mut(index) {
            it.hold_cache(kind, until);
        }
    }

    /// Both processes of an operator share a Pod, and so its way to the API server.
    fn cut_from_api(&mut self, operator: usize, until: Ms) {
        let (Some(cluster), Some(node)) = (self.cluster_ctls.get(operator), self.node_ctls.get_mut(operator))
        else {
            return;
        };
        hold_all(cluster, node, until);
        let names = [Arc::clone(&cluster.line().name), Arc::clone(&node.line().name)];
        let mut world = self.world();
        for name in names {
            world.say("fault", &format!("{name} is cut off from the API server"));
            world.without_api.insert(name, until);
        }
    }

    /// Nothing fails any more, and whoever was cut off from the API server watches again, soon.
    pub(crate) fn calm(&mut self) {
        let until = self.world().now + RECONNECTED;
        for (cluster, node) in self.cluster_ctls.iter().zip(&mut self.node_ctls) {
            let line = cluster.line();
            let cut_off = line.world().without_api(&line.name).is_some();
            if cut_off {
                hold_all(cluster, node, until);
            }
        }
        self.world().calm();
    }

    fn plan_crash(&mut self, process: u8, calls: u64, after: bool) {
        let index = usize::from(process / 2);
        if process.is_multiple_of(2) {
            if let Some(it) = self.cluster_ctls.get(index) {
                it.crash_in(calls, after);
            }
        } else if let Some(it) = self.node_ctls.get(index) {
            it.crash_in(calls, after);
        }
    }
}

impl World {
    fn happen(&mut self, event: &Event) {
        match event {
            Event::Create(name, shards, replicas) => self.create_cluster(name, *shards, *replicas),
            Event::Resize(name, shards, replicas) => self.resize_cluster(name, *shards, *replicas),
            Event::Delete(name) => self.delete_cluster(name),
            Event::Image(tag) => self.change_image(tag),
            Event::Machine(number, lasting) => self.lose_machine(&format!("m{number}"), *lasting),
            Event::MachineGone(number, taint) => self.lose_machine_for_good(&format!("m{number}"), *taint),
            Event::ForceDelete(victim) => {
                self.on_victim(*victim, "loses its Pod without grace", Self::force_delete_pod);
            }
            Event::Kill(victim) => self.on_victim(*victim, "is killed", Self::kill),
            Event::DeletePod(victim) => {
                self.on_victim(*victim, "loses its Pod to somebody", Self::delete_pod);
            }
            Event::Freeze(victim, lasting) => {
                let lasting = *lasting;
                self.on_victim(*victim, "is stopped", move |world, id| world.freeze(id, lasting));
            }
            Event::Isolate(victim, lasting) => {
                let (lasting, cut) = (*lasting, Cut { peers: true, operator: true, clients: true });
                self.on_victim(*victim, "is cut off", move |world, id| world.cut(id, cut, lasting));
            }
            Event::Unreachable(victim, lasting) => {
                let (lasting, cut) = (*lasting, Cut { operator: true, ..Cut::default() });
                let what = "is cut off from the operator";
                self.on_victim(*victim, what, move |world, id| world.cut(id, cut, lasting));
            }
            Event::Lag(victim, lasting) => {
                let until = self.now + lasting;
                self.on_victim(*victim, "lags", move |world, id| {
                    if let Some(node) = world.valkey.nodes.get_mut(&id) {
                        node.link.lagging_until = until;
                    }
                });
            }
            Event::Stale(..) | Event::NoApi(..) | Event::Clock(..) | Event::Crash(..) => {}
        }
    }

    fn on_victim(&mut self, victim: Victim, what: &str, act: impl FnOnce(&mut Self, NodeId)) {
        let candidates: Vec<NodeId> = self
            .valkey
            .nodes
            .values()
            .filter(|node| match victim {
                Victim::Primary => node.votes(),
                Victim::Replica => node.primary.is_some(),
                Victim::Any => true,
            })
            .map(|node| node.id)
            .collect();
        let Some(id) = self.rng.choice(&candidates).copied() else { return };
        let name = self.valkey.name(id);
        self.say("fault", &format!("{name} {what}"));
        act(self, id);
    }

    fn kill(&mut self, id: NodeId) {
        self.before_end(id);
        self.valkey.end(id, self.now);
        self.container_ended(id, 137, "Error");
    }

    fn delete_pod(&mut self, id: NodeId) {
        let name = self.valkey.name(id);
        drop(self.api.delete::<k8s_openapi::api::core::v1::Pod>(self.now, &name, None, Some(30)));
    }

    fn force_delete_pod(&mut self, id: NodeId) {
        self.before_end(id);
        let name = self.valkey.name(id);
        drop(self.api.delete::<k8s_openapi::api::core::v1::Pod>(self.now, &name, None, Some(0)));
    }

    fn freeze(&mut self, id: NodeId, lasting: Ms) {
        self.before_end(id);
        self.valkey.freeze(id, true);
        let at = self.now + lasting;
        self.queue.plan(at, move |world| world.thaw(id));
    }

    fn thaw(&mut self, id: NodeId) {
        if !self.valkey.nodes.get(&id).is_some_and(|node| node.frozen) {
            return;
        }
        let name = self.valkey.name(id);
        self.say("fault", &format!("{name} continues"));
        self.valkey.freeze(id, false);
        self.take_signals(id);
        let (due, late) = std::mem::take(&mut self.audit.late).into_iter().partition(|(of, _)| *of == id);
        self.audit.late = late;
        let due: Vec<(NodeId, cluster_ctl::ports::Command)> = due;
        for (id, command) in due {
            self.say(&name, &format!("carries out late: {command:?}"));
            let done = self.valkey.execute(id, &command, self.now);
            if let Err(words) = done {
                self.say(&name, &format!("refuses: {words}"));
            }
        }
    }

    fn cut(&mut self, id: NodeId, cut: Cut, lasting: Ms) {
        if cut.peers {
            self.before_end(id);
        }
        self.valkey.network.cut(id, cut);
        let at = self.now + lasting;
        self.queue.plan(at, move |world| world.mend(id));
    }

    fn mend(&mut self, id: NodeId) {
        if self.valkey.network.cut_of(id) != Cut::default() {
            let name = self.valkey.name(id);
            self.say("fault", &format!("{name} is reachable again"));
            self.valkey.network.cut(id, Cut::default());
        }
    }

    fn lose_machine(&mut self, name: &str, lasting: Ms) {
        if !self.kubelets.machines.get(name).is_some_and(|machine| machine.up) {
            return;
        }
        self.say("fault", &format!("machine {name} is lost"));
        self.machine_down(name);
        let (at, name) = (self.now + lasting, name.to_owned());
        self.queue.plan(at, move |world| world.raise_machine(&name));
    }

    /// Once in a story, and only where others are left.
    fn lose_machine_for_good(&mut self, name: &str, taint: bool) {
        let machines = &mut self.kubelets.machines;
        let left = machines.values().filter(|machine| machine.up).count();
        let Some(machine) = machines.get_mut(name).filter(|machine| machine.up && left > 2) else { return };
        machine.doomed = true;
        self.say("fault", &format!("machine {name} is lost for good"));
        self.machine_down(name);
        let (at, name) = (self.now + 15_000, name.to_owned());
        self.queue.plan(at, move |world| {
            world.say("people", &format!("machine {name} is given up, tainted: {taint}"));
            world.give_up_machine(&name, taint);
        });
    }

    fn raise_machine(&mut self, name: &str) {
        if self.kubelets.machines.get(name).is_some_and(|machine| !machine.up && !machine.doomed) {
            self.say("fault", &format!("machine {name} is back"));
            self.machine_up(name);
        }
    }

    /// Nothing fails any more and all that was broken is mended, but for stale caches, which catch up soon.
    fn calm(&mut self) {
        self.say("story", "nothing fails any more");
        self.rates = crate::faults::Rates::default();
        self.skew = 0;
        self.without_api.clear();
        let ids: Vec<NodeId> = self.valkey.nodes.keys().copied().collect();
        for id in ids {
            self.thaw(id);
            self.mend(id);
        }
        let down = self.kubelets.machines.iter().filter(|(_, machine)| !machine.up && !machine.doomed);
        let down: Vec<String> = down.map(|(name, _)| name.clone()).collect();
        for machine in down {
            self.raise_machine(&machine);
        }
    }
}
