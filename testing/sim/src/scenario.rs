//! From a seed to a story: clusters, what people do to them, what breaks and when. Plain data.

use crate::clock::Ms;
use crate::faults::Rates;

/// A story.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed that it came from; every later draw comes from it too.
    pub seed: u64,
    /// Machines.
    pub machines: u8,
    /// Longest start of a container, milliseconds.
    pub pod_start: Ms,
    /// cluster-ctl and node-ctl run twice.
    pub twins: bool,
    /// How often calls fail while the story lasts.
    pub rates: Rates,
    /// A person confirms deaths that nothing else proves.
    pub confirms: bool,
    /// Clients write.
    pub writes: bool,
    /// Shards and replicas of the first cluster.
    pub shape: (u16, u16),
    /// What happens and when, milliseconds after the start; in order.
    pub events: Vec<(Ms, Event)>,
    /// When the story ends and everything is mended.
    pub calm_at: Ms,
    /// Ticks without a write that are watched at the end.
    pub quiet_ticks: u64,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A cluster is created.
    Create(String, u16, u16),
    /// Its size is edited.
    Resize(String, u16, u16),
    /// It is deleted.
    Delete(String),
    /// The image in the menu changes.
    Image(&'static str),
    /// A process is killed: the primary of a shard, a replica, or any.
    Kill(Victim),
    /// A Pod is deleted by somebody.
    DeletePod(Victim),
    /// A machine goes down, and comes back after some time.
    Machine(u8, Ms),
    /// A machine goes down for good: a while later it leaves the cluster, or a person taints it.
    MachineGone(u8, bool),
    /// A Pod is deleted without grace: the API has it no more while its process still runs.
    ForceDelete(Victim),
    /// A process is stopped for a time.
    Freeze(Victim, Ms),
    /// A process is cut off from peers, operator and clients for a time.
    Isolate(Victim, Ms),
    /// The operator alone does not reach a process for a time.
    Unreachable(Victim, Ms),
    /// A replica applies nothing for a time.
    Lag(Victim, Ms),
    /// One kind of a process's caches is held for a time: process, kind.
    Stale(u8, u8, Ms),
    /// An operator, both of its processes, does not reach the API server for a time, and hears nothing from it.
    NoApi(u8, Ms),
    /// The clock of cluster-ctl jumps, and back again after some time.
    Clock(Ms, Ms),
    /// A process of the operator crashes at a later call and stays down: process, calls, after the call.
    Crash(u8, u64, bool),
}

/// Whom it hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// A slot owner.
    Primary,
    /// A replica.
    Replica,
    /// Any.
    Any,
}

/// Longest story, milliseconds.
const LONGEST: Ms = 90_000;

impl Scenario {
    /// Only a bootstrap, undisturbed.
    pub fn bootstrap(seed: u64, shards: u16, replicas: u16) -> Self {
        Self {
            seed,
            machines: 4,
            pod_start: 2_000,
            twins: false,
            confirms: true,
            rates: Rates::default(),
            writes: false,
            shape: (shards, replicas),
            events: vec![(0, Event::Create("cart".to_owned(), shards, replicas))],
            calm_at: 30_000,
            quiet_ticks: 6,
        }
    }

    /// A bootstrap, and one thing that happens after it.
    pub fn one_event(seed: u64, shards: u16, replicas: u16, event: Event) -> Self {
        let mut scenario = Self::bootstrap(seed, shards, replicas);
        scenario.writes = true;
        scenario.events.push((15_000, event));
        scenario.calm_at = 16_000;
        scenario
    }

    /// The story of `seed`.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let shape = (rng.u16(1..=6), rng.u16(0..=2));
        let mut scenario = Self {
            machines: rng.u8(3..=6),
            pod_start: rng.i64(500..4_000),
            twins: rng.u8(0..4) == 0,
            confirms: rng.bool(),
            writes: rng.bool(),
            calm_at: rng.i64(20_000..LONGEST),
            ..Self::bootstrap(seed, shape.0, shape.1)
        };
        if rng.bool() {
            scenario.rates = Rates {
                api_refused: rng.u32(0..40),
                api_lost: rng.u32(0..15),
                reply_lost: rng.u32(0..30),
                slow: rng.u32(0..60),
            };
        }
        scenario.people(&mut rng);
        scenario.trouble(&mut rng);
        scenario.apart(&mut fastrand::Rng::with_seed(seed ^ 0xa9a7));
        scenario.events.sort_by_key(|(at, _)| *at);
        scenario
    }

    /// What people do.
    fn people(&mut self, rng: &mut fastrand::Rng) {
        let (shards, replicas) = self.shape;
        if rng.u8(0..4) == 0 {
            // A neighbour whose name prefixes ours and whose Pods share the machines and their addresses.
            let at = rng.i64(0..20_000);
            self.events.push((at, Event::Create("cart-1".to_owned(), rng.u16(1..=2), rng.u16(0..=1))));
        }
        let size = |rng: &mut fastrand::Rng| (rng.u16(1..=6), rng.u16(0..=2));
        match rng.u8(0..12) {
            0 => {
                // Before any Pod can run: the snapshot is taken anew.
                let ((shards, replicas), at) = (size(rng), rng.i64(50..400));
                self.events.push((at, Event::Resize("cart".to_owned(), shards, replicas)));
            }
            1..=3 => {
                for _ in 0..rng.u8(1..=2) {
                    let ((shards, replicas), at) = (size(rng), rng.i64(500..self.calm_at));
                    self.events.push((at, Event::Resize("cart".to_owned(), shards, replicas)));
                }
            }
            4 => self.events.push((rng.i64(0..self.calm_at), Event::Delete("cart".to_owned()))),
            5 => {
                self.events.insert(0, (0, Event::Image("bad")));
                self.events.push((rng.i64(1_000..self.calm_at), Event::Image("9.1.2")));
            }
            6 | 7 => self.events.push((rng.i64(1_000..self.calm_at), Event::Image("9.1.3"))),
            8 => {
                let at = rng.i64(500..self.calm_at);
                self.events.push((at, Event::Resize("cart".to_owned(), shards, replicas + 1)));
            }
            _ => {}
        }
    }

    /// What breaks.
    fn trouble(&mut self, rng: &mut fastrand::Rng) {
        let count = match rng.u8(0..10) {
            0 => 0,
            1..=6 => rng.u8(1..4),
            _ => rng.u8(4..9),
        };
        for _ in 0..count {
            let at = rng.i64(0..self.calm_at);
            let event = self.one_trouble(rng);
            self.events.push((at, event));
        }
    }

    /// In one story of four the operator is cut off from the API server while everything else goes on.
    fn apart(&mut self, rng: &mut fastrand::Rng) {
        if rng.u8(0..4) == 0 {
            let at = rng.i64(0..self.calm_at);
            self.events.push((at, Event::NoApi(rng.u8(0..2), rng.i64(1_000..40_000))));
        }
    }

    fn one_trouble(&self, rng: &mut fastrand::Rng) -> Event {
        let victim = *rng.choice(&[Victim::Primary, Victim::Replica, Victim::Any]).unwrap_or(&Victim::Any);
        let long = rng.i64(500..20_000);
        let short = rng.i64(200..8_000);
        match rng.u8(0..22) {
            0..=5 => Event::Kill(victim),
            6 => Event::DeletePod(victim),
            7 => Event::Machine(rng.u8(0..self.machines), rng.i64(3_000..30_000)),
            8 | 9 => Event::Freeze(victim, long),
            10 => Event::Isolate(victim, long),
            11 => Event::Unreachable(victim, long),
            12 => Event::Lag(victim, long),
            13 | 14 => Event::Stale(rng.u8(0..4), rng.u8(0..4), short),
            15 => {
                let by = *rng.choice(&[-3_600_000, -5_000, 5_000, 3_600_000]).unwrap_or(&0);
                Event::Clock(by, short)
            }
            20 => Event::ForceDelete(victim),
            21 => Event::MachineGone(rng.u8(0..self.machines), rng.bool()),
            16..=18 => Event::Crash(rng.u8(0..4), rng.u64(1..60), rng.bool()),
            _ => Event::Kill(Victim::Any),
        }
    }
}
