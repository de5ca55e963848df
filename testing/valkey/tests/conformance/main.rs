//! The simulation's model of Valkey beside real servers: the same operations, the same replies, the same outcome.
//!
//! `op` has the words for what is done, `pair` does it to both sides, `picture` says what is compared and what is not.
//! `corners` are sequences written by hand, each for one known peculiarity; `generated` come from a seed. All run at
//! once, because they mostly wait. Where the two differ, the server is right and the model is to be mended.

#![expect(clippy::print_stdout, reason = "how long each sequence took")]

mod corners;
mod generated;
mod op;
mod pair;
mod picture;
mod words;

use std::time::Instant;

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use test_valkey::Version;

/// Sequences at a time: each has some four servers, which wait most of the time.
const AT_ONCE: usize = 24;
/// Names of corners and seeds, separated by commas: nothing else is run.
const ONLY: &str = "VALKEY_CONFORMANCE";

/// A sequence: its name, and what it does.
pub(crate) type Sequence = (String, BoxFuture<'static, Result<()>>);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_does_what_servers_of_9_1_do() -> Result<()> {
    compare(Version::V9_1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_does_what_servers_of_8_1_do() -> Result<()> {
    compare(Version::V8_1).await
}

async fn compare(version: Version) -> Result<()> {
    let only = std::env::var(ONLY).ok();
    let wanted =
        |name: &str| only.as_deref().is_none_or(|only| only.split(',').any(|wanted| wanted.trim() == name));
    let all = corners::all(version).into_iter().chain(generated::all(version, only.as_deref()));
    let chosen: Vec<Sequence> = all.filter(|(name, _)| wanted(name)).collect();
    ensure!(!chosen.is_empty(), "{ONLY} names no sequence");
    let ran = futures::stream::iter(chosen).map(|(name, sequence)| async move {
        let began = Instant::now();
        let outcome = tokio::spawn(sequence).await;
        let outcome = outcome.unwrap_or_else(|panic| Err(panic.into()));
        let took = began.elapsed().as_secs_f32();
        match outcome {
            Ok(()) => {
                println!("{name}: the same, after {took:.1} s");
                None
            }
            Err(error) => Some(format!("{name} ({ONLY}={name}), after {took:.1} s: {error:#}")),
        }
    });
    let ended: Vec<Option<String>> = ran.buffer_unordered(AT_ONCE).collect().await;
    let failures: Vec<&str> = ended.iter().flatten().map(String::as_str).collect();
    ensure!(failures.is_empty(), "{} of {} differ:\n{}", failures.len(), ended.len(), failures.join("\n\n"));
    Ok(())
}
