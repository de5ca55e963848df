//! cluster-ctl as a process: its caches, its memory, one tick per cluster at a time, back-off, crash and restart.
//!
//! The ticks are the real ones. What the real controller adds around them (queue, wake-ups, back-off) is modelled here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster_ctl::metrics::ClusterMetrics;
use cluster_ctl::ports::{ClusterKey, Menu};
use cluster_ctl::reconcile::{Context, Next, TickError};
use shared::backoff::Backoff;
use shared::settings::{Binary, Settings};
use shared::telemetry;

use crate::clock::Ms;
use crate::ports::cluster_kube::SimKube;
use crate::ports::host::SimHost;
use crate::ports::valkey::SimValkey;
use crate::ports::{Crash, Line, Shared};
use crate::task::Task;
use crate::world::apiserver::NAMESPACE;
use crate::world::apiserver::caches::ClusterCaches;

/// As in the controller.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

type Tick = Task<Result<Next, TickError>>;

/// One cluster in the queue.
struct Entry {
    tick: Option<Tick>,
    due: Option<Ms>,
    failures: u32,
}

/// What a process remembers; gone with a crash.
struct Running {
    context: Arc<Context<SimKube, SimValkey, SimHost>>,
    caches: Arc<Mutex<ClusterCaches>>,
    menu: Arc<Menu>,
    entries: BTreeMap<String, Entry>,
}

/// A cluster-ctl.
pub struct ClusterCtl {
    line: Line,
    running: Option<Running>,
    /// When it starts (again).
    up_at: Ms,
    ticks: u64,
}

impl ClusterCtl {
    /// A process that starts now.
    pub fn new(world: &Shared, name: &str) -> Self {
        let line = Line::new(world, name);
        let up_at = line.world().now;
        Self { line, running: None, up_at, ticks: 0 }
    }

    /// Ticks begun so far.
    pub fn ticks(&self) -> u64 {
        self.ticks
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
    pub fn hold_cache(&self, kind: u8, until: Ms) {
        if let Some(running) = &self.running {
            caches(&running.caches).hold(kind, until);
        }
    }

    /// When it next has something to do by itself.
    pub fn next(&self) -> Option<Ms> {
        let Some(running) = &self.running else { return Some(self.up_at) };
        let due = running.entries.values().filter(|entry| entry.tick.is_none()).filter_map(|entry| entry.due);
        let world = self.line.world();
        due.chain(caches(&running.caches).next(&world.api)).min()
    }

    /// Does what can be done at this moment. `restart` is how long a crashed process stays down.
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
            running.begin(&self.line, &mut self.ticks, now);
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
        let mut shown = ClusterCaches::listed(api, || rng.i64(2..60));
        let present: Vec<String> =
            shown.clusters.all().filter_map(|cluster| cluster.metadata.name.clone()).collect();
        let (menu, now) = (Arc::clone(&world.menu), world.now);
        shown.whole_cluster = (world.machines(), Arc::clone(&menu));
        drop(world);
        let shown = Arc::new(Mutex::new(shown));
        let context = Context::new(
            SimKube::new(&self.line, Arc::clone(&shown)),
            SimValkey::new(&self.line),
            SimHost::new(&self.line),
            Settings::defaults(Binary::ClusterCtl),
            ClusterMetrics::default(),
        );
        let entry = |name| (name, Entry { tick: None, due: Some(now), failures: 0 });
        let entries = present.into_iter().map(entry).collect();
        Running { context: Arc::new(context), caches: shown, menu, entries }
    }
}

fn caches(shared: &Mutex<ClusterCaches>) -> MutexGuard<'_, ClusterCaches> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    /// What the watches bring wakes clusters.
    fn wake(&mut self, line: &Line) {
        let world = line.world();
        let mut woken = caches(&self.caches).catch_up(&world.api, world.now);
        if !Arc::ptr_eq(&self.menu, &world.menu) && world.without_api(&line.name).is_none() {
            self.menu = Arc::clone(&world.menu);
            woken.extend(self.entries.keys().cloned());
        }
        for cluster in woken {
            let entry = self.entries.entry(cluster).or_insert(Entry { tick: None, due: None, failures: 0 });
            entry.due = Some(world.now);
        }
    }

    /// Starts what is due.
    fn begin(&mut self, line: &Line, ticks: &mut u64, now: Ms) {
        for (cluster, entry) in &mut self.entries {
            if entry.tick.is_some() || entry.due.is_none_or(|due| due > now) {
                continue;
            }
            *ticks += 1;
            line.begin_tick(cluster, *ticks);
            entry.due = None;
            let context = Arc::clone(&self.context);
            let key = ClusterKey { namespace: NAMESPACE.to_owned(), name: cluster.clone() };
            entry.tick = Some(Task::new(async move { context.tick(&key).await }));
        }
    }

    /// Brings the ticks under way further.
    fn poll(&mut self, line: &Line, now: Ms) {
        for (cluster, entry) in &mut self.entries {
            let Some(result) = entry.tick.as_mut().and_then(Task::poll) else { continue };
            entry.tick = None;
            let pause = match result {
                Ok(Next::Gone) => {
                    entry.failures = 0;
                    continue;
                }
                Ok(Next::After(pause)) => {
                    entry.failures = 0;
                    pause
                }
                Err(error) => {
                    entry.failures += 1;
                    let mut world = line.world();
                    world.say(&line.name, &format!("tick of {cluster} failed: {}", telemetry::chain(&error)));
                    BACKOFF.jittered(entry.failures, world.rng.u32(..))
                }
            };
            let due = now + Ms::try_from(pause.as_millis()).unwrap_or(Ms::MAX).max(1);
            entry.due = Some(entry.due.map_or(due, |woken| woken.min(due)));
        }
    }
}
