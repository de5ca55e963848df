//! Which tests play at the same time: a few that share the one operator, or a single one that stops it or measures.
//!
//! Owns nothing but the order. A test that waits for its turn holds nothing. All tests of the program are started at once
//! (`--test-threads`), so that it is known here who wants to play.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Scenes at a time. Most of a test is waiting for something, so a few fit on two processors; with many, times that
/// tests allow would say more about the machine than about the operator.
pub const AT_A_TIME: u32 = 3;

/// Of this test program.
static SEATS: Seats = Seats::new();

/// Who plays and who waits.
struct Seats {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Scenes that play beside others.
    playing: u32,
    /// Scenes that wait to play beside others.
    waiting: u32,
    /// One plays alone.
    alone: bool,
}

/// The right to play, given back when dropped.
#[derive(Debug)]
pub struct Turn {
    seats: &'static Seats,
    alone: bool,
}

/// One more that waits to play beside others, until dropped.
struct Waiting<'a>(&'a Seats);

impl Turn {
    /// Waits for a turn beside others.
    pub async fn beside_others() -> Self {
        SEATS.beside_others().await
    }

    /// Waits until no other test plays or wants to, and lets none begin. Those that are alone come last: each would
    /// leave seats empty until all before it have ended.
    pub async fn alone() -> Self {
        SEATS.alone().await
    }
}

impl Seats {
    const fn new() -> Self {
        let state = State { playing: 0, waiting: 0, alone: false };
        Self { state: Mutex::new(state), changed: Notify::const_new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn beside_others(&'static self) -> Turn {
        self.state().waiting += 1;
        let waiting = Waiting(self);
        self.until(|state| !state.alone && state.playing < AT_A_TIME, |state| state.playing += 1).await;
        drop(waiting);
        Turn { seats: self, alone: false }
    }

    async fn alone(&'static self) -> Turn {
        let free = |state: &State| !state.alone && state.playing == 0 && state.waiting == 0;
        self.until(free, |state| state.alone = true).await;
        Turn { seats: self, alone: true }
    }

    async fn until(&self, free: impl Fn(&State) -> bool, take: impl Fn(&mut State)) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.state();
                if free(&state) {
                    take(&mut state);
                    return;
                }
            }
            changed.await;
        }
    }
}

impl std::fmt::Debug for Seats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state().fmt(f)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
        self.0.changed.notify_waiters();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.seats.state();
        if self.alone {
            state.alone = false;
        } else {
            state.playing -= 1;
        }
        drop(state);
        self.seats.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    async fn waits(turn: impl Future<Output = Turn>) -> bool {
        timeout(Duration::ZERO, turn).await.is_err()
    }

    #[tokio::test]
    async fn some_play_beside_each_other_and_one_alone_after_all_that_want_to() {
        static SEATS: Seats = Seats::new();
        let mut playing = Vec::new();
        for _ in 0..AT_A_TIME {
            playing.push(SEATS.beside_others().await);
        }
        let mut alone = Box::pin(SEATS.alone());
        assert!(waits(&mut alone).await, "alone beside others");
        let mut next = Box::pin(SEATS.beside_others());
        assert!(waits(&mut next).await, "more than {AT_A_TIME}");
        playing.pop();
        assert!(waits(&mut alone).await, "alone beside others");
        playing.push(next.await);
        playing.clear();
        let alone = alone.await;
        let mut late = Box::pin(SEATS.beside_others());
        assert!(waits(&mut late).await, "beside the one that is alone");
        assert!(waits(SEATS.alone()).await, "two alone");
        drop(alone);
        drop(late.await);
        drop(SEATS.alone().await);
    }

    #[tokio::test]
    async fn one_that_does_not_wait_any_more_keeps_nobody_from_being_alone() {
        static SEATS: Seats = Seats::new();
        let alone = SEATS.alone().await;
        assert!(waits(SEATS.beside_others()).await);
        drop(alone);
        drop(SEATS.alone().await);
    }
}
