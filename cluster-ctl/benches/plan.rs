//! How long a decision on a settled cluster takes, and reading one view of it: both happen in each tick.
//!
//! A settled cluster is the worst case of the plan: every rule is asked and none acts. The cluster is that of the
//! planner's tests.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark, over what the tests have"
)]

use std::fmt::Write as _;
use std::hint::black_box;

use cluster_ctl::plan::plan;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use shared::slots::contiguous_spread;
use shared::valkey::parse;

#[path = "../tests/plan/world.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod world;

/// Shards; no replicas, so that the largest still fits into memory: each of the nodes lists all of them.
const SHARDS: [u16; 3] = [3, 100, 1_000];

fn decide(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan a settled cluster");
    group.sample_size(10);
    for shards in SHARDS {
        let settled = world::world(shards, 0).formed().with(world::World::all_published);
        let seen = settled.observed();
        assert!(plan(&seen, &settled.want).action.is_none(), "a settled cluster needs no action");
        group.bench_function(BenchmarkId::from_parameter(shards), |bencher| {
            bencher.iter(|| plan(black_box(&seen), black_box(&settled.want)));
        });
    }
    group.finish();
}

/// CLUSTER NODES as the first of `shards` primaries says it.
fn nodes_text(shards: u16) -> String {
    let mut text = String::new();
    for (number, range) in contiguous_spread(shards).into_iter().enumerate() {
        let myself = if number == 0 { "myself," } else { "" };
        let epoch = number + 1;
        writeln!(text, "{epoch:040x} 10.0.0.1:6379@16379 {myself}master - 0 1 {epoch} connected {range}")
            .unwrap();
    }
    text
}

fn read(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("read one view");
    group.sample_size(10);
    for shards in SHARDS {
        let text = nodes_text(shards);
        group.bench_function(BenchmarkId::from_parameter(shards), |bencher| {
            bencher.iter(|| parse::cluster_nodes(black_box(&text)));
        });
    }
    group.finish();
}

criterion_group!(benches, decide, read);
criterion_main!(benches);
