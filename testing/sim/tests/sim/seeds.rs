//! Stories from seeds. A failure prints the command that replays it.

use std::time::{Duration, Instant};

use sim::simulation::run_seed;

/// Fresh stories end after this time, whatever their number.
const TIME_BOX: Duration = Duration::from_mins(1);

fn assert_all_well(seeds: impl Iterator<Item = u64>, limit: Duration) -> usize {
    let started = Instant::now();
    let mut count = 0;
    for seed in seeds.take_while(|_| started.elapsed() < limit) {
        if let Err(failure) = run_seed(seed, false) {
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
    assert_eq!(assert_all_well(0..40, Duration::MAX), 40);
}

/// Stories that once found an error of the operator.
#[test]
fn stories_that_once_ended_badly_end_well() {
    let seeds = [
        16, 34, 37, 58, 68, 69, 76, 79, 80, 86, 96, 107, 115, 1033, 1318, 1364, 1419, 1480, 2042, 2340, 2356,
        2458, 2481, 2529, 2622, 2887, 2962, 3225, 3278,
    ];
    assert_eq!(assert_all_well(seeds.into_iter(), Duration::MAX), seeds.len());
}

#[test]
fn fresh_stories_end_well() {
    let count = std::env::var("SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let first = u64::try_from(since.as_millis()).unwrap();
    let told = assert_all_well(first..first + count, TIME_BOX);
    println!("{told} fresh stories from seed {first} on ended well");
}
