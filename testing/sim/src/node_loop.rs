//! node-ctl as a process: its caches, one pass per node at a time, back-off, crash and restart. The passes are the
//! real ones.

use std::collections::BTreeMap;
use std::time::Duration;

use node_ctl::execute::ExecuteError;
use node_ctl::ports::Key;
use node_ctl::reconcile::{AT_REST, Look, orphan_of, reconcile, release_orphan};
use shared::backoff::Backoff;

use crate::clock::Ms;
use crate::ports::node_kube::SimNodeKube;
use crate::ports::{Crash, Line, Shared};
use crate::task::Task;
use crate::world::apiserver::caches::NodeCaches;

/// As in the controller.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

struct Entry {
    pass: Option<Task<Result<Duration, ExecuteError>>>,
    due: Option<Ms>,
    failures: u32,
}

struct Running {
    caches: NodeCaches,
    kube: SimNodeKube,
    entries: BTreeMap<String, Entry>,
}

/// A node-ctl.
pub struct NodeCtl {
    line: Line,
    running: Option<Running>,
    up_at: Ms,
}

impl NodeCtl {
    /// A process that starts now.
    pub fn new(world: &Shared, name: &str) -> Self {
        let line = Line::new(world, name);
        let up_at = line.world().now;
        Self { line, running: None, up_at }
    }

    /// Its way into the world.
    pub fn line(&self) -> &Line {
        &self.line
    }

    /// Kills it; it starts again at `up_at`.
    pub fn kill(&mut self, up_at: Ms) {
        self.line.world().say(&self.line.name, "is killed");
        self.running = None;
        self.up_at = up_at;
    }

    /// Plans a crash at the call `after` calls from now.
    pub fn crash_in(&self, calls: u64, after: bool) {
        self.line.plan_crash(Some(Crash { at: self.line.calls() + calls, after }));
    }

    /// Holds one of its caches.
    pub fn hold_cache(&mut self, kind: u8, until: Ms) {
        if let Some(running) = &mut self.running {
            running.caches.hold(kind, until);
        }
    }

    /// When it next has something to do by itself.
    pub fn next(&self) -> Option<Ms> {
        let Some(running) = &self.running else { return Some(self.up_at) };
        let due = running.entries.values().filter(|entry| entry.pass.is_none()).filter_map(|entry| entry.due);
        due.chain(running.caches.next(&self.line.world().api)).min()
    }

    /// Does what can be done at this moment.
    pub fn turn(&mut self, restart: Ms) {
        let now = self.line.world().now;
        if self.running.is_none() && now >= self.up_at {
            // It lists before anything else, and waits for the answer.
            let unreached = self.line.world().without_api(&self.line.name);
            match unreached {
                Some(until) => self.up_at = until,
                None => self.running = Some(self.start()),
            }
        }
        if let Some(running) = &mut self.running {
            running.wake(&self.line);
            running.begin(now);
            running.poll(&self.line, now);
        }
        if self.line.take_crashed() {
            self.kill(now + restart);
        }
    }

    fn start(&self) -> Running {
        let mut world = self.line.world();
        world.say(&self.line.name, "starts");
        let crate::world::World { api, rng, .. } = &mut *world;
        let caches = NodeCaches::listed(api, || rng.i64(2..60));
        let pods = caches.pods.all().filter_map(|pod| pod.metadata.name.clone());
        let present: Vec<String> =
            caches.nodes.all().filter_map(|node| node.metadata.name.clone()).chain(pods).collect();
        let now = world.now;
        drop(world);
        let entry = |name| (name, Entry { pass: None, due: Some(now), failures: 0 });
        let entries = present.into_iter().map(entry).collect();
        Running { caches, kube: SimNodeKube::new(&self.line), entries }
    }
}

impl Running {
    fn wake(&mut self, line: &Line) {
        let world = line.world();
        for node in self.caches.catch_up(&world.api, world.now) {
            let entry = self.entries.entry(node).or_insert(Entry { pass: None, due: None, failures: 0 });
            entry.due = Some(world.now);
        }
    }

    fn begin(&mut self, now: Ms) {
        for (name, entry) in &mut self.entries {
            if entry.pass.is_some() || entry.due.is_none_or(|due| due > now) {
                continue;
            }
            entry.due = None;
            let pod = self.caches.pods.get(name);
            let kube = self.kube.clone();
            let Some(node) = self.caches.nodes.get(name) else {
                if pod.is_some_and(|pod| orphan_of(&pod).is_some()) {
                    let key = Key::new("", name.as_str());
                    entry.pass = Some(Task::new(async move {
                        release_orphan(&kube, &key).await.map(|_| AT_REST).map_err(ExecuteError::from)
                    }));
                }
                continue;
            };
            let config_map = self.caches.config_maps.get(&shared::names::node_config_map(name));
            let look = Look::cached(node, pod.as_deref(), config_map.as_deref().map(|map| &map.metadata));
            entry.pass = Some(Task::new(async move { reconcile(&kube, look, || false, |_| {}).await }));
        }
    }

    fn poll(&mut self, line: &Line, now: Ms) {
        for (name, entry) in &mut self.entries {
            let Some(result) = entry.pass.as_mut().and_then(Task::poll) else { continue };
            entry.pass = None;
            let pause = match result {
                Ok(pause) => {
                    entry.failures = 0;
                    pause
                }
                Err(error) => {
                    entry.failures += 1;
                    let mut world = line.world();
                    let words = shared::telemetry::chain(&error);
                    world.say(&line.name, &format!("pass of {name} failed: {words}"));
                    BACKOFF.jittered(entry.failures, world.rng.u32(..))
                }
            };
            let due = now + Ms::try_from(pause.as_millis()).unwrap_or(Ms::MAX).max(1);
            entry.due = Some(entry.due.map_or(due, |woken| woken.min(due)));
        }
    }
}
