//! Polling with a deadline.

use std::time::{Duration, Instant};

use anyhow::anyhow;

/// Polls `probe` every 20 ms until it gives a value; after `limit` fails with what it last saw.
///
/// The probe returns `Err(what was seen)` while the condition does not hold.
pub async fn eventually<T, F>(what: &str, limit: Duration, mut probe: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = Result<T, String>>,
{
    let start = Instant::now();
    loop {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(seen) if start.elapsed() > limit => {
                return Err(anyhow!("{what}: not within {limit:?}; last seen: {seen}"));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
