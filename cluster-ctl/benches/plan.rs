//! `cargo xtask bench plan`: how long a decision takes beside the size of the cluster, and what an observation costs before
//! it: reading a view (once a node), digesting all views (once a tick), memory.
//!
//! A settled cluster asks every rule, and none acts. The others are busy: one has a shard more than is wanted, in one a
//! third of the primaries is silent, in one they are dead, one is about to meet. They are those of the planner's tests.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark, over what the tests have"
)]

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use cluster_ctl::model::{Answer, Observed};
use cluster_ctl::plan::plan;
use shared::slots::contiguous_spread;
use shared::valkey::parse;
use shared::valkey::view::{Sharing, View};

#[path = "../tests/plan/world.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod world;

use world::{Flag, World, world};

/// Shards, and replicas of each.
const SHAPES: [(u16, u16); 4] = [(3, 2), (100, 2), (1_000, 1), (1_000, 2)];
/// One measurement takes about so long, and at least one run.
const PATIENCE: Duration = Duration::from_secs(1);
const RUNS: usize = 101;

fn main() {
    println!("milliseconds; a view: read and parsed; digest: of all views\n");
    println!(
        "  cluster  nodes    a view    digest  memory MiB   settled   scaling    silent      dead   meeting"
    );
    for (shards, replicas) in SHAPES {
        let meeting = decide(&world(shards, replicas).with_slots());
        let mut world = world(shards, replicas).formed();
        let before = resident();
        let (seen, digest) = observe(&world);
        let memory = resident().saturating_sub(before) >> 20;
        let settled = median(|| drop(black_box(plan(black_box(&seen), &world.want))));
        assert!(plan(&seen, &world.want).action.is_none(), "a settled cluster needs no action");
        world.want.shape.shards -= 1;
        let scaling = median(|| drop(black_box(plan(black_box(&seen), &world.want))));
        world.want.shape.shards += 1;
        drop(seen);
        let primaries: Vec<String> =
            world.nodes.keys().step_by(usize::from(replicas) + 1).step_by(3).cloned().collect();
        for name in &primaries {
            world.silence(name, Some(Flag::Fail));
            world.node(name).unheard_millis = Some(6_000);
        }
        let silent = decide(&world);
        for name in &primaries {
            world.kill(name);
        }
        let dead = decide(&world);
        let view = read_view(world.nodes.len());
        let times = [settled, scaling, silent, dead, meeting].map(|time| format!("{:>10.3}", millis(time)));
        println!(
            "{:>9}  {:>5}{:>10.3}{:>10.1}{memory:>12}{}",
            format!("{shards}×{}", replicas + 1),
            world.nodes.len(),
            millis(view),
            millis(digest),
            times.concat(),
        );
    }
}

fn decide(world: &World) -> Duration {
    let seen = world.observed();
    median(|| drop(black_box(plan(black_box(&seen), &world.want))))
}

/// The observation as a tick makes it, and the time that its digest took.
fn observe(world: &World) -> (Observed, Duration) {
    let (mut sharing, mut spent) = (Sharing::default(), Duration::ZERO);
    let members: Vec<_> = world
        .members()
        .map(|mut member| {
            let start = Instant::now();
            if let Answer::Said(report) = &mut member.answer {
                sharing.share(&mut report.nodes);
            }
            spent += start.elapsed();
            member
        })
        .collect();
    let start = Instant::now();
    let seen = world.seen(members.into_iter());
    (seen, spent + start.elapsed())
}

/// CLUSTER NODES of so many nodes, as the first one says it.
fn read_view(nodes: usize) -> Duration {
    let mut text = String::new();
    let ranges = contiguous_spread(u16::try_from(nodes).unwrap());
    for (number, range) in (1..).zip(ranges) {
        let myself = if number == 1 { "myself," } else { "" };
        writeln!(
            text,
            "{number:040x} 10.0.{}.{}:6379@16379,c-{number:05x}.c.ns.svc.cluster.local {myself}master - 0 \
             1796024000000 {number} connected {range}",
            number / 256,
            number % 256,
        )
        .unwrap();
    }
    median(|| drop(black_box(View::from(parse::cluster_nodes(black_box(&text)).unwrap()))))
}

fn median(mut run: impl FnMut()) -> Duration {
    let (begun, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || (times.len() < RUNS && begun.elapsed() < PATIENCE) {
        let start = Instant::now();
        run();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2]
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

/// Memory of this process, bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
