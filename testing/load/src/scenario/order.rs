//! The order of steps, sampled all the time: no shard below its target, never two shards in motion.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use test_e2e::Objects;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::members::{self, Member};
use crate::probe::Nodes;

/// Pause between two samples.
const PAUSE: Duration = Duration::from_millis(200);
/// A replica re-attaches to a new primary within this; only longer is below the target.
const REATTACHED_WITHIN: Duration = Duration::from_secs(1);

/// What must hold meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Every owner of slots has at least so many replicas in sync.
    pub replicas: usize,
    /// Members of a shard at rest; given in a roll, where only one shard at a time may be otherwise.
    pub one_shard_of: Option<usize>,
}

/// Watches a cluster until dropped.
pub struct Order {
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    rules: Option<Rules>,
    below_since: BTreeMap<String, Instant>,
    findings: BTreeSet<String>,
    samples: u64,
}

impl Order {
    /// Watches the members that `selector` selects.
    pub fn watch(objects: Objects, nodes: Nodes, selector: String) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            loop {
                let is_on = lock(&shared).rules.is_some();
                if is_on && let Ok(members) = members::look(&objects, &nodes, &selector).await {
                    lock(&shared).judge(&members, Instant::now());
                }
                sleep(PAUSE).await;
            }
        });
        Self { state, task }
    }

    /// From now on these rules hold, or none.
    pub fn set(&self, rules: Option<Rules>) {
        *lock(&self.state) = State { rules, ..State::default() };
    }

    /// What was seen that must not be, since the rules were set, and the number of samples.
    pub fn findings(&self) -> (Vec<String>, u64) {
        let state = lock(&self.state);
        (state.findings.iter().cloned().collect(), state.samples)
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn judge(&mut self, members: &[Member], now: Instant) {
        let Some(rules) = self.rules else { return };
        self.samples += 1;
        let mut below = BTreeMap::new();
        for member in members.iter().filter(|member| member.owns_slots()) {
            let synced = member.server.as_ref().map_or(0, |server| server.synced_replicas);
            if synced >= rules.replicas {
                continue;
            }
            let shard = format!("shard {}", member.shard);
            let since = self.below_since.get(&shard).copied().unwrap_or(now);
            if now.duration_since(since) > REATTACHED_WITHIN {
                self.findings.insert(format!("{shard} had {synced} of {} replicas in sync", rules.replicas));
            }
            below.insert(shard, since);
        }
        self.below_since = below;
        if let Some(size) = rules.one_shard_of {
            let moving = in_motion(members, size);
            if moving.len() > 1 {
                self.findings.insert(format!("shards {moving:?} were in motion at once"));
            }
        }
    }
}

/// Shards with a member that joins or leaves, or with more or fewer members than at rest.
fn in_motion(members: &[Member], size: usize) -> Vec<u64> {
    let mut shards: BTreeMap<u64, Vec<&Member>> = BTreeMap::new();
    for member in members.iter().filter(|member| !member.has_left) {
        shards.entry(member.shard).or_default().push(member);
    }
    shards
        .into_iter()
        .filter(|(_, members)| members.len() != size || members.iter().any(|it| it.lifecycle != "Active"))
        .map(|(shard, _)| shard)
        .collect()
}

#[cfg(test)]
mod tests {
    use shared::slots::SlotSet;

    use super::super::members::Server;
    use super::*;

    fn member(shard: u64, lifecycle: &str, synced_replicas: usize) -> Member {
        let slots = SlotSet::all();
        let server = Some(Server { primary: true, slots, synced_replicas, id: String::new() });
        Member {
            name: format!("m{shard}"),
            uid: String::new(),
            address: String::new(),
            machine: String::new(),
            shard,
            lifecycle: lifecycle.to_owned(),
            has_left: false,
            server,
        }
    }

    fn state(replicas: usize, one_shard_of: Option<usize>) -> State {
        State { rules: Some(Rules { replicas, one_shard_of }), ..State::default() }
    }

    #[test]
    fn a_shard_below_its_target_is_found_unless_only_for_a_moment() {
        let mut state = state(1, None);
        let start = Instant::now();
        state.judge(&[member(0, "Active", 0)], start);
        state.judge(&[member(0, "Active", 1)], start + Duration::from_millis(500));
        state.judge(&[member(0, "Active", 0)], start + Duration::from_millis(1500));
        assert!(state.findings.is_empty());
        state.judge(&[member(0, "Active", 0)], start + Duration::from_secs(3));
        assert_eq!(state.findings.len(), 1, "{:?}", state.findings);
    }

    #[test]
    fn two_shards_in_motion_are_found_and_one_is_fine() {
        let mut state = state(0, Some(1));
        let now = Instant::now();
        state.judge(&[member(0, "Joining", 0), member(1, "Active", 0)], now);
        assert!(state.findings.is_empty());
        let two = [member(0, "Leaving", 0), member(1, "Active", 0), member(1, "Active", 0)];
        state.judge(&two, now);
        assert_eq!(state.findings.len(), 1);
    }

    #[test]
    fn a_member_that_has_left_and_only_ends_is_no_motion() {
        let mut state = state(0, Some(1));
        let ending = Member { has_left: true, ..member(0, "Leaving", 0) };
        state.judge(&[ending, member(0, "Active", 0), member(1, "Joining", 0)], Instant::now());
        assert!(state.findings.is_empty(), "{:?}", state.findings);
    }

    #[test]
    fn without_rules_nothing_is_judged() {
        let mut state = State::default();
        state.judge(&[member(0, "Joining", 0), member(1, "Joining", 0)], Instant::now());
        assert_eq!((state.findings.len(), state.samples), (0, 0));
    }
}
