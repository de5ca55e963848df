//! Stories from seeds. A failure prints the command that replays it.

use std::num::NonZero;
use std::ops::Range;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use sim::simulation::run_seed;

/// Stories of a run.
const STORIES: u64 = 2_000;
/// Sources that decide how a story goes: those of the operator, and those of the simulation.
const SOURCES: [&str; 4] = ["../../cluster-ctl/src", "../../node-ctl/src", "../../shared/src", "src"];

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
    let later: [u64; 19] = [
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
        17_596_857_623,
        68_339_613_512,
        168_327_837_793,
    ];
    let told = assert_all_well(seeds.into_iter().chain(later));
    assert_eq!(told, seeds.len() + later.len());
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}: {error}")))
}

/// On every core: stories that no other state of the sources has told; or with `SIM_SECONDS` for so long stories from a seed
/// that no run had before. A failure names the seed, and with it the story is told again, call by call.
#[test]
fn many_fresh_stories_end_well() {
    if let Some(seconds) = number("SIM_SECONDS") {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let first = u64::try_from(since.as_millis()).unwrap();
        tell(first..u64::MAX, Some(Duration::from_secs(seconds)));
        return;
    }
    let first = number("SIM_FIRST_SEED").unwrap_or_else(seed_of_the_sources);
    assert_eq!(tell(first..first + STORIES, None), usize::try_from(STORIES).unwrap());
}

/// A seed that each state of the sources has for itself: a change meets stories that nobody has told before, and whoever
/// repeats the run, wherever, meets the same.
fn seed_of_the_sources() -> u64 {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in SOURCES {
        collect(&here.join(folder), &mut files);
    }
    assert!(files.len() > 100, "{} files of the sources", files.len());
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        hash.update(std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())));
    }
    let bytes = hash.finalize();
    // 40 bits: room to count on from it, and short enough to be copied by hand.
    bytes.iter().take(5).fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    for entry in entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
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
