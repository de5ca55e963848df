//! Stories from seeds. A failure prints the command that replays it.

use std::num::NonZero;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sim::simulation::run_seed;

/// The stories of every run, which are the same until the code changes.
const COMMON: Range<u64> = 50_000..52_000;

fn assert_all_well(seeds: impl Iterator<Item = u64>) -> usize {
    let failed = |seed| run_seed(seed, false).map_or_else(|failure| Some((seed, failure)), |_| None);
    let mut count = 0;
    for seed in seeds {
        if let Some((seed, failure)) = failed(seed) {
            panic!("seed {seed}: {failure}");
        }
        count += 1;
    }
    count
}

#[test]
fn the_same_seed_tells_the_same_story() {
    let (one, two) = (run_seed(7, false).unwrap(), run_seed(7, false).unwrap());
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
}

#[test]
fn fixed_stories_end_well() {
    assert_eq!(assert_all_well(0..40), 40);
}

/// Stories that once found an error of the operator.
#[test]
fn stories_that_once_ended_badly_end_well() {
    let seeds = [
        16, 34, 37, 58, 68, 69, 76, 79, 80, 86, 96, 107, 115, 1033, 1318, 1364, 1419, 1480, 2042, 2340, 2356,
        2458, 2481, 2529, 2622, 2887, 2962, 3225, 3278, 9144, 10068, 10095, 10213, 10320, 30302, 30985,
        51411,
    ];
    let later: [u64; 16] = [
        1_126_515_853,
        1_126_516_487,
        710_396,
        711_618,
        712_188,
        712_813,
        713_256,
        713_275,
        743_238,
        752_738,
        760_321,
        761_115,
        1_003_365_982_430,
        645_127_110_771,
        131_113_346_428,
        930_634_557_284,
    ];
    let told = assert_all_well(seeds.into_iter().chain(later));
    assert_eq!(told, seeds.len() + later.len());
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}: {error}")))
}

/// On every core: the common stories; or with `SIM_SECONDS` for so long stories from a seed that no run had before. A
/// failure names the seed, and with it the story is told again, call by call.
#[test]
fn many_stories_end_well() {
    if let Some(seconds) = number("SIM_SECONDS") {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let first = u64::try_from(since.as_millis()).unwrap();
        tell(first..u64::MAX, Some(Duration::from_secs(seconds)));
        return;
    }
    assert_eq!(tell(COMMON, None), COMMON.count());
}

/// Tells the stories of `seeds` on every core, until they or the time are over; how many there were.
fn tell(seeds: Range<u64>, time: Option<Duration>) -> usize {
    let first = seeds.start;
    let (next, failed, started) = (AtomicU64::new(first), AtomicBool::new(false), Instant::now());
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let told = std::thread::scope(|scope| {
        let tell = || {
            let drawn = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
            let due = |seed: u64| seeds.contains(&seed) && time.is_none_or(|time| started.elapsed() < time);
            let wanted = |seed: &u64| due(*seed) && !failed.load(Ordering::Relaxed);
            let guard = FailsAll(&failed);
            let told = assert_all_well(drawn.take_while(wanted));
            std::mem::forget(guard);
            told
        };
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(tell)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .sum::<usize>()
    });
    assert!(told > 0, "no story was told");
    println!("{told} stories from seed {first} on ended well in {} s", started.elapsed().as_secs());
    told
}

/// One thread's failure ends all.
struct FailsAll<'a>(&'a AtomicBool);

impl Drop for FailsAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
