//! The operator's clock and its random numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cluster_ctl::model::Millis;
use cluster_ctl::ports::Host;
use shared::secret::RandomError;

use super::Line;
use crate::clock::Ms;

/// Of one process.
#[derive(Clone)]
pub struct SimHost {
    line: Line,
    /// How far its clock is off.
    skew: Arc<AtomicI64>,
}

impl SimHost {
    /// A host whose clock is right.
    pub fn new(line: &Line) -> Self {
        Self { line: line.clone(), skew: Arc::default() }
    }

    /// Puts the clock forward or back.
    pub fn jump(&self, by: Ms) {
        self.skew.fetch_add(by, Ordering::Relaxed);
    }
}

impl Host for SimHost {
    fn now(&self) -> Millis {
        Millis(self.line.world().now + self.skew.load(Ordering::Relaxed))
    }

    fn random_hex(&self, digits: usize) -> Result<String, RandomError> {
        let mut world = self.line.world();
        Ok((0..digits).filter_map(|_| char::from_digit(world.rng.u32(0..16), 16)).collect())
    }
}
