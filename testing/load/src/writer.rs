//! The application: tasks that write and read numbered values at an even pace, each with keys of its own.
//!
//! A key has one writer, so its account is exact. Reads are judged like the final look: a loss is noticed when it
//! shows first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use crate::data::FLEETING;
use crate::keys::{Entry, Kind};
use crate::ledger::{Account, Finding, Verdict};
use crate::record::{Recorder, Who};
use crate::store::Store;

/// Of so many commands one is a read.
const READ_EVERY: usize = 4;
/// Extra time in which an expired key may still be there.
const EXPIRY_SLACK: Duration = Duration::from_millis(500);
/// How long a key is tried to be read for a verdict.
const READABLE_WITHIN: Duration = Duration::from_secs(20);
/// Findings that a verdict tells in words.
const EXAMPLES: usize = 10;

/// A key and its account.
pub struct Item {
    entry: Entry,
    account: Account,
    last_write: Option<Instant>,
}

/// The keys of one task; locked while a command is under way, so that who holds the lock is alone with them.
pub type Shelf = Arc<Mutex<Vec<Item>>>;

/// Deals the keys out to `tasks` shelves.
pub fn shelves(entries: Vec<Entry>, tasks: usize) -> Vec<Shelf> {
    let mut shelves: Vec<Vec<Item>> = (0..tasks.max(1)).map(|_| Vec::new()).collect();
    let count = shelves.len();
    for (index, entry) in entries.into_iter().enumerate() {
        if let Some(shelf) = shelves.get_mut(index % count) {
            shelf.push(Item { entry, account: Account::default(), last_write: None });
        }
    }
    shelves.into_iter().map(|shelf| Arc::new(Mutex::new(shelf))).collect()
}

/// Writes every key of the shelf once, so that it holds data before anything happens.
///
/// # Errors
///
/// A key could not be written; the text is the failure.
pub async fn fill<S: Store>(store: &S, shelf: &Shelf) -> Result<(), String> {
    for item in shelf.lock().await.iter_mut() {
        let number = item.account.next_number();
        store.write(&item.entry, number).await.map_err(|failure| failure.to_string())?;
        item.account.acknowledge(number);
        item.last_write = Some(Instant::now());
    }
    Ok(())
}

/// Writes and reads keys of the shelf at random, one command each `pause`, until `stop`.
pub async fn work<S: Store>(
    store: S,
    shelf: Shelf,
    recorder: Recorder,
    pause: Duration,
    mut random: fastrand::Rng,
    stop: Arc<AtomicBool>,
) {
    let mut pace = interval(pause);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !stop.load(Ordering::Relaxed) {
        pace.tick().await;
        let mut items = shelf.lock().await;
        if items.is_empty() {
            return;
        }
        let index = random.usize(..items.len());
        let Some(item) = items.get_mut(index) else { return };
        if random.usize(..READ_EVERY) == 0 {
            read(&store, item, &recorder).await;
        } else {
            write(&store, item, &recorder).await;
        }
    }
}

async fn write<S: Store>(store: &S, item: &mut Item, recorder: &Recorder) {
    let from = recorder.now();
    let number = item.account.next_number();
    let outcome = store.write(&item.entry, number).await;
    item.last_write = Some(Instant::now());
    if outcome.is_ok() {
        item.account.acknowledge(number);
    }
    let failure = outcome.err().map(|failure| failure.kind);
    recorder.ended(Who::Application, item.entry.slot, from, failure, true);
}

async fn read<S: Store>(store: &S, item: &Item, recorder: &Recorder) {
    let from = recorder.now();
    let outcome = store.read(&item.entry).await;
    let slot = item.entry.slot;
    match outcome {
        Ok(seen) => {
            recorder.ended(Who::Application, slot, from, None, false);
            if let Some(finding) = item.account.judge(item.entry.kind, &seen) {
                recorder.notice(format!("{}: {finding:?}", item.entry.key));
            }
        }
        Err(failure) => recorder.ended(Who::Application, slot, from, Some(failure.kind), false),
    }
}

/// Reads every key of the shelf and judges it; a loss is counted once.
pub async fn verify<S: Store>(store: &S, shelf: &Shelf) -> (Verdict, Vec<u16>) {
    let mut verdict = Verdict::default();
    let mut slots = Vec::new();
    for item in shelf.lock().await.iter_mut() {
        verdict.keys += 1;
        verdict.acknowledged += item.account.count();
        let finding = match look(store, item).await {
            Ok(finding) => finding,
            Err(failure) => {
                verdict.unreadable += 1;
                example(&mut verdict, &item.entry.key, &failure);
                continue;
            }
        };
        match finding {
            None => {}
            Some(Finding::Lost(count)) => {
                verdict.lost += count;
                verdict.keys_with_loss += 1;
                slots.push(item.entry.slot);
                example(&mut verdict, &item.entry.key, &format!("{count} lost"));
                item.account.accept_loss();
            }
            Some(Finding::Wrong(what)) => {
                verdict.wrong += 1;
                example(&mut verdict, &item.entry.key, &what);
            }
        }
    }
    (verdict, slots)
}

fn example(verdict: &mut Verdict, key: &str, what: &str) {
    if verdict.examples.len() < EXAMPLES {
        verdict.examples.push(format!("{key}: {what}"));
    }
}

/// Reads one key until an answer comes; of a fleeting key also whether it has gone in time.
async fn look<S: Store>(store: &S, item: &Item) -> Result<Option<Finding>, String> {
    let deadline = Instant::now() + READABLE_WITHIN;
    loop {
        match store.read(&item.entry).await {
            Ok(seen) => {
                let overdue = item.last_write.is_some_and(|at| at.elapsed() > FLEETING + EXPIRY_SLACK);
                if item.entry.kind == Kind::Fleeting && overdue && !seen.numbers.is_empty() {
                    return Ok(Some(Finding::Wrong("it is there, but its time is over".to_owned())));
                }
                return Ok(item.account.judge(item.entry.kind, &seen));
            }
            Err(failure) if Instant::now() > deadline => return Err(failure.to_string()),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex as Plain;

    use super::*;
    use crate::data::Seen;
    use crate::keys;
    use crate::store::Failure;

    /// A server that may acknowledge and forget, or store and not answer.
    #[derive(Clone, Default)]
    struct Model {
        values: Arc<Plain<BTreeMap<String, Vec<u64>>>>,
        forgets: Option<fn(u64) -> bool>,
        silent: Option<fn(u64) -> bool>,
    }

    impl Store for Model {
        async fn write(&self, entry: &Entry, number: u64) -> Result<(), Failure> {
            if !self.forgets.is_some_and(|forgets| forgets(number)) {
                self.values.lock().unwrap().entry(entry.key.clone()).or_default().push(number);
            }
            if self.silent.is_some_and(|silent| silent(number)) {
                return Err(Failure { kind: "timeout".to_owned(), detail: String::new() });
            }
            Ok(())
        }

        async fn read(&self, entry: &Entry) -> Result<Seen, Failure> {
            let all = self.values.lock().unwrap().get(&entry.key).cloned().unwrap_or_default();
            let first = if entry.kind.is_single() { all.len().saturating_sub(1) } else { 0 };
            Ok(Seen { numbers: all[first..].to_vec(), broken: None })
        }
    }

    fn lasting_keys(count: usize) -> Vec<Entry> {
        keys::entries(count).into_iter().filter(|it| it.kind != Kind::Fleeting).collect()
    }

    async fn play(store: &Model) -> (Verdict, Recorder) {
        let shelf = shelves(lasting_keys(32), 1).remove(0);
        let recorder = Recorder::default();
        fill(store, &shelf).await.unwrap();
        for _ in 0..5 {
            for item in shelf.lock().await.iter_mut() {
                write(store, item, &recorder).await;
            }
        }
        for item in shelf.lock().await.iter() {
            read(store, item, &recorder).await;
        }
        (verify(store, &shelf).await.0, recorder)
    }

    #[tokio::test]
    async fn an_honest_server_has_lost_nothing() {
        let (verdict, recorder) = play(&Model::default()).await;
        assert!(verdict.is_clean(), "{verdict:?}");
        assert_eq!((verdict.keys, verdict.acknowledged), (28, 28 * 6));
        assert!(recorder.snapshot().noticed.is_empty());
    }

    #[tokio::test]
    async fn a_server_that_forgets_what_it_acknowledged_is_found_out() {
        let (verdict, recorder) =
            play(&Model { forgets: Some(|number| number == 6), ..Model::default() }).await;
        assert_eq!((verdict.lost, verdict.keys_with_loss), (28, 28), "{verdict:?}");
        assert!(!verdict.is_clean() && !verdict.examples.is_empty());
        assert_eq!(recorder.snapshot().noticed.len(), 28);
    }

    #[tokio::test]
    async fn a_server_that_forgets_everything_has_lost_every_key() {
        let (verdict, _) = play(&Model { forgets: Some(|_| true), ..Model::default() }).await;
        assert_eq!(verdict.keys_with_loss, 28);
        assert!(verdict.lost >= 28 * 4);
    }

    #[tokio::test]
    async fn a_write_that_failed_is_a_failure_and_no_loss_whether_it_is_there_or_not() {
        let silent: Option<fn(u64) -> bool> = Some(|number| number == 6);
        for forgets in [None, silent] {
            let (verdict, recorder) = play(&Model { forgets, silent, ..Model::default() }).await;
            assert!(verdict.is_clean(), "{verdict:?}");
            let failures: u32 = recorder.snapshot().counts.iter().map(|it| it.failures).sum();
            assert_eq!(failures, 28);
        }
    }

    #[tokio::test]
    async fn a_loss_is_counted_once() {
        let store = Model { forgets: Some(|number| number > 1), ..Model::default() };
        let shelf = shelves(lasting_keys(8), 1).remove(0);
        let recorder = Recorder::default();
        fill(&store, &shelf).await.unwrap();
        write(&store, &mut shelf.lock().await[0], &recorder).await;
        assert_eq!(verify(&store, &shelf).await.0.lost, 1);
        assert_eq!(verify(&store, &shelf).await.0.lost, 0);
    }

    #[tokio::test]
    async fn a_key_whose_time_is_over_must_be_gone() {
        let entry = keys::entries(8).into_iter().find(|it| it.kind == Kind::Fleeting).unwrap();
        let shelf = shelves(vec![entry], 1).remove(0);
        let store = Model::default();
        fill(&store, &shelf).await.unwrap();
        assert_eq!(verify(&store, &shelf).await.0.wrong, 0);
        shelf.lock().await[0].last_write = Instant::now().checked_sub(FLEETING + Duration::from_secs(1));
        assert_eq!(verify(&store, &shelf).await.0.wrong, 1);
    }
}
