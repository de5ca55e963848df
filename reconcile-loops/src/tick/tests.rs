//! The rhythm, on a virtual clock.

use super::*;
use crate::seen::ObjectKey;
use shared::metrics::Metrics;
use tokio::sync::mpsc;

fn key(name: &str) -> ClusterKey {
    ClusterKey(ObjectKey { namespace: "ns".to_owned(), name: name.to_owned() })
}

fn cluster(name: &str) -> ClusterSeen {
    ClusterSeen {
        key: key(name),
        uid: name.to_owned(),
        version: None,
        generation: None,
        conditions: Vec::new(),
        tls_secret: None,
        nodes: Vec::new(),
    }
}

/// A loop that writes down when it passed over which cluster.
struct Recorder {
    clusters: Vec<&'static str>,
    /// A pass over this one never ends.
    stuck: Option<&'static str>,
    /// The first pass over this one panics.
    panics: Option<&'static str>,
    /// Early passes settle from this number on.
    settles_at: usize,
    changes: tokio::sync::Mutex<mpsc::UnboundedReceiver<&'static str>>,
    passes: Mutex<Vec<(Duration, &'static str, bool)>>,
    start: Instant,
}

impl Recorder {
    fn new(clusters: &[&'static str]) -> (mpsc::UnboundedSender<&'static str>, Self) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let recorder = Self {
            clusters: clusters.to_vec(),
            stuck: None,
            panics: None,
            settles_at: 1,
            changes: tokio::sync::Mutex::new(receiver),
            passes: Mutex::default(),
            start: Instant::now(),
        };
        (sender, recorder)
    }

    fn seconds(&self, name: &str, early: bool) -> Vec<u64> {
        let passes = lock(&self.passes);
        let wanted = passes.iter().filter(|(_, passed, kind)| *passed == name && *kind == early);
        wanted.map(|(at, _, _)| at.as_secs()).collect()
    }
}

impl Reload for Recorder {
    const NAME: &'static str = "recorder";

    fn clusters(&self, only: Option<&ClusterKey>) -> Vec<ClusterSeen> {
        let wanted = |name: &&&str| only.is_none_or(|key| key.0.name == **name);
        self.clusters.iter().filter(wanted).map(|name| cluster(name)).collect()
    }

    async fn pass(&self, cluster: &ClusterSeen, early: bool) -> Count {
        let name = self.clusters.iter().find(|name| **name == cluster.key.0.name).unwrap();
        lock(&self.passes).push((self.start.elapsed(), name, early));
        if self.stuck == Some(*name) {
            std::future::pending::<()>().await;
        }
        assert!(self.panics != Some(*name) || self.seconds(name, early).len() > 1, "as the test wants");
        let number = self.seconds(name, true).len();
        Count { nodes: 1, settled: number >= self.settles_at, ..Count::default() }
    }

    async fn changed(&self) -> BTreeSet<ClusterKey> {
        match self.changes.lock().await.recv().await {
            Some(name) => BTreeSet::from([key(name)]),
            None => std::future::pending().await,
        }
    }

    fn summary(&self, _clusters: usize, _total: Count) {}
}

/// Runs the loop for `seconds` of virtual time with changes at the given times.
async fn run_for(
    recorder: Recorder,
    changes: mpsc::UnboundedSender<&'static str>,
    at: &[(u64, &'static str)],
    seconds: u64,
) -> Arc<Recorder> {
    let recorder = Arc::new(recorder);
    let (trigger, shutdown) = shared::health::Shutdown::new();
    let (health, metrics) = (Health::new(), Metrics::new("test", "0").controller);
    let turn = supervised(Arc::clone(&recorder), Duration::from_secs(30), &health, &shutdown, &metrics);
    let script = async {
        let start = Instant::now();
        for (second, name) in at {
            tokio::time::sleep_until(start + Duration::from_secs(*second)).await;
            changes.send(name).unwrap();
        }
        tokio::time::sleep_until(start + Duration::from_secs(seconds)).await;
        trigger.stop();
    };
    tokio::join!(turn, script);
    recorder
}

#[tokio::test(start_paused = true)]
async fn a_quiet_cluster_is_passed_over_once_a_period_and_at_the_start() {
    let (changes, recorder) = Recorder::new(&["a", "b"]);
    let recorder = run_for(recorder, changes, &[], 65).await;
    assert_eq!(recorder.seconds("a", false), [0, 30, 60]);
    assert_eq!(recorder.seconds("b", false), [0, 30, 60]);
    assert!(recorder.seconds("a", true).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_change_is_followed_each_second_until_it_is_through() {
    let (changes, mut recorder) = Recorder::new(&["a", "b"]);
    recorder.settles_at = 4;
    let recorder = run_for(recorder, changes, &[(10, "a")], 29).await;
    assert_eq!(recorder.seconds("a", true), [10, 11, 12, 13]);
    assert!(recorder.seconds("b", true).is_empty(), "the other cluster did not change");
}

#[tokio::test(start_paused = true)]
async fn a_change_that_never_gets_through_is_left_to_the_period_after_90_seconds() {
    let (changes, mut recorder) = Recorder::new(&["a"]);
    recorder.settles_at = usize::MAX;
    let recorder = run_for(recorder, changes, &[(1, "a")], 299).await;
    let early = recorder.seconds("a", true);
    assert_eq!((early.first(), early.last()), (Some(&1), Some(&91)));
    assert_eq!(recorder.seconds("a", false).len(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_second_change_prolongs_the_first() {
    let (changes, mut recorder) = Recorder::new(&["a"]);
    recorder.settles_at = usize::MAX;
    let recorder = run_for(recorder, changes, &[(1, "a"), (60, "a")], 300).await;
    assert_eq!(recorder.seconds("a", true).last(), Some(&150));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_hangs_delays_no_other() {
    let (changes, mut recorder) = Recorder::new(&["hangs", "b"]);
    recorder.stuck = Some("hangs");
    recorder.settles_at = 2;
    let recorder = run_for(recorder, changes, &[(5, "hangs"), (6, "b")], 29).await;
    assert_eq!(recorder.seconds("b", false), [0]);
    assert_eq!(recorder.seconds("b", true), [6, 7]);
    assert_eq!(recorder.seconds("hangs", false), [0]);
    assert!(recorder.seconds("hangs", true).is_empty(), "in one pass at a time");
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_hangs_is_given_up_and_the_period_goes_on() {
    let (changes, mut recorder) = Recorder::new(&["hangs", "b"]);
    recorder.stuck = Some("hangs");
    let recorder = run_for(recorder, changes, &[], 125).await;
    assert_eq!(recorder.seconds("b", false), [0, 60, 120]);
    assert_eq!(recorder.seconds("hangs", false), [0, 60, 120]);
}

#[tokio::test(start_paused = true)]
async fn a_change_to_something_unknown_is_dropped() {
    let (changes, recorder) = Recorder::new(&["a"]);
    let recorder = run_for(recorder, changes, &[(5, "gone")], 29).await;
    assert_eq!(lock(&recorder.passes).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_panics_is_started_again() {
    let (changes, mut recorder) = Recorder::new(&["panics", "b"]);
    recorder.panics = Some("panics");
    let recorder = run_for(recorder, changes, &[], 29).await;
    assert_eq!(recorder.seconds("panics", false), [0, 1]);
    assert_eq!(recorder.seconds("b", false).last(), Some(&1));
}
