//! Which users.acl is published: the rendered one, unless a running node has refused exactly it. Pure.
//!
//! A file that a running node refuses would kill every new pod at its start, so the last accepted content is
//! published again until the inputs change. reconcile-loops records both on the ACL ConfigMap.

use k8s_openapi::api::core::v1::ConfigMap;
use shared::acl::{self, AclFile, refusal};
use shared::names;

/// Largest file of which reconcile-loops can keep an accepted copy beside the published one in one ConfigMap.
const MAX_KEPT: usize = 500 * 1024;

/// What to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Content of users.acl.
    pub text: String,
    /// Its revision.
    pub revision: String,
    /// The server's words, when the rendered file was refused and this is the last accepted one.
    pub refused: Option<String>,
}

/// Decides what to publish in place of what `published` holds.
pub fn decide(rendered: AclFile, published: Option<&ConfigMap>) -> Publication {
    let AclFile { text, revision } = rendered;
    let record = published
        .and_then(|map| map.metadata.annotations.as_ref())
        .and_then(|annotations| annotations.get(names::ANNOTATION_ACL_REFUSED));
    let refused = record.filter(|record| refusal::revision(record) == Some(revision.as_str()));
    let accepted = published.and_then(|map| data(map, names::KEY_USERS_ACL_ACCEPTED));
    match (refused, accepted, accepted.and_then(acl::revision)) {
        (Some(record), Some(accepted), Some(revision)) => Publication {
            text: accepted.to_owned(),
            revision,
            refused: Some(refusal::words(record).unwrap_or_default().to_owned()),
        },
        _ => Publication { text, revision, refused: None },
    }
}

/// Whether what is published replaced a proved content and was proved by no running node yet: a node made now could
/// die of it. Of a cluster that has proved nothing so far every node started with what is published.
pub fn unproved(published: &ConfigMap) -> bool {
    let (text, accepted) =
        (data(published, names::KEY_USERS_ACL), data(published, names::KEY_USERS_ACL_ACCEPTED));
    accepted.is_some() && text != accepted && text.is_some_and(|text| text.len() <= MAX_KEPT)
}

/// The published text.
pub fn text(published: Option<&ConfigMap>) -> Option<&str> {
    data(published?, names::KEY_USERS_ACL)
}

fn data<'a>(map: &'a ConfigMap, key: &str) -> Option<&'a str> {
    map.data.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use shared::acl::{AclInput, PasswordHash, render};
    use shared::secret::Redacted;
    use shared::valkey::types::EngineVersion;

    use super::*;

    fn file(password: &str) -> AclFile {
        let hash = [PasswordHash::of(&Redacted::new(password.to_owned()))];
        let roles = BTreeMap::new();
        let engine = EngineVersion::new(9, 1, 0);
        let input = AclInput {
            config: &[],
            cluster: &[],
            roles: &roles,
            operator_passwords: &hash,
            repl_passwords: &hash,
            engine,
        };
        render(&input).unwrap()
    }

    fn map(published: &AclFile, accepted: Option<&AclFile>, refused: Option<&AclFile>) -> ConfigMap {
        let mut map = ConfigMap::default();
        let mut data = BTreeMap::from([(names::KEY_USERS_ACL.to_owned(), published.text.clone())]);
        data.extend(accepted.map(|file| (names::KEY_USERS_ACL_ACCEPTED.to_owned(), file.text.clone())));
        map.data = Some(data);
        map.metadata.annotations = refused.map(|file| {
            BTreeMap::from([(
                names::ANNOTATION_ACL_REFUSED.to_owned(),
                refusal::record(&file.revision, "ERR line 1"),
            )])
        });
        map
    }

    #[test]
    fn the_rendered_file_is_published_while_nobody_refuses_it() {
        let (old, new) = (file("old"), file("new"));
        for published in [None, Some(map(&old, Some(&old), None)), Some(map(&old, Some(&old), Some(&old)))] {
            let publication = decide(new.clone(), published.as_ref());
            assert_eq!((publication.revision, publication.refused), (new.revision.clone(), None));
        }
    }

    #[test]
    fn a_refused_file_gives_way_to_the_last_accepted_one_until_its_inputs_change() {
        let (old, bad, good) = (file("old"), file("bad"), file("good"));
        let published = map(&bad, Some(&old), Some(&bad));
        let publication = decide(bad, Some(&published));
        assert_eq!((publication.text, publication.refused.as_deref()), (old.text, Some("ERR line 1")));
        assert_eq!(decide(good.clone(), Some(&published)).text, good.text);
    }

    #[test]
    fn a_refused_file_stays_when_there_is_nothing_to_go_back_to() {
        let bad = file("bad");
        assert_eq!(decide(bad.clone(), Some(&map(&bad, None, Some(&bad)))).text, bad.text);
    }

    #[test]
    fn what_no_node_has_proved_is_unproved() {
        let (old, new) = (file("old"), file("new"));
        assert!(unproved(&map(&new, Some(&old), None)));
        assert!(!unproved(&map(&new, None, None)));
        assert!(!unproved(&map(&new, Some(&new), None)));
    }
}
