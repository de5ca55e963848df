//! One open connection per node, re-dialled when it is no longer good.
//!
//! Owns reuse and its bound. Starts no task of its own; dropping the pool closes every connection that nobody holds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::client::{Connection, Credentials, Endpoint, Limits, connect};
use super::error::ValkeyError;

/// Connections by key; the key is the Pod UID, so that a reused name or address never meets an old connection.
#[derive(Debug)]
pub struct Pool {
    limits: Limits,
    capacity: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_key: BTreeMap<String, Entry>,
    /// Counts uses; the entry with the lowest number was used longest ago.
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    connection: Arc<Connection>,
    credentials: Credentials,
    last_use: u64,
}

impl Pool {
    /// A pool that keeps at most `capacity` connections open (at least 1) and dials with `limits`.
    pub fn new(limits: Limits, capacity: usize) -> Self {
        Self { limits, capacity: capacity.max(1), entries: Mutex::default() }
    }

    /// The limits that the pool dials with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The connection of `key`, kept or new. One that lost a reply, was closed by the node, or was made for another
    /// endpoint or other credentials is replaced; so a password change is proved by a new login.
    pub async fn get(
        &self,
        key: &str,
        endpoint: &Endpoint,
        credentials: &Credentials,
    ) -> Result<Arc<Connection>, ValkeyError> {
        if let Some(connection) = self.kept(key, endpoint, credentials) {
            return Ok(connection);
        }
        let connection = Arc::new(connect(endpoint, credentials, &self.limits).await?);
        self.keep(key, Arc::clone(&connection), credentials);
        Ok(connection)
    }

    /// Closes the connections whose key is not wanted any more, once nobody uses them.
    pub fn retain(&self, wanted: impl Fn(&str) -> bool) {
        self.lock().by_key.retain(|key, _| wanted(key));
    }

    /// Number of connections kept.
    pub fn len(&self) -> usize {
        self.lock().by_key.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // The map is valid after every statement under the lock, so a panic elsewhere leaves nothing half done.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self, key: &str, endpoint: &Endpoint, credentials: &Credentials) -> Option<Arc<Connection>> {
        let mut entries = self.lock();
        entries.uses += 1;
        let uses = entries.uses;
        let entry = entries.by_key.get_mut(key)?;
        let same = entry.connection.endpoint() == endpoint && &entry.credentials == credentials;
        if same && entry.connection.is_usable() {
            entry.last_use = uses;
            return Some(Arc::clone(&entry.connection));
        }
        entries.by_key.remove(key);
        None
    }

    fn keep(&self, key: &str, connection: Arc<Connection>, credentials: &Credentials) {
        let mut entries = self.lock();
        let entry = Entry { connection, credentials: credentials.clone(), last_use: entries.uses };
        entries.by_key.insert(key.to_owned(), entry);
        while entries.by_key.len() > self.capacity {
            let oldest = entries.by_key.iter().filter(|(other, _)| *other != key);
            let Some(oldest) = oldest.min_by_key(|(_, entry)| entry.last_use).map(|(key, _)| key.clone())
            else {
                return;
            };
            entries.by_key.remove(&oldest);
        }
    }
}
