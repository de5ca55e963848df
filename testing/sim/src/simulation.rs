//! One run: the world and the operator's processes take turns, moment by moment, until the story is over, everything
//! is well again, and the operator is quiet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::clock::{Ms, START};
use crate::node_loop::NodeCtl;
use crate::operator::ClusterCtl;
use crate::ports::mutants::Mutant;
use crate::ports::{Crash, Shared, lock};
use crate::scenario::Scenario;
use crate::world::{Tempo, World};

/// Everything must be well again this long after the story's end, milliseconds.
const HEALING: Ms = 300_000;
/// A crashed process starts again after this long, milliseconds.
const RESTART: Ms = 1_500;
/// Turns of all processes at one moment before something must be wrong with the simulation itself.
const MAX_TURNS: u32 = 10_000;
/// Trace lines in the report of a failure.
const REPORTED: usize = 60;

/// A run that failed: what, and what came before.
#[derive(Debug, thiserror::Error)]
#[error("{violation}\nreplay: cargo run --release -p sim -- --seed {seed} --trace\n{tail}")]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The invariant that does not hold.
    pub violation: String,
    /// The last lines of the trace, and every node as it is.
    pub tail: String,
}

/// What a run was like.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Virtual time from the end of the story until everything was well, milliseconds.
    pub healed_in: Ms,
    /// Ticks of cluster-ctl.
    pub ticks: u64,
    /// Calls of the first cluster-ctl before the last event of the story, and until everything was well.
    pub calls: (u64, u64),
    /// Likewise of the first node-ctl.
    pub node_calls: (u64, u64),
    /// Actions of all cluster-ctls by kind.
    pub actions: BTreeMap<String, u32>,
}

/// A run.
pub struct Simulation {
    world: Shared,
    pub(crate) cluster_ctls: Vec<ClusterCtl>,
    pub(crate) node_ctls: Vec<NodeCtl>,
    scenario: Scenario,
}

impl Simulation {
    /// The start of the story.
    pub fn new(scenario: Scenario, trace: bool) -> Self {
        let pace = Tempo { pod_start: scenario.pod_start };
        let mut world = World::new(scenario.seed, scenario.machines, pace, scenario.rates);
        world.trace.live = trace;
        world.clients.active = scenario.writes;
        world.twins = scenario.twins;
        world.confirms = scenario.confirms;
        let world = Arc::new(Mutex::new(world));
        let count = if scenario.twins { 2 } else { 1 };
        let letters = ["A", "B"].into_iter().take(count);
        let cluster_ctls =
            letters.clone().map(|letter| ClusterCtl::new(&world, &format!("cluster-{letter}"))).collect();
        let node_ctls = letters.map(|letter| NodeCtl::new(&world, &format!("node-{letter}"))).collect();
        Self { world, cluster_ctls, node_ctls, scenario }
    }

    /// The world.
    pub fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// The first cluster-ctl.
    pub fn first(&self) -> Option<&ClusterCtl> {
        self.cluster_ctls.first()
    }

    /// Runs the whole story.
    pub fn run(mut self) -> Result<Summary, Box<Failure>> {
        let events = self.scenario.events.clone();
        let mut before = (0, 0);
        for (at, event) in &events {
            self.until(START + at)?;
            before = self.calls();
            self.happen(event);
        }
        let calm_at = START + self.scenario.calm_at;
        self.until(calm_at)?;
        self.calm();
        let healed_at = self.heal(calm_at + HEALING)?;
        let until = self.calls();
        self.stay_quiet()?;
        let first = self.cluster_ctls.first();
        Ok(Summary {
            healed_in: healed_at - calm_at,
            ticks: first.map_or(0, ClusterCtl::ticks),
            calls: (before.0, until.0),
            node_calls: (before.1, until.1),
            actions: self.world().audit.actions.clone(),
        })
    }

    fn calls(&self) -> (u64, u64) {
        let cluster = self.cluster_ctls.first().map_or(0, |it| it.line().calls());
        (cluster, self.node_ctls.first().map_or(0, |it| it.line().calls()))
    }

    /// The first cluster-ctl and node-ctl crash at these calls.
    pub fn plan_crashes(&self, cluster: Option<Crash>, node: Option<Crash>) {
        self.cluster_ctls.iter().take(1).for_each(|it| it.line().plan_crash(cluster));
        self.node_ctls.iter().take(1).for_each(|it| it.line().plan_crash(node));
    }

    /// Every cluster-ctl makes this error.
    pub fn mutate(&self, mutant: Mutant) {
        self.cluster_ctls.iter().for_each(|it| it.line().mutate(mutant));
    }

    /// Time passes until everything is well, at most until `limit`.
    fn heal(&mut self, limit: Ms) -> Result<Ms, Box<Failure>> {
        loop {
            let now = self.world().now;
            let verdict = self.world().converged();
            match verdict {
                Ok(()) => return Ok(now),
                Err(words) if now >= limit => {
                    let said = self.world().said();
                    return Err(
                        self.failure(&format!("not converged after {} s: {words}; {said}", HEALING / 1000))
                    );
                }
                Err(_) => self.until(now + 500)?,
            }
        }
    }

    /// A well cluster costs no write: not one in so many ticks, and it stays well.
    fn stay_quiet(&mut self) -> Result<(), Box<Failure>> {
        // What was under way when everything became well may still be written down.
        let settled = self.world().now + 30_000;
        self.until(settled)?;
        let writes = self.world().audit.writes;
        let ticks: Vec<u64> = self.cluster_ctls.iter().map(ClusterCtl::ticks).collect();
        let any = !self.world().api.list::<shared::api::ValkeyCluster>().is_empty();
        let limit = self.world().now + 3_600_000;
        if !any {
            return Ok(());
        }
        loop {
            let done = |(it, before): (&ClusterCtl, &u64)| it.ticks() >= before + self.scenario.quiet_ticks;
            if self.cluster_ctls.iter().zip(&ticks).all(done) {
                break;
            }
            let now = self.world().now;
            if now > limit {
                return Err(self.failure("the operator does not look at a settled cluster any more"));
            }
            self.until(now + 1_000)?;
            let more = self.world().audit.writes - writes;
            if more > 0 {
                return Err(self.failure(&format!("{more} writes to a settled cluster")));
            }
        }
        let verdict = self.world().converged();
        verdict.map_err(|words| self.failure(&format!("did not stay converged: {words}")))
    }

    /// Time passes until `end`.
    pub fn until(&mut self, end: Ms) -> Result<(), Box<Failure>> {
        loop {
            self.moment()?;
            let next = self.next().unwrap_or(end);
            let mut world = self.world();
            if next > end {
                world.now = end.max(world.now);
                return Ok(());
            }
            world.now = next.max(world.now);
        }
    }

    /// When something is due next.
    fn next(&self) -> Option<Ms> {
        let queued = self.world().queue.next();
        let clusters = self.cluster_ctls.iter().filter_map(ClusterCtl::next);
        let nodes = self.node_ctls.iter().filter_map(NodeCtl::next);
        queued.into_iter().chain(clusters).chain(nodes).min()
    }

    /// Everything that is due at this moment.
    fn moment(&mut self) -> Result<(), Box<Failure>> {
        for _ in 0..MAX_TURNS {
            let now = {
                let mut world = self.world();
                let now = world.now;
                while let Some(effect) = world.queue.due(now) {
                    effect(&mut world);
                }
                now
            };
            self.cluster_ctls.iter_mut().for_each(|it| it.turn(RESTART));
            self.node_ctls.iter_mut().for_each(|it| it.turn(RESTART));
            let violation = self.world().audit.violations.first().cloned();
            if let Some(violation) = violation {
                return Err(self.failure(&violation));
            }
            if self.next().is_none_or(|next| next > now) {
                return Ok(());
            }
        }
        Err(self.failure("time stands still: the simulation itself is wrong"))
    }

    #[expect(clippy::unnecessary_box_returns, reason = "what fails is returned boxed everywhere")]
    fn failure(&self, violation: &str) -> Box<Failure> {
        let world = self.world();
        let tail = format!("{}\n{}", world.trace.tail(REPORTED).join("\n"), world.views());
        Box::new(Failure { seed: self.scenario.seed, violation: violation.to_owned(), tail })
    }
}

/// Runs the story of `seed`.
pub fn run_seed(seed: u64, trace: bool) -> Result<Summary, Box<Failure>> {
    Simulation::new(Scenario::from_seed(seed), trace).run()
}
