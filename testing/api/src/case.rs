//! A case: an object as a person would write it, and what the API server must say.

use serde_json::{Value, json};

/// What the server must do with an object.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Take it.
    Accept,
    /// Refuse it as invalid, with a message that contains this.
    Reject(String),
}

/// An object and its verdict.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is special about the object.
    pub what: String,
    /// The whole object.
    pub object: Value,
    /// What must happen to it.
    pub verdict: Verdict,
}

/// The object `base` with `patch` merged in must be taken.
pub fn accept(what: &str, base: &Value, patch: &Value) -> Case {
    Case { what: what.to_owned(), object: with(base, patch), verdict: Verdict::Accept }
}

/// The object `base` with `patch` merged in must be refused with a message that contains `message`.
pub fn reject(what: &str, base: &Value, patch: &Value, message: &str) -> Case {
    Case { what: what.to_owned(), object: with(base, patch), verdict: Verdict::Reject(message.to_owned()) }
}

/// An object of our group.
pub fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "valkey.gomomento.com/v1alpha1",
        "kind": kind,
        "metadata": { "name": name },
        "spec": spec,
    })
}

/// `base` with `patch` merged in as RFC 7386 says: `null` removes a member, a list replaces the list.
pub fn with(base: &Value, patch: &Value) -> Value {
    let Some(changes) = patch.as_object() else { return patch.clone() };
    let mut merged = base.as_object().cloned().unwrap_or_default();
    for (name, change) in changes {
        if change.is_null() {
            merged.remove(name);
        } else {
            let merged_member = with(merged.get(name).unwrap_or(&Value::Null), change);
            merged.insert(name.clone(), merged_member);
        }
    }
    Value::Object(merged)
}

/// A string of `length` times `x`.
pub fn text(length: usize) -> String {
    "x".repeat(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_adds_replaces_and_removes() {
        let base = json!({ "a": 1, "b": { "c": 2, "d": [3] } });
        let patch = json!({ "a": null, "b": { "d": [4, 5] }, "e": {} });
        assert_eq!(with(&base, &patch), json!({ "b": { "c": 2, "d": [4, 5] }, "e": {} }));
    }
}
