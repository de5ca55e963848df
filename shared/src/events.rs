//! Events (events.k8s.io) on the objects that people look at.
//!
//! Owns the limits of the Event API and the rule "on change only". Must not decide what is worth an event. A failed
//! write is logged and never fails the caller: an event is a courtesy, the work goes on.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
pub use kube::runtime::events::EventType;
use kube::runtime::events::{Event, Recorder, Reporter};
use tracing::warn;

use crate::telemetry;

/// Longest note that the API server takes, in bytes.
const MAX_NOTE: usize = 1024;
/// Longest reason and action, in bytes.
const MAX_WORD: usize = 128;
/// Objects × reasons whose last note is remembered; beyond it the oldest names are told again.
const MAX_REMEMBERED: usize = 16_384;

/// One thing to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Normal or Warning.
    pub kind: EventType,
    /// Why, in CamelCase, from a fixed set; at most 128 bytes reach the API server.
    pub reason: String,
    /// What was done or tried, in CamelCase, from a fixed set; at most 128 bytes reach the API server.
    pub action: String,
    /// For a person: what, why, and what to do; at most 1 kB reaches the API server.
    pub note: String,
}

impl Notice {
    /// Something went as it should.
    pub fn normal(reason: impl Into<String>, action: impl Into<String>, note: impl Into<String>) -> Self {
        Self { kind: EventType::Normal, reason: reason.into(), action: action.into(), note: note.into() }
    }

    /// Something needs a look.
    pub fn warning(reason: impl Into<String>, action: impl Into<String>, note: impl Into<String>) -> Self {
        Self { kind: EventType::Warning, reason: reason.into(), action: action.into(), note: note.into() }
    }

    /// An error with all its causes, as a Warning.
    pub fn failure(
        reason: impl Into<String>,
        action: impl Into<String>,
        error: &(dyn Error + 'static),
    ) -> Self {
        Self::warning(reason, action, telemetry::chain(error))
    }

    fn to_event(&self) -> Event {
        Event {
            type_: self.kind,
            reason: cut(&self.reason, MAX_WORD).to_owned(),
            action: cut(&self.action, MAX_WORD).to_owned(),
            note: Some(cut(&self.note, MAX_NOTE).to_owned()),
            secondary: None,
        }
    }
}

/// The longest prefix of `text` of at most `limit` bytes that ends on a character boundary.
fn cut(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or(text)
}

/// Writes events in the name of one binary. Clones share what was told.
#[derive(Clone)]
pub struct Events {
    client: Client,
    reporter: Reporter,
    told: Arc<Mutex<BTreeMap<(String, String), String>>>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("reporter", &self.reporter).finish_non_exhaustive()
    }
}

impl Events {
    /// Events of `controller` (the field manager's name), written by `instance` (the pod, where there is one).
    pub fn new(client: Client, controller: &str, instance: Option<String>) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance };
        Self { client, reporter, told: Arc::default() }
    }

    /// Tells that something was done. Call once per action: nothing is suppressed.
    pub async fn publish(&self, object: &ObjectReference, notice: &Notice) {
        // A recorder of its own for each event: kube's folds events of one reason within six minutes into the first
        // one's note, and the later note (another pod, another cause) would be lost.
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        if let Err(error) = recorder.publish(&notice.to_event(), object).await {
            if crate::api_client::namespace_is_ending(&error) {
                return;
            }
            warn!(
                object = object.name.as_deref(),
                namespace = object.namespace.as_deref(),
                reason = notice.reason,
                error = telemetry::chain(&error),
                "event not written"
            );
        }
    }

    /// Tells a state that lasts: once, and again only when its note changed or after [`Events::ended`]. True when it
    /// was news, so that the caller can log it as rarely.
    pub async fn on_change(&self, object: &ObjectReference, notice: &Notice) -> bool {
        let news = self.remember(object, notice);
        if news {
            self.publish(object, notice).await;
        }
        news
    }

    /// A state told with [`Events::on_change`] is over: its next occurrence is told anew.
    pub fn ended(&self, object: &ObjectReference, reason: &str) {
        self.told().remove(&(identity(object), reason.to_owned()));
    }

    /// Forgets all that was told of an object that is gone.
    pub fn forget(&self, object: &ObjectReference) {
        let identity = identity(object);
        self.told().retain(|(of, _), _| *of != identity);
    }

    /// Whether the notice is news, remembering it.
    fn remember(&self, object: &ObjectReference, notice: &Notice) -> bool {
        let mut told = self.told();
        let key = (identity(object), notice.reason.clone());
        if told.get(&key) == Some(&notice.note) {
            return false;
        }
        if told.len() >= MAX_REMEMBERED && !told.contains_key(&key) {
            told.pop_first();
        }
        told.insert(key, notice.note.clone());
        true
    }

    fn told(&self) -> std::sync::MutexGuard<'_, BTreeMap<(String, String), String>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What tells one object from all others, past ones of the same name included.
fn identity(object: &ObjectReference) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{}/{}/{}/{}", part(&object.kind), part(&object.namespace), part(&object.name), part(&object.uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::Value;

    fn object(uid: &str) -> ObjectReference {
        ObjectReference {
            kind: Some("ValkeyNode".to_owned()),
            namespace: Some("app".to_owned()),
            name: Some("c-1".to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }

    type Written = Arc<Mutex<Vec<Value>>>;

    /// Events over a client that keeps what is written; `status` is the server's answer.
    fn events(status: u16) -> (Events, Written) {
        let written = Written::default();
        let sink = Arc::clone(&written);
        let service = tower::service_fn(move |request: Request<Body>| {
            let sink = Arc::clone(&sink);
            async move {
                let bytes = request.into_body().collect_bytes().await?;
                sink.lock().unwrap().push(serde_json::from_slice(&bytes)?);
                Ok::<_, tower::BoxError>(Response::builder().status(status).body(Body::from(bytes.to_vec()))?)
            }
        });
        (Events::new(Client::new(service, "default"), "valkey-operator/test", None), written)
    }

    #[test]
    fn a_long_note_is_cut_on_a_character_boundary_within_one_kilobyte() {
        let note = "🔑".repeat(400);
        let event = Notice::warning("R", "A", note.clone()).to_event();
        let cut = event.note.unwrap();
        assert_eq!(cut.len(), 1024);
        assert!(note.starts_with(&cut));
        let event = Notice::warning("R".repeat(300), "A", format!("x{note}")).to_event();
        assert_eq!((event.note.unwrap().len(), event.reason.len()), (1021, 128));
    }

    #[tokio::test]
    async fn a_lasting_state_is_told_once_until_it_changes_or_ends() {
        let (events, written) = events(201);
        let waiting = Notice::warning("PodUnschedulable", "Wait", "0/3 nodes fit");
        events.on_change(&object("1"), &waiting).await;
        events.on_change(&object("1"), &waiting).await;
        assert_eq!(written.lock().unwrap().len(), 1);

        events.on_change(&object("2"), &waiting).await;
        events.on_change(&object("1"), &Notice::warning("PodUnschedulable", "Wait", "0/4 nodes fit")).await;
        assert_eq!(written.lock().unwrap().len(), 3);
        events.ended(&object("2"), "PodUnschedulable");
        events.on_change(&object("2"), &waiting).await;
        events.forget(&object("2"));
        events.on_change(&object("2"), &waiting).await;
        assert_eq!(written.lock().unwrap().len(), 5);
    }

    #[tokio::test]
    async fn two_actions_with_one_reason_keep_both_notes() {
        let (events, written) = events(201);
        for pod in ["c-1", "c-2"] {
            events.publish(&object("1"), &Notice::normal("PodCreated", "CreatePod", pod)).await;
        }
        let notes: Vec<String> =
            written.lock().unwrap().iter().map(|event| event["note"].as_str().unwrap().to_owned()).collect();
        assert_eq!(notes, ["c-1", "c-2"]);
    }

    #[tokio::test]
    async fn a_refused_event_does_not_fail_the_caller() {
        let (events, written) = events(403);
        events.publish(&object("1"), &Notice::normal("PodCreated", "CreatePod", "c-1")).await;
        assert_eq!(written.lock().unwrap().len(), 1);
    }
}
