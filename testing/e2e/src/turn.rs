//! Which tests play at the same time: a few that share the one operator, or a single one that stops it or measures.
//!
//! Owns nothing but the order. A test that waits for its turn holds nothing.

use std::sync::{Arc, LazyLock};

use anyhow::{Context as _, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Scenes at a time. Most of a test is waiting for something, so a few fit on two processors; with many, times that
/// tests allow would say more about the machine than about the operator.
pub const AT_A_TIME: u32 = 3;

/// First come, first served: a test that wants to be alone is not overtaken for ever.
static SEATS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(AT_A_TIME as usize)));

/// The right to play, given back when dropped.
#[derive(Debug)]
pub struct Turn {
    _seats: OwnedSemaphorePermit,
}

impl Turn {
    /// Waits for a turn beside others.
    ///
    /// # Errors
    ///
    /// Never, as nobody closes the semaphore.
    pub async fn beside_others() -> Result<Self> {
        Self::take(1).await
    }

    /// Waits until no other test plays, and lets none begin.
    ///
    /// # Errors
    ///
    /// Never, as nobody closes the semaphore.
    pub async fn alone() -> Result<Self> {
        Self::take(AT_A_TIME).await
    }

    async fn take(seats: u32) -> Result<Self> {
        let seats = Arc::clone(&SEATS).acquire_many_owned(seats).await.context("a turn")?;
        Ok(Self { _seats: seats })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn one_that_is_alone_waits_for_those_before_it_and_is_not_overtaken() {
        let first = Turn::beside_others().await.unwrap();
        let second = Turn::beside_others().await.unwrap();
        let mut alone = Box::pin(Turn::alone());
        assert!(timeout(Duration::ZERO, &mut alone).await.is_err(), "alone beside two others");
        let mut third = Box::pin(Turn::beside_others());
        assert!(
            timeout(Duration::ZERO, &mut third).await.is_err(),
            "overtook the one that waits to be alone"
        );
        drop((first, second));
        let alone = alone.await.unwrap();
        assert!(timeout(Duration::ZERO, &mut third).await.is_err(), "beside the one that is alone");
        drop(alone);
        drop(third.await.unwrap());
    }
}
