//! Whether every watch of a process has listed what there is.
//!
//! Not `Store::wait_until_ready`: its value has room for one waiting task (kube 5.0), so that of two tasks that wait
//! for one store only the later is woken.

use std::sync::Arc;

use tokio::sync::watch;

/// Counts the watches that still list; give a [`Listing`] to each.
#[derive(Debug)]
pub struct Watches(Arc<watch::Sender<usize>>);

/// Held by one watch until it has listed.
#[derive(Debug)]
pub struct Listing(Option<Arc<watch::Sender<usize>>>);

/// Tells any number of tasks whether every watch has listed.
#[derive(Clone, Debug)]
pub struct Synced(watch::Receiver<usize>);

/// The watches are gone without having listed, as at the end of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the watches ended before they had listed what there is")]
pub struct WatchesEnded;

impl Watches {
    /// No watch yet, and how to ask for all of them.
    pub fn new() -> (Self, Synced) {
        let (sender, receiver) = watch::channel(0);
        (Self(Arc::new(sender)), Synced(receiver))
    }

    /// One more watch to wait for.
    pub fn add(&self) -> Listing {
        self.0.send_modify(|open| *open += 1);
        Listing(Some(Arc::clone(&self.0)))
    }
}

impl Listing {
    /// The watch has listed, and its cache shows it. Only the first call counts.
    pub fn done(&mut self) {
        if let Some(sender) = self.0.take() {
            sender.send_modify(|open| *open -= 1);
        }
    }
}

impl Synced {
    /// Whether every watch has listed.
    pub fn yet(&self) -> bool {
        *self.0.borrow() == 0
    }

    /// Waits until every watch has listed.
    ///
    /// # Errors
    /// A watch went away before.
    pub async fn wait(&self) -> Result<(), WatchesEnded> {
        self.0.clone().wait_for(|open| *open == 0).await.map(drop).map_err(|_| WatchesEnded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_waiting_task_is_woken_by_the_last_listing() {
        let (watches, synced) = Watches::new();
        let (mut pods, mut nodes) = (watches.add(), watches.add());
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                tokio::spawn({
                    let synced = synced.clone();
                    async move { synced.wait().await }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        pods.done();
        pods.done();
        assert!(!synced.yet(), "the nodes have not listed");
        nodes.done();
        for task in waiting {
            assert_eq!(task.await.unwrap(), Ok(()));
        }
        assert!(synced.yet());
    }

    #[tokio::test]
    async fn watches_that_end_without_listing_are_an_error() {
        let (watches, synced) = Watches::new();
        drop(watches.add());
        drop(watches);
        assert_eq!(synced.wait().await, Err(WatchesEnded));
    }
}
