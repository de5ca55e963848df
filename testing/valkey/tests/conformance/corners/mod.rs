//! Sequences written by hand, each for one known peculiarity of the engine.

mod failover;
mod members;
mod refusals;
mod slots;

use std::fmt::Display;

use anyhow::Result;
use test_valkey::Version;

use crate::Sequence;
use crate::pair::Pair;

/// All that make sense for this engine.
pub(crate) fn all(version: Version) -> Vec<Sequence> {
    let mut all = failover::all(version);
    all.extend(slots::all(version));
    all.extend(members::all(version));
    all.extend(refusals::all(version));
    all
}

/// What was done before `outcome`, if it is a failure.
pub(crate) fn told<E: Into<anyhow::Error> + Display>(pair: &Pair, outcome: Result<(), E>) -> Result<()> {
    outcome.map_err(|error| error.into().context(pair.told()))
}

/// The list of these sequences: `fn all(Version) -> Vec<Sequence>`. Each is `async fn(&mut Pair)`, and gets the cluster
/// that is named with it: `[shards, replicas of each, members without slots]`, or a number of empty nodes.
macro_rules! corners {
    ($($name:ident: [$shards:literal, $replicas:literal, $spare:literal]),* ; $($alone:ident: $count:literal),* $(,)?) => {
        pub(super) fn all(version: test_valkey::Version) -> Vec<crate::Sequence> {
            vec![
                $((stringify!($name).to_owned(), Box::pin(async move {
                    let mut pair = crate::pair::Pair::formed(version, $shards, $replicas, $spare).await?;
                    let outcome = $name(&mut pair).await;
                    crate::corners::told(&pair, outcome)
                }) as futures::future::BoxFuture<'static, anyhow::Result<()>>),)*
                $((stringify!($alone).to_owned(), Box::pin(async move {
                    let mut pair = crate::pair::Pair::start(version, $count).await?;
                    let outcome = $alone(&mut pair).await;
                    crate::corners::told(&pair, outcome)
                }) as futures::future::BoxFuture<'static, anyhow::Result<()>>),)*
            ]
        }
    };
}
use corners;
