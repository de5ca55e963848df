//! What the auth Secret of a TLS cluster records of authorities: by whose certificates its nodes may be known. Pure.
//!
//! A node goes on with the files that it has read until it is told to read them again, and can be told only by who
//! trusts what it serves. So the operator trusts, for its own connections, the authorities that every node is proved to
//! have read, and those that were in the TLS Secret since: until all nodes are proved to have read the new ones. The
//! record lies beside the password that this trust protects: who can change the one can read the other.

use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::Authorities;
use super::authorities::bundle;
use crate::names;

/// Longest text of each part, bytes: both fit a Secret beside the passwords, many times over.
const LONGEST: usize = 128 << 10;

/// The record, PEM. Two texts with the same certificates are the same record to every method.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthorityRecord {
    /// The last ca.crt that every running node has read.
    pub proved: String,
    /// Those of ca.crt since; empty at rest.
    pub pending: String,
}

impl AuthorityRecord {
    /// Reads the auth Secret; `None` when nothing is recorded.
    pub fn of(secret: &Secret) -> Option<Self> {
        let text = |key: &str| String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok();
        let proved = text(names::KEY_CA_PROVED).filter(|text| authorities(text).is_some())?;
        Some(Self { proved, pending: text(names::KEY_CA_PENDING).unwrap_or_default() })
    }

    /// The keys of the Secret.
    pub fn data(&self) -> [(&'static str, ByteString); 2] {
        let value = |text: &str| ByteString(text.as_bytes().to_vec());
        [(names::KEY_CA_PROVED, value(&self.proved)), (names::KEY_CA_PENDING, value(&self.pending))]
    }

    /// Everything that the nodes of a cluster may be known by, with `now` (the ca.crt in the TLS Secret) if that is usable.
    pub fn trusted(record: Option<&Self>, now: Option<&Arc<str>>) -> Option<Arc<str>> {
        let parts = record.map(|record| [record.proved.as_str(), record.pending.as_str()]);
        let now_text = now.map(|now| &**now);
        let all = bundle(now_text.into_iter().chain(parts.into_iter().flatten()))?;
        Some(now.filter(|now| ***now == *all).map_or_else(|| all.into(), Arc::clone))
    }

    /// Nothing is pending, and `now` is what all have read.
    pub fn is_proved(&self, now: &str) -> bool {
        self.pending.is_empty() && revision(&self.proved) == revision(now)
    }

    /// The record to be written before any node is told to read `now`; `None` when it is there already. One that would not
    /// fit is not kept: then only the newest part of it is.
    #[must_use]
    pub fn noting(record: Option<&Self>, now: &str) -> Option<Self> {
        let fits = |text: &String| text.len() <= LONGEST;
        let Some(record) = record else {
            // Of a cluster whose nodes were never told otherwise.
            return Some(Self { proved: now.to_owned(), pending: String::new() })
                .filter(|it| fits(&it.proved));
        };
        if record.is_proved(now) {
            return None;
        }
        let joined = bundle([record.pending.as_str(), now]);
        let pending = joined.filter(fits).or_else(|| Some(now.to_owned()).filter(fits))?;
        (revision(&pending) != revision(&record.pending)).then(|| Self { pending, ..record.clone() })
    }

    /// The record to be written when all have read `now`.
    #[must_use]
    pub fn proving(now: &str) -> Self {
        Self { proved: now.to_owned(), pending: String::new() }
    }

    /// Whether `now` has no authority in common with what all had read: members that have read it and those that have not
    /// refuse each other's new connections.
    pub fn is_replaced_by(&self, now: &str) -> bool {
        match (authorities(&self.proved), authorities(now)) {
            (Some(proved), Some(now)) => !proved.overlap(&now),
            _ => false,
        }
    }
}

fn authorities(text: &str) -> Option<Authorities> {
    Authorities::from_pem(text.as_bytes()).ok()
}

fn revision(text: &str) -> Option<String> {
    Some(authorities(text)?.revision())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{authority, authority_params};
    use super::*;

    fn pem(name: &str) -> String {
        authority(name).pem()
    }

    fn trusted(record: &AuthorityRecord, now: &str) -> Authorities {
        let text = AuthorityRecord::trusted(Some(record), Some(&now.into())).unwrap();
        Authorities::from_pem(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_replaced_authority_is_trusted_until_all_have_read_the_new_one() {
        let (old, new) = (pem("old"), pem("new"));
        let rest = AuthorityRecord::noting(None, &old).unwrap();
        assert!(rest.is_proved(&old) && AuthorityRecord::noting(Some(&rest), &old).is_none());
        let told = AuthorityRecord::noting(Some(&rest), &new).unwrap();
        assert!(!told.is_proved(&new) && AuthorityRecord::noting(Some(&told), &new).is_none());
        for text in [&old, &new] {
            assert!(trusted(&told, &new).contain(&authorities(text).unwrap()));
        }
        let proved = AuthorityRecord::proving(&new);
        assert!(proved.is_proved(&new) && !trusted(&proved, &new).contain(&authorities(&old).unwrap()));
    }

    #[test]
    fn what_came_and_went_before_all_had_read_it_is_trusted_too() {
        let (first, second, third) = (pem("first"), pem("second"), pem("third"));
        let rest = AuthorityRecord::proving(&first);
        let told = AuthorityRecord::noting(Some(&rest), &second).unwrap();
        let told = AuthorityRecord::noting(Some(&told), &third).unwrap();
        for text in [&first, &second, &third] {
            assert!(trusted(&told, &third).contain(&authorities(text).unwrap()));
        }
        // Back to the first: some may have read another meanwhile.
        assert!(!told.is_proved(&first));
        assert!(trusted(&told, &first).contain(&authorities(&second).unwrap()));
    }

    #[test]
    fn an_overlap_is_told_from_a_replacement_and_a_renewed_certificate_is_the_same_authority() {
        let (old, new) = (authority("old"), authority("new"));
        let renewed = authority_params("old").self_signed(old.key()).unwrap().pem();
        let both = old.pem() + &new.pem();
        let rest = AuthorityRecord::proving(&old.pem());
        assert!(rest.is_replaced_by(&new.pem()));
        assert!(!rest.is_replaced_by(&both) && !rest.is_replaced_by(&renewed));
        assert!(!AuthorityRecord::proving(&both).is_replaced_by(&new.pem()));
        assert!(!rest.is_proved(&both), "an authority that was added is read by nobody yet");
        assert!(!AuthorityRecord::proving(&both).is_proved(&new.pem()), "nor is the removal of one");
    }

    #[test]
    fn the_record_is_read_back_as_it_was_written_and_order_does_not_matter() {
        let (old, new) = (pem("old"), pem("new"));
        let record = AuthorityRecord { proved: old.clone(), pending: new.clone() };
        let data = record.data().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let secret = Secret { data: Some(data), ..Secret::default() };
        assert_eq!(AuthorityRecord::of(&secret), Some(record));
        assert_eq!(AuthorityRecord::of(&Secret::default()), None);
        let swapped = format!("{new}{old}");
        assert!(AuthorityRecord::proving(&format!("{old}{new}")).is_proved(&swapped));
    }

    #[test]
    fn without_a_record_only_what_the_secret_holds_is_trusted_and_without_either_nobody() {
        let now: Arc<str> = pem("now").into();
        assert_eq!(AuthorityRecord::trusted(None, Some(&now)), Some(Arc::clone(&now)));
        assert_eq!(AuthorityRecord::trusted(None, None), None);
        let record = AuthorityRecord::proving(&now);
        assert_eq!(AuthorityRecord::trusted(Some(&record), None), Some(now));
    }

    #[test]
    fn a_record_that_would_not_fit_is_not_kept() {
        let huge: String = std::iter::repeat_n(pem("x"), 400).collect();
        assert!(huge.len() > LONGEST);
        assert_eq!(AuthorityRecord::noting(None, &huge), None);
        let rest = AuthorityRecord::proving(&pem("old"));
        assert_eq!(AuthorityRecord::noting(Some(&rest), &huge), None);
    }
}
