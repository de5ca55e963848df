//! What is remembered of clusters between ticks. Losing it costs a wait or a repeated message, never safety.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shared::api::ValkeyCluster;

use shared::valkey::types::NodeId;

use crate::action::{Action, Wait};
use crate::machines::Fact;
use crate::model::Millis;
use crate::passwords::Passwords;
use crate::ports::{ClusterKey, World};
use crate::words::Reason;

/// Shortest time between two logged heartbeats of one cluster, milliseconds; wakes between them are not worth a line.
const HEARTBEAT_MILLIS: i64 = 10_000;

/// For so long a server that was told to forget a member drops it again whenever it hears of it (8.1, 9.1: 60 s), rounded up.
const BAN: Duration = Duration::from_secs(61);

/// Of all clusters.
#[derive(Debug, Default)]
pub struct Memory(Mutex<BTreeMap<ClusterKey, Entry>>);

/// Of one cluster.
#[derive(Debug, Default)]
struct Entry {
    /// Our latest write of the cluster, and the resourceVersions that it supersedes: the cache may still show those.
    saved: Option<Arc<ValkeyCluster>>,
    superseded: Vec<String>,
    /// The primary whose role was last given away, and when.
    failover: Option<(NodeId, Millis)>,
    /// Number of the last action that this process recorded.
    recorded: Option<i64>,
    /// Number of the last action of this process of which every reply came.
    ended: Option<i64>,
    /// The last number seen that another process recorded, and since when, by uptime.
    others: Option<(i64, Duration)>,
    /// What was seen of machines whose Pods fell silent, by the UID of the Pod, and since when, by uptime.
    facts: BTreeMap<String, (Fact, Duration)>,
    /// Pods whose servers are silent, by UID, and since when, by uptime.
    silent: BTreeMap<String, ((), Duration)>,
    /// Pods whose members leave with keys, by UID, and since when, by uptime.
    keys_kept: BTreeMap<String, ((), Duration)>,
    /// Whom this process has had forgotten, and when, by uptime.
    forgotten: BTreeMap<NodeId, Duration>,
    /// Ticks in a row that found the cluster changed since the cache saw it.
    outdated: u32,
    /// The last action on objects.
    tried: Option<Tried>,
    /// What was told last.
    told: Option<(Reason, String)>,
    /// Warnings beside it that were told and still hold.
    warned: Vec<Wait>,
    /// When the heartbeat was last logged.
    heartbeat: Option<Millis>,
    /// Passwords last read from the auth Secret of the cluster of this UID.
    passwords: Option<(String, Passwords)>,
    /// The last usable ca.crt of the cluster of this UID.
    authorities: Option<(String, Arc<str>)>,
}

/// An action on objects, how often it was tried in a row, and when last, by uptime.
#[derive(Debug)]
struct Tried {
    action: Action,
    times: u32,
    at: Duration,
}

/// How long each of these Pods has been seen.
fn ages(
    remembered: &mut BTreeMap<String, ((), Duration)>,
    pods: BTreeSet<String>,
    now: Duration,
) -> BTreeMap<String, Duration> {
    let pods = pods.into_iter().map(|pod| (pod, ())).collect();
    aged(remembered, pods, now).into_iter().map(|(pod, ((), age))| (pod, age)).collect()
}

/// How long each of `now_seen` has been seen unchanged; what is not among them any more is forgotten.
fn aged<F: Copy + PartialEq>(
    remembered: &mut BTreeMap<String, (F, Duration)>,
    now_seen: BTreeMap<String, F>,
    now: Duration,
) -> BTreeMap<String, (F, Duration)> {
    let before = std::mem::take(remembered);
    let since = |(pod, fact): (String, F)| {
        let since = before.get(&pod).filter(|(known, _)| *known == fact).map_or(now, |(_, since)| *since);
        (pod, (fact, since))
    };
    *remembered = now_seen.into_iter().map(since).collect();
    let ages = remembered.iter();
    ages.map(|(pod, (fact, since))| (pod.clone(), (*fact, now.saturating_sub(*since)))).collect()
}

impl Memory {
    /// The cluster is gone.
    pub fn forget(&self, key: &ClusterKey) {
        self.lock().remove(key);
    }

    /// Uses our own latest write instead of an older state that the cache still shows.
    pub fn prefer_own_write(&self, key: &ClusterKey, world: &mut World) {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(key) else { return };
        let cached = world.cluster.metadata.resource_version.as_ref();
        match &entry.saved {
            Some(saved) if cached.is_some_and(|version| entry.superseded.contains(version)) => {
                world.cluster = Arc::clone(saved);
            }
            _ => {
                entry.saved = None;
                entry.superseded.clear();
            }
        }
    }

    /// Our write made `saved` of `before`.
    pub fn saved(&self, key: &ClusterKey, before: &ValkeyCluster, saved: ValkeyCluster) {
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        entry.superseded.extend(before.metadata.resource_version.clone());
        entry.recorded = number(&saved).filter(|now| Some(*now) != number(before)).or(entry.recorded);
        entry.saved = Some(Arc::new(saved));
    }

    /// A tick found the cluster changed since the cache saw it; returns how many did so in a row.
    pub fn outdated(&self, key: &ClusterKey) -> u32 {
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        entry.outdated = entry.outdated.saturating_add(1);
        entry.outdated
    }

    /// A tick did not.
    pub fn up_to_date(&self, key: &ClusterKey) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.outdated = 0;
        }
    }

    /// An action on objects was tried.
    pub fn tried(&self, key: &ClusterKey, action: &Action, now: Duration) {
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        let before = entry.tried.take().filter(|tried| action.repeats(&tried.action));
        let times = before.map_or(0, |tried| tried.times).saturating_add(1);
        entry.tried = Some(Tried { action: action.clone(), times, at: now });
    }

    /// How much longer `action` is to wait, if it is the last one once more; `pause` is the pause after so many times.
    pub fn rests(
        &self,
        key: &ClusterKey,
        action: &Action,
        now: Duration,
        pause: impl Fn(u32) -> Duration,
    ) -> Option<Duration> {
        let entries = self.lock();
        let tried = entries.get(key)?.tried.as_ref().filter(|tried| action.repeats(&tried.action))?;
        (tried.at + pause(tried.times)).checked_sub(now).filter(|rest| !rest.is_zero())
    }

    /// Every reply to the action that was recorded last has come.
    pub fn ended(&self, key: &ClusterKey) {
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        entry.ended = entry.recorded;
    }

    /// Whether the action that `cluster` shows is this process's and over.
    pub fn is_over(&self, key: &ClusterKey, cluster: &ValkeyCluster) -> bool {
        let entries = self.lock();
        let ended = entries.get(key).and_then(|entry| entry.ended);
        ended.is_some() && ended == number(cluster)
    }

    /// How long to wait until no command of the action that `cluster` shows can be under way: zero when this process
    /// recorded it or it is over, otherwise until its number has been seen unchanged for `window`. `now` is the uptime.
    pub fn commands_end_in(
        &self,
        key: &ClusterKey,
        cluster: &ValkeyCluster,
        now: Duration,
        window: Duration,
    ) -> Duration {
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        let open = number(cluster).filter(|_| !says_over(cluster));
        let Some(number) = open.filter(|number| Some(*number) != entry.recorded) else {
            entry.others = None;
            return Duration::ZERO;
        };
        let (_, since) = match entry.others {
            Some(seen) if seen.0 == number => seen,
            _ => *entry.others.insert((number, now)),
        };
        (since + window).saturating_sub(now)
    }

    /// How long each of these facts, by the UID of its Pod, has been seen unchanged. What is not among them any more is
    /// forgotten.
    pub fn lasting(
        &self,
        key: &ClusterKey,
        facts: BTreeMap<String, Fact>,
        now: Duration,
    ) -> BTreeMap<String, (Fact, Duration)> {
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        aged(&mut entry.facts, facts, now)
    }

    /// For how long each of these Pods has been silent without an answer in between.
    pub fn silences(
        &self,
        key: &ClusterKey,
        silent: BTreeSet<String>,
        now: Duration,
    ) -> BTreeMap<String, Duration> {
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        ages(&mut entry.silent, silent, now)
    }

    /// For how long the members in these Pods have been leaving with keys.
    pub fn keys_kept(
        &self,
        key: &ClusterKey,
        pods: BTreeSet<String>,
        now: Duration,
    ) -> BTreeMap<String, Duration> {
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        ages(&mut entry.keys_kept, pods, now)
    }

    /// The others were told at `now` to forget `id`.
    pub fn forgot(&self, key: &ClusterKey, id: NodeId, now: Duration) {
        self.lock().entry(key.clone()).or_default().forgotten.insert(id, now);
    }

    /// Whom this process has had forgotten so lately that the others still refuse to know it.
    pub fn banned(&self, key: &ClusterKey, now: Duration) -> BTreeSet<NodeId> {
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        entry.forgotten.retain(|_, at| now.saturating_sub(*at) < BAN);
        entry.forgotten.keys().copied().collect()
    }

    /// The role of `from` was given to a replica at `at`.
    pub fn failed_over(&self, key: &ClusterKey, from: NodeId, at: Millis) {
        self.lock().entry(key.clone()).or_default().failover = Some((from, at));
    }

    /// The last such hand-over or promotion.
    pub fn last_failover(&self, key: &ClusterKey) -> Option<(NodeId, Millis)> {
        self.lock().get(key)?.failover
    }

    /// Whether this is news; remembers it as told.
    pub fn is_news(&self, key: &ClusterKey, reason: Reason, message: &str) -> bool {
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        let now = Some((reason, message.to_owned()));
        let news = entry.told != now;
        entry.told = now;
        news
    }

    /// Those of the warnings that hold now that were not told yet; they are remembered as told while they hold.
    pub fn new_warnings(&self, key: &ClusterKey, holding: Vec<Wait>) -> Vec<Wait> {
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        let new = holding.iter().filter(|warning| !entry.warned.contains(warning)).cloned().collect();
        entry.warned = holding;
        new
    }

    /// Whether the heartbeat of a settled cluster should be logged again; remembers it as logged.
    pub fn heartbeat_is_due(&self, key: &ClusterKey, now: Millis) -> bool {
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        let due = entry.heartbeat.is_none_or(|last| (now.0 - last.0).abs() >= HEARTBEAT_MILLIS);
        if due {
            entry.heartbeat = Some(now);
        }
        due
    }

    /// Keeps the passwords that the auth Secret of the cluster `uid` holds.
    pub fn keep_passwords(&self, key: &ClusterKey, uid: &str, passwords: &Passwords) {
        self.lock().entry(key.clone()).or_default().passwords = Some((uid.to_owned(), passwords.clone()));
    }

    /// The passwords last seen in the auth Secret of the cluster `uid`.
    pub fn passwords(&self, key: &ClusterKey, uid: &str) -> Option<Passwords> {
        let entries = self.lock();
        let (of, passwords) = entries.get(key)?.passwords.as_ref()?;
        (of == uid).then(|| passwords.clone())
    }

    /// Keeps the authorities of the usable TLS Secret of the cluster `uid`.
    pub fn keep_authorities(&self, key: &ClusterKey, uid: &str, authorities: &Arc<str>) {
        self.lock().entry(key.clone()).or_default().authorities =
            Some((uid.to_owned(), Arc::clone(authorities)));
    }

    /// The authorities of the last usable TLS Secret of the cluster `uid`.
    pub fn authorities(&self, key: &ClusterKey, uid: &str) -> Option<Arc<str>> {
        let entries = self.lock();
        let (of, authorities) = entries.get(key)?.authorities.as_ref()?;
        (of == uid).then(|| Arc::clone(authorities))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClusterKey, Entry>> {
        // Each change under the lock is whole: what a panic elsewhere left is still right.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn says_over(cluster: &ValkeyCluster) -> bool {
    let last = cluster.status.as_ref().and_then(|status| status.last_action.as_ref());
    last.is_some_and(|last| last.over)
}

/// Number of the last recorded action.
fn number(cluster: &ValkeyCluster) -> Option<i64> {
    Some(cluster.status.as_ref()?.last_action.as_ref()?.number)
}

#[cfg(test)]
mod tests {
    use shared::api::{LastAction, ValkeyClusterSpec, ValkeyClusterStatus};

    use super::*;

    const WINDOW: Duration = Duration::from_secs(3);

    fn cluster(number: i64) -> ValkeyCluster {
        let last_action = Some(LastAction {
            number,
            kind: "Meet".to_owned(),
            on: String::new(),
            time: crate::build::time(Millis(0)),
            over: false,
        });
        let status = Some(ValkeyClusterStatus { last_action, ..ValkeyClusterStatus::default() });
        ValkeyCluster { status, ..ValkeyCluster::new("c", ValkeyClusterSpec::default()) }
    }

    fn wait(memory: &Memory, number: i64, at: u64) -> Duration {
        memory.commands_end_in(&key(), &cluster(number), Duration::from_secs(at), WINDOW)
    }

    fn key() -> ClusterKey {
        ClusterKey { namespace: "ns".to_owned(), name: "c".to_owned() }
    }

    #[test]
    fn an_action_of_another_process_is_waited_for_until_its_number_rests() {
        let memory = Memory::default();
        assert_eq!(wait(&memory, 7, 100), WINDOW);
        assert_eq!(wait(&memory, 7, 102), Duration::from_secs(1));
        assert_eq!(wait(&memory, 8, 102), WINDOW, "a new number is waited for anew");
        assert_eq!(wait(&memory, 8, 105), Duration::ZERO);
        assert_eq!(wait(&memory, 8, 500), Duration::ZERO);
    }

    #[test]
    fn an_action_that_is_said_to_be_over_is_not_waited_for() {
        let mut over = cluster(7);
        over.status.as_mut().unwrap().last_action.as_mut().unwrap().over = true;
        let wait = Memory::default().commands_end_in(&key(), &over, Duration::from_secs(100), WINDOW);
        assert_eq!(wait, Duration::ZERO);
    }

    #[test]
    fn only_an_action_of_this_process_whose_replies_have_all_come_is_over() {
        let memory = Memory::default();
        memory.ended(&key());
        assert!(!memory.is_over(&key(), &cluster(7)), "another's");
        memory.saved(&key(), &cluster(7), cluster(8));
        assert!(!memory.is_over(&key(), &cluster(8)), "a reply may be missing");
        memory.ended(&key());
        assert!(memory.is_over(&key(), &cluster(8)));
        assert!(!memory.is_over(&key(), &cluster(9)), "another's after it");
    }

    #[test]
    fn a_member_is_banned_until_the_servers_ban_after_the_last_forget_is_over() {
        let memory = Memory::default();
        let (id, at) = (NodeId::from_bytes([7; 20]), Duration::from_secs);
        memory.forgot(&key(), id, at(100));
        assert!(memory.banned(&key(), at(160)).contains(&id));
        memory.forgot(&key(), id, at(130));
        assert!(memory.banned(&key(), at(190)).contains(&id));
        assert!(memory.banned(&key(), at(191)).is_empty());
    }

    #[test]
    fn an_action_of_this_process_is_not_waited_for() {
        let memory = Memory::default();
        memory.saved(&key(), &cluster(7), cluster(8));
        assert_eq!(wait(&memory, 8, 100), Duration::ZERO);
        memory.saved(&key(), &cluster(9), cluster(9));
        assert_eq!(
            wait(&memory, 9, 100),
            WINDOW,
            "a status written beside another's action makes it not ours"
        );
        let fresh = ValkeyCluster::new("c", ValkeyClusterSpec::default());
        assert_eq!(memory.commands_end_in(&key(), &fresh, Duration::ZERO, WINDOW), Duration::ZERO);
    }
}
