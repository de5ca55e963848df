//! Waiting for something to become true: asked again and again until a deadline, and if in vain, saying what was last
//! seen.

use std::future::Future;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// Pause between two questions. Short against what tests wait for, long against what a question costs.
const PAUSE: Duration = Duration::from_millis(100);

/// What one look at the world showed.
#[derive(Debug)]
pub enum Probe<T> {
    /// It is so.
    Yes(T),
    /// Not yet; what there was instead.
    NotYet(String),
}

impl Probe<()> {
    /// [`Probe::Yes`] if `holds`, otherwise what was `seen`.
    pub fn of(holds: bool, seen: impl Into<String>) -> Self {
        if holds { Self::Yes(()) } else { Self::NotYet(seen.into()) }
    }
}

/// Asks `probe` until it says yes, for at most `limit`. An error of the probe counts as not yet.
///
/// # Errors
///
/// The limit has passed: the text names `what` was waited for and what was last seen.
pub async fn eventually<T, F, P>(what: &str, limit: Duration, mut probe: P) -> Result<T>
where
    P: FnMut() -> F,
    F: Future<Output = Result<Probe<T>>>,
{
    let deadline = Instant::now() + limit;
    let mut last = "nothing: the first look did not end".to_owned();
    loop {
        match tokio::time::timeout_at(deadline, probe()).await {
            Ok(Ok(Probe::Yes(value))) => return Ok(value),
            Ok(Ok(Probe::NotYet(seen))) => last = seen,
            Ok(Err(error)) => last = format!("error: {error:#}"),
            Err(_) => bail!("waited {limit:?} for {what}; last seen: {last}"),
        }
        if Instant::now() + PAUSE >= deadline {
            bail!("waited {limit:?} for {what}; last seen: {last}");
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_in_vain_says_what_was_last_seen() {
        let mut count = 0;
        let waited = eventually("the moon", Duration::from_millis(250), || {
            count += 1;
            let seen = format!("look {count}");
            async move { Ok(Probe::<()>::NotYet(seen)) }
        });
        let error = waited.await.unwrap_err().to_string();
        assert!(error.starts_with("waited 250ms for the moon; last seen: look "), "{error}");
    }

    #[tokio::test]
    async fn a_probe_that_hangs_is_given_up_at_the_limit() {
        let waited = eventually("an answer", Duration::from_millis(50), || async {
            std::future::pending::<()>().await;
            Ok(Probe::Yes(()))
        });
        assert!(waited.await.unwrap_err().to_string().contains("the first look did not end"));
    }

    #[tokio::test]
    async fn errors_are_waited_out() {
        let mut first = true;
        let value = eventually("a value", Duration::from_secs(5), || {
            let fail = std::mem::take(&mut first);
            async move {
                anyhow::ensure!(!fail, "no");
                Ok(Probe::Yes(7))
            }
        });
        assert_eq!(value.await.unwrap(), 7);
    }
}
