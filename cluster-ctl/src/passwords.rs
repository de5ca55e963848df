//! The auth Secret's content: the passwords of the system users, and how far their rotation is. Pure.
//!
//! The Secret alone is the state of a rotation: `*-next` while members learn the new passwords, `*-previous` while the
//! old ones are withdrawn. Every change of it is one whole update, so that every interruption leaves one of these.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use shared::acl::PasswordHash;
use shared::names;
use shared::secret::{RandomError, Redacted};

/// A password of each system user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Of the operator's user.
    pub operator: Redacted<String>,
    /// Of the replication user.
    pub repl: Redacted<String>,
}

impl Pair {
    /// Two fresh ones.
    pub fn draw(draw: impl Fn() -> Result<Redacted<String>, RandomError>) -> Result<Self, RandomError> {
        Ok(Self { operator: draw()?, repl: draw()? })
    }
}

/// What the auth Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passwords {
    /// In use.
    pub current: Pair,
    /// To be used once every member accepts them.
    pub next: Option<Pair>,
    /// In use until lately, and still accepted.
    pub previous: Option<Pair>,
    /// Token of the rotation that goes on.
    pub rotation: Option<String>,
    /// Token of the last rotation that was finished.
    pub rotated: Option<String>,
}

impl Passwords {
    /// Passwords of a new cluster: they answer the request for a rotation that the cluster may carry already.
    pub fn fresh(current: Pair, requested: Option<&str>) -> Self {
        let rotated = requested.map(ToOwned::to_owned);
        Self { current, next: None, previous: None, rotation: None, rotated }
    }

    /// Reads the Secret; `None` when a current password is missing or no text.
    pub fn of(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok().map(Redacted::new);
        let pair = |[operator, repl]: [&str; 2]| Some(Pair { operator: text(operator)?, repl: text(repl)? });
        let annotation = |key| secret.metadata.annotations.as_ref()?.get(key).cloned();
        Some(Self {
            current: pair(CURRENT)?,
            next: pair(NEXT),
            previous: pair(PREVIOUS),
            rotation: annotation(names::ANNOTATION_ROTATION),
            rotated: annotation(names::ANNOTATION_ROTATED),
        })
    }

    /// The keys of the Secret, the line that nodes include among them.
    pub fn data(&self) -> BTreeMap<String, ByteString> {
        let include = format!("primaryauth \"{}\"\n", self.current.repl.expose());
        let mut data = BTreeMap::from([(names::KEY_PRIMARYAUTH_CONF.to_owned(), ByteString(include.into()))]);
        let pairs =
            [(CURRENT, Some(&self.current)), (NEXT, self.next.as_ref()), (PREVIOUS, self.previous.as_ref())];
        for ([operator, repl], pair) in pairs {
            let Some(pair) = pair else { continue };
            for (key, password) in [(operator, &pair.operator), (repl, &pair.repl)] {
                data.insert(key.to_owned(), ByteString(password.expose().clone().into_bytes()));
            }
        }
        data
    }

    /// Our annotations of the Secret.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let tokens =
            [(names::ANNOTATION_ROTATION, &self.rotation), (names::ANNOTATION_ROTATED, &self.rotated)];
        tokens.into_iter().filter_map(|(key, token)| Some((key.to_owned(), token.clone()?))).collect()
    }

    /// The Secret as it is to be: `secret` with our keys and annotations replaced, and nothing else.
    pub fn put_into(&self, secret: &Secret) -> Secret {
        let mut secret = secret.clone();
        let data = secret.data.get_or_insert_default();
        for key in [CURRENT, NEXT, PREVIOUS].into_iter().flatten() {
            data.remove(key);
        }
        data.extend(self.data());
        let annotations = secret.metadata.annotations.get_or_insert_default();
        annotations.retain(|key, _| key != names::ANNOTATION_ROTATION && key != names::ANNOTATION_ROTATED);
        annotations.extend(self.annotations());
        secret
    }

    /// Hashes of every password of the operator's user that nodes have to accept. Sorted: when one takes the place of
    /// another the file stays the same.
    pub fn operator_hashes(&self) -> Vec<PasswordHash> {
        self.hashes(|pair| &pair.operator)
    }

    /// The same of the replication user.
    pub fn repl_hashes(&self) -> Vec<PasswordHash> {
        self.hashes(|pair| &pair.repl)
    }

    fn hashes(&self, of: impl Fn(&Pair) -> &Redacted<String>) -> Vec<PasswordHash> {
        let pairs = [Some(&self.current), self.next.as_ref(), self.previous.as_ref()];
        let mut hashes: Vec<PasswordHash> =
            pairs.into_iter().flatten().map(|pair| PasswordHash::of(of(pair))).collect();
        hashes.sort();
        hashes.dedup();
        hashes
    }

    /// The first update of a rotation: fresh passwords are announced.
    #[must_use]
    pub fn begin(&self, next: Pair, token: &str) -> Self {
        Self { next: Some(next), rotation: Some(token.to_owned()), ..self.clone() }
    }

    /// The second: the announced ones are in use, the others still accepted. `None` when none are announced.
    #[must_use]
    pub fn switch(&self) -> Option<Self> {
        let next = self.next.clone()?;
        Some(Self { current: next, next: None, previous: Some(self.current.clone()), ..self.clone() })
    }

    /// The third: the old ones are withdrawn.
    #[must_use]
    pub fn finish(&self) -> Self {
        Self {
            previous: None,
            rotation: None,
            rotated: self.rotation.clone().or_else(|| self.rotated.clone()),
            ..self.clone()
        }
    }
}

const CURRENT: [&str; 2] = [names::KEY_OPERATOR_PASSWORD, names::KEY_REPL_PASSWORD];
const NEXT: [&str; 2] = [names::KEY_OPERATOR_PASSWORD_NEXT, names::KEY_REPL_PASSWORD_NEXT];
const PREVIOUS: [&str; 2] = [names::KEY_OPERATOR_PASSWORD_PREVIOUS, names::KEY_REPL_PASSWORD_PREVIOUS];

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(word: &str) -> Pair {
        let password = |user: &str| Redacted::new(format!("{user}-{word}"));
        Pair { operator: password("operator"), repl: password("repl") }
    }

    fn text(secret: &Secret, key: &str) -> Option<String> {
        Some(String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).unwrap())
    }

    #[test]
    fn a_rotation_is_three_updates_and_each_is_read_back_as_it_was_written() {
        let mut secret = Secret::default();
        secret.data.get_or_insert_default().insert("of somebody else".to_owned(), ByteString(vec![1]));
        secret.metadata.annotations = Some(BTreeMap::from([("other".to_owned(), "x".to_owned())]));
        let rest = Passwords::fresh(pair("old"), None);
        let begun = rest.begin(pair("new"), "t1");
        let switched = begun.switch().unwrap();
        let finished = switched.finish();
        for state in [&rest, &begun, &switched, &finished] {
            secret = state.put_into(&secret);
            assert_eq!(Passwords::of(&secret).as_ref(), Some(state));
            assert!(secret.data.as_ref().unwrap().contains_key("of somebody else"));
            assert_eq!(secret.metadata.annotations.as_ref().unwrap()["other"], "x");
            let include = format!("primaryauth \"{}\"\n", state.current.repl.expose());
            assert_eq!(text(&secret, names::KEY_PRIMARYAUTH_CONF).as_deref(), Some(include.as_str()));
        }
        assert_eq!(finished, Passwords::fresh(pair("new"), Some("t1")));
        assert_eq!(secret.data.unwrap().len(), 4, "nothing of the old passwords is left");
    }

    #[test]
    fn users_acl_is_the_same_before_and_after_the_switch() {
        let begun = Passwords::fresh(pair("old"), None).begin(pair("new"), "t");
        let switched = begun.switch().unwrap();
        assert_eq!(begun.operator_hashes(), switched.operator_hashes());
        assert_eq!(begun.repl_hashes(), switched.repl_hashes());
        assert_eq!((begun.operator_hashes().len(), switched.finish().operator_hashes().len()), (2, 1));
    }

    #[test]
    fn nothing_is_switched_that_was_not_announced() {
        assert_eq!(Passwords::fresh(pair("old"), None).switch(), None);
    }

    #[test]
    fn no_password_is_shown() {
        let shown = format!("{:?}", Passwords::fresh(pair("old"), None).begin(pair("new"), "t"));
        assert!(!shown.contains("operator-") && !shown.contains("repl-"), "{shown}");
    }
}
