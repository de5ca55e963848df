//! What was read from Secrets, kept for as long as the watch says that they are unchanged.
//!
//! Owns the rule that a quiet cluster costs no read, and that a changed Secret is read again at once. Each loop has a
//! store of its own. A metadata-only watch gives the versions.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Values by key of the Secret, each with the version of the Secret at the time of reading.
#[derive(Debug)]
pub struct Versioned<K, T>(Mutex<BTreeMap<K, (String, Arc<T>)>>);

impl<K, T> Default for Versioned<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord + Clone, T> Versioned<K, T> {
    /// The value of the Secret at `version`, kept or read. Without a version (the watch has not seen the Secret) it is
    /// read and not kept. `read` may see a newer Secret than `version`; then the watch brings that version soon and it is
    /// read once more.
    pub async fn get<E>(
        &self,
        key: &K,
        version: Option<String>,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<Arc<T>, E> {
        if let Some(version) = &version
            && let Some((had, value)) = self.lock().get(key)
            && had == version
        {
            return Ok(Arc::clone(value));
        }
        let value = Arc::new(read.await?);
        match version {
            Some(version) => drop(self.lock().insert(key.clone(), (version, Arc::clone(&value)))),
            None => drop(self.lock().remove(key)),
        }
        Ok(value)
    }

    /// Drops what belongs to Secrets that are not wanted any more.
    pub fn retain(&self, wanted: impl Fn(&K) -> bool) {
        self.lock().retain(|key, _| wanted(key));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, (String, Arc<T>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[tokio::test]
    async fn an_unchanged_secret_is_read_once_and_a_changed_one_again() {
        let kept: Versioned<&str, u32> = Versioned::default();
        let key = "ns/s";
        let get = async |version: Option<&str>, value: u32| {
            let read = async move { Ok::<_, Infallible>(value) };
            *kept.get(&key, version.map(ToOwned::to_owned), read).await.unwrap()
        };
        assert_eq!(get(Some("1"), 10).await, 10);
        assert_eq!(get(Some("1"), 11).await, 10);
        assert_eq!(get(Some("2"), 12).await, 12);
        assert_eq!(get(None, 13).await, 13);
        assert_eq!(get(Some("2"), 14).await, 14);
        kept.retain(|_| false);
        assert_eq!(get(Some("2"), 15).await, 15);
    }
}
