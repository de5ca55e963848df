//! The operator's clock and its random numbers.

use std::time::Duration;

use cluster_ctl::model::Millis;
use cluster_ctl::ports::Host;
use shared::secret::RandomError;

use super::Line;

/// Of one process.
#[derive(Clone)]
pub struct SimHost {
    line: Line,
}

impl SimHost {
    /// The host of a process.
    pub fn new(line: &Line) -> Self {
        Self { line: line.clone() }
    }
}

impl Host for SimHost {
    fn now(&self) -> Millis {
        let world = self.line.world();
        Millis(world.now + world.skew)
    }

    fn uptime(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.line.world().now).unwrap_or_default())
    }

    fn random_hex(&self, digits: usize) -> Result<String, RandomError> {
        let mut world = self.line.world();
        Ok((0..digits).filter_map(|_| char::from_digit(world.rng.u32(0..16), 16)).collect())
    }
}
