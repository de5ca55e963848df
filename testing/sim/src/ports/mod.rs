//! The operator's ports with the model behind them.
//!
//! Every call is under way for some virtual time, may be lost on either way, and is a point at which its process can
//! crash. Decides nothing that the real ports do not decide.

pub mod cluster_kube;
pub mod host;
pub mod mutants;
pub mod node_kube;
pub mod objects;
pub mod valkey;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use self::mutants::Mutant;
use crate::clock::Ms;
use crate::faults::Fate;
use crate::world::World;
use crate::world::apiserver::ApiError;

/// The world, shared by all ports of one simulation. One thread uses it, so no lock is ever waited for.
pub type Shared = Arc<Mutex<World>>;

/// `apiTimeout` of the operator, milliseconds.
const API_LIMIT: Ms = 10_000;

/// The world.
pub fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process's way into the world: who calls, how often it has called, and where it is to crash.
#[derive(Clone)]
pub struct Line {
    world: Shared,
    /// Name of the process, for the trace.
    pub name: Arc<str>,
    state: Arc<Mutex<LineState>>,
}

#[derive(Debug, Default)]
struct LineState {
    calls: u64,
    crash: Option<Crash>,
    crashed: bool,
    mutant: Option<Mutant>,
    /// Number of the tick under way, by cluster.
    ticks: BTreeMap<String, u64>,
}

/// Where a process is to crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// At its call of this number, from 1.
    pub at: u64,
    /// After the call was carried out, before its reply; otherwise before it was sent.
    pub after: bool,
}

impl Line {
    /// A line of the process `name`.
    pub fn new(world: &Shared, name: &str) -> Self {
        Self { world: Arc::clone(world), name: name.into(), state: Arc::default() }
    }

    /// The world behind it.
    pub fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    fn state(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans a crash.
    pub fn plan_crash(&self, crash: Option<Crash>) {
        self.state().crash = crash;
    }

    /// Makes the process a mutant.
    pub fn mutate(&self, mutant: Mutant) {
        self.state().mutant = Some(mutant);
    }

    /// The error that it makes.
    pub fn mutant(&self) -> Option<Mutant> {
        self.state().mutant
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Whether the process has crashed; asking takes notice of it.
    pub fn take_crashed(&self) -> bool {
        std::mem::take(&mut self.state().crashed)
    }

    /// A tick of `cluster` begins.
    pub fn begin_tick(&self, cluster: &str, number: u64) {
        self.state().ticks.insert(cluster.to_owned(), number);
    }

    /// The tick of `cluster` under way.
    pub fn tick(&self, cluster: &str) -> u64 {
        self.state().ticks.get(cluster).copied().unwrap_or_default()
    }

    /// Counts a call: whether the process crashes before it, and whether after it.
    fn count(&self) -> (bool, bool) {
        let mut state = self.state();
        state.calls += 1;
        let here = state.crash.filter(|crash| crash.at == state.calls);
        let before = here.is_some_and(|crash| !crash.after);
        state.crashed |= before;
        if here.is_some() {
            state.crash = None;
        }
        (before, here.is_some_and(|crash| crash.after))
    }

    fn crash_now(&self) {
        self.state().crashed = true;
    }

    /// A call of the Kubernetes API.
    pub fn api<T: Send + 'static>(
        &self,
        what: String,
        effect: impl FnOnce(&mut World) -> Result<T, ApiError> + Send + 'static,
    ) -> Reply<Result<T, ApiError>> {
        let reply = Reply::default();
        let (crash_before, crash_after) = self.count();
        let mut world = self.world();
        if crash_before {
            world.say(&self.name, &format!("crashes before: {what}"));
            return reply;
        }
        let World { rates, rng, .. } = &mut *world;
        let fate = rates.api(rng);
        let (there, back) = (1 + rates.latency(rng, API_LIMIT / 20), 1 + rates.latency(rng, API_LIMIT / 20));
        let fate = if world.without_api(&self.name).is_some() { Fate::RequestLost } else { fate };
        let (line, answer) = (self.clone(), reply.clone());
        let at = world.now + there;
        world.queue.plan(at, move |world| {
            let cut = fate == Fate::Fine && world.without_api(&line.name).is_some();
            let fate = if cut { Fate::ReplyLost } else { fate };
            let result = match fate {
                Fate::Refused => Err(ApiError::Internal),
                Fate::RequestLost => Err(ApiError::Timeout),
                Fate::Fine => effect(world),
                Fate::ReplyLost => effect(world).and(Err(ApiError::Timeout)),
            };
            let outcome = result.as_ref().err().map_or("ok".to_owned(), ToString::to_string);
            world.say(&line.name, &format!("{what}: {outcome}{}", fate_word(fate)));
            if crash_after {
                world.say(&line.name, "crashes before it hears of it");
                line.crash_now();
                return;
            }
            let timed_out = matches!(result, Err(ApiError::Timeout));
            let at = world.now + if timed_out { API_LIMIT } else { back };
            world.queue.plan(at, move |_| answer.fill(result));
        });
        reply
    }
}

fn fate_word(fate: Fate) -> &'static str {
    match fate {
        Fate::Fine | Fate::Refused => "",
        Fate::RequestLost => " (never arrived)",
        Fate::ReplyLost => " (was carried out)",
    }
}

/// The answer of a call, some time.
pub struct Reply<T>(Arc<Mutex<Slot<T>>>);

struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl<T> Default for Reply<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Slot { value: None, waker: None })))
    }
}

impl<T> Clone for Reply<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Reply<T> {
    /// The answer is there.
    pub fn fill(&self, value: T) {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.value = Some(value);
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }
}

impl<T> Future for Reply<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = slot.value.take() {
            return Poll::Ready(value);
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
