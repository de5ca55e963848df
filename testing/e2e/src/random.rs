//! Random instants that can be had again.
//!
//! The seed is printed; `VALKEY_OPERATOR_SEED` sets it.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// Numbers that follow from a seed (splitmix64).
pub struct Random {
    state: u64,
}

impl Random {
    /// From `$VALKEY_OPERATOR_SEED`, else a fresh seed. Prints it with the name of what uses it.
    ///
    /// # Errors
    ///
    /// The variable holds no number, or the system has no random numbers.
    pub fn announced(purpose: &str) -> Result<Self> {
        let seed = match std::env::var("VALKEY_OPERATOR_SEED") {
            Ok(text) => text.parse().with_context(|| format!("VALKEY_OPERATOR_SEED={text} is no number"))?,
            Err(_) => getrandom::u64().map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?,
        };
        crate::say(&format!("{purpose}: VALKEY_OPERATOR_SEED={seed}"));
        Ok(Self { state: seed })
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// An index below `count`; 0 when there is nothing to choose from.
    pub fn index(&mut self, count: usize) -> usize {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        usize::try_from(self.next().checked_rem(count).unwrap_or(0)).unwrap_or(0)
    }

    /// A duration below `limit`, in whole milliseconds.
    pub fn within(&mut self, limit: Duration) -> Duration {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.next().checked_rem(millis).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers_and_another_gives_others() {
        let draw = |seed| {
            let mut random = Random { state: seed };
            (0..8).map(|_| random.index(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|index| *index < 1000));
    }
}
