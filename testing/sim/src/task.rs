//! Runs one future by hand: it is polled only after something woke it, always on this thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

#[derive(Debug)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A future under way.
pub struct Task<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    woken: Arc<Flag>,
}

impl<T> Task<T> {
    /// Starts `future`: it is polled for the first time by the next [`Task::poll`].
    pub fn new(future: impl Future<Output = T> + 'static) -> Self {
        Self { future: Box::pin(future), woken: Arc::new(Flag(AtomicBool::new(true))) }
    }

    /// Whether a poll can bring it further.
    pub fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::Relaxed)
    }

    /// Polls it if something woke it; its result once it has ended.
    pub fn poll(&mut self) -> Option<T> {
        if !self.woken.0.swap(false, Ordering::Relaxed) {
            return None;
        }
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }
}
