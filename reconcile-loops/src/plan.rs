//! What follows from what was seen: the condition, what to record on the ConfigMap, whether the change is through.
//!
//! Pure: no client, no clock. The words here are those of condition, event and log.

use std::collections::BTreeMap;
use std::time::Duration;

use shared::api::conditions::ConditionStatus;
use shared::tls::Doubt;

#[cfg(test)]
mod tests;

/// Longer than a kubelet takes to refresh a mounted file (measured 61–88 s): a node still unproved has another trouble.
pub const REFRESH_LIMIT: Duration = Duration::from_secs(90);

/// From here on a changed ca.crt counts as refreshed. Passes come each second until [`REFRESH_LIMIT`]: one of them is later
/// than this.
pub const REFRESHED_BY: Duration = Duration::from_secs(88);

/// Names that a message lists before it says how many more there are.
const LISTED: usize = 5;

/// The published users.acl, as far as a decision needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Its revision.
    pub revision: String,
    /// It is recorded as accepted by a node.
    pub accepted: bool,
    /// The revision that is recorded as refused.
    pub refused: Option<String>,
    /// A second copy fits the ConfigMap.
    pub fits_twice: bool,
}

/// Why there is no published users.acl to apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unpublished {
    /// The ConfigMap does not exist yet.
    Missing,
    /// The ConfigMap is not the cluster's.
    Foreign,
    /// Its last line is not the revision of the others.
    Malformed,
}

/// What a pass found at one node and did there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeResult {
    /// It runs what is published.
    Current {
        /// Only since a reload in this pass.
        reloaded: bool,
    },
    /// TLS: it serves the wanted certificate and re-read its files, and does not show which authorities were in them.
    Told {
        /// It serves the certificate only since a reload in this pass.
        reloaded: bool,
    },
    /// It re-read its file, and that is not the published one yet: the kubelet has not refreshed it.
    Stale,
    /// The server refused its file.
    Refused(String),
    /// No result: the kind of the error and its words.
    Failed {
        /// Stable word.
        kind: &'static str,
        /// The error with its causes.
        error: String,
    },
}

/// A condition's status, reason and message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Status.
    pub status: ConditionStatus,
    /// `CamelCase` word.
    pub reason: &'static str,
    /// For a person. Contains nothing that changes while nothing happens.
    pub message: String,
}

impl Verdict {
    fn new(status: ConditionStatus, reason: &'static str, message: String) -> Self {
        Self { status, reason, message }
    }
}

/// What to write onto the ACL ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A node proved the published file: keep it as the accepted one, drop the record of an older refusal.
    Accepted,
    /// A node refused the published file.
    Refused {
        /// The server's words.
        words: String,
    },
}

/// The outcome of one ACL pass over one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclDecision {
    /// Condition `ACLApplied`.
    pub verdict: Verdict,
    /// What to record.
    pub record: Option<Record>,
    /// Nothing is left to wait for: an early pass needs no repetition.
    pub settled: bool,
}

/// Decides from the published file and each running node's result. `age` is how long this revision has been published,
/// as far as the process knows.
pub fn acl(
    published: Result<&Published, Unpublished>,
    results: &BTreeMap<String, NodeResult>,
    age: Duration,
) -> AclDecision {
    let waiting = |reason, message: &str| AclDecision {
        verdict: Verdict::new(ConditionStatus::False, reason, message.to_owned()),
        record: None,
        settled: true,
    };
    let published = match published {
        Ok(published) => published,
        Err(Unpublished::Missing) => return waiting("NotPublished", "users.acl is not published yet"),
        Err(Unpublished::Foreign) => {
            return waiting(
                "NotOurs",
                "the ConfigMap of users.acl belongs to something else; delete or rename that",
            );
        }
        Err(Unpublished::Malformed) => {
            return waiting("Malformed", "users.acl was changed by hand: its last line is not its revision");
        }
    };
    let current = results.values().filter(|result| matches!(result, NodeResult::Current { .. })).count();
    let words = results.values().find_map(|result| match result {
        NodeResult::Refused(words) => Some(words.clone()),
        _ => None,
    });
    let record = match words {
        Some(words) if blames_published(published, current, age) => Some(Record::Refused { words }),
        // A node that proved it outweighs one that has trouble with an older file.
        _ if current > 0 && !published.accepted && published.fits_twice => Some(Record::Accepted),
        _ => None,
    };
    AclDecision {
        verdict: acl_verdict(published, results, current),
        record,
        settled: current == results.len(),
    }
}

/// Whether a refusal is that of the published file. The server does not say which file it read: it may be an older one
/// that the kubelet has not replaced yet, if an older one was bad, too.
fn blames_published(published: &Published, current: usize, age: Duration) -> bool {
    let recorded = published.refused.as_deref() == Some(published.revision.as_str());
    let older_was_bad = published.refused.is_some() && !recorded;
    current == 0 && !recorded && !published.accepted && (!older_was_bad || age >= REFRESH_LIMIT)
}

fn acl_verdict(published: &Published, results: &BTreeMap<String, NodeResult>, current: usize) -> Verdict {
    let revision = short(&published.revision);
    let total = results.len();
    if total == 0 {
        let message = format!("revision {revision} is published; no node runs yet");
        return Verdict::new(ConditionStatus::Unknown, "NoRunningNode", message);
    }
    let reached = format!("revision {revision} is in force on {current} of {total} running nodes");
    if current == total {
        // A refused revision was replaced by the last accepted one, which is not what the spec asks for.
        return match &published.refused {
            Some(refused) if *refused != published.revision => {
                let message = format!(
                    "{reached}; the newer revision {} was refused by a node, see annotation acl-refused of the ConfigMap",
                    short(refused)
                );
                Verdict::new(ConditionStatus::False, "Refused", message)
            }
            _ => Verdict::new(ConditionStatus::True, "Applied", reached),
        };
    }
    let (reason, why) = first_trouble(results);
    Verdict::new(ConditionStatus::False, reason, format!("{reached}; {why}"))
}

/// The gravest kind of trouble, with the nodes that have it.
fn first_trouble(results: &BTreeMap<String, NodeResult>) -> (&'static str, String) {
    let refused = results.iter().find_map(|(name, result)| match result {
        NodeResult::Refused(words) => Some((name, words)),
        _ => None,
    });
    if let Some((name, words)) = refused {
        return ("Refused", format!("{name} refused its file: {words}"));
    }
    let failed: Vec<String> = results
        .iter()
        .filter_map(|(name, result)| match result {
            NodeResult::Failed { kind, .. } => Some(format!("{name} ({kind})")),
            _ => None,
        })
        .collect();
    if !failed.is_empty() {
        return ("NodeFailed", format!("no result from {}", list(&failed)));
    }
    let stale = names_of(results, |result| matches!(result, NodeResult::Stale));
    ("WaitingForKubelet", format!("waiting for the kubelet to refresh the file of {}", list(&stale)))
}

/// What the TLS Secret holds to be served and trusted, and how far that is proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedTls {
    /// Fingerprint of the certificate.
    pub fingerprint: String,
    /// Revision of ca.crt.
    pub authorities: String,
    /// How far nodes have read ca.crt.
    pub trust: Trust,
    /// What is doubtful about the certificate.
    pub doubt: Option<Doubt>,
}

/// How far ca.crt is known to be read by nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Every running node has read it, by the record.
    Proved,
    /// It has changed since.
    Changed {
        /// It has no authority in common with the former one.
        replaced: bool,
        /// Nodes were told to read it for longer than a kubelet takes to refresh it.
        waited: bool,
    },
}

/// Decides condition `TLSReady` from each running node's result with what is published, or from the reason and words of
/// why there is nothing to serve. Also tells whether nothing is left to wait for.
pub fn tls(
    published: Result<&PublishedTls, (&'static str, &str)>,
    results: &BTreeMap<String, NodeResult>,
) -> (Verdict, bool) {
    let published = match published {
        Ok(published) => published,
        Err((reason, problem)) => {
            return (Verdict::new(ConditionStatus::False, reason, problem.to_owned()), true);
        }
    };
    let (certificate, authorities) = (short(&published.fingerprint), short(&published.authorities));
    let total = results.len();
    if total == 0 {
        let message = format!("certificate {certificate} is in the Secret; no node runs yet");
        return (Verdict::new(ConditionStatus::Unknown, "NoRunningNode", message), true);
    }
    let unshown = names_of(results, |result| matches!(result, NodeResult::Told { .. }));
    let current = results.values().filter(|result| matches!(result, NodeResult::Current { .. })).count();
    let current = current + unshown.len();
    let reached = format!("certificate {certificate} is served by {current} of {total} running nodes");
    let (replaced, unproved) = match published.trust {
        Trust::Proved => (false, false),
        Trust::Changed { replaced, waited } => (replaced, !waited && !unshown.is_empty()),
    };
    if current == total && !unproved {
        let reached = format!("{reached}, and all have read ca.crt {authorities}");
        let (reason, message) = match &published.doubt {
            Some(doubt) => (doubt.reason(), format!("{reached}; {doubt}")),
            None => ("Served", reached),
        };
        return (Verdict::new(ConditionStatus::True, reason, message), true);
    }
    let (reason, why) = if current == total {
        let why = format!(
            "ca.crt {authorities} is another one, and whom it trusts is not shown by {}: until 90 s have passed, within \
             which a kubelet refreshes files, they are told to read it again",
            list(&unshown)
        );
        ("AuthoritiesUnproved", why)
    } else {
        first_trouble(results)
    };
    if replaced {
        let message = format!("{reached}; {REPLACED}; {why}");
        return (Verdict::new(ConditionStatus::False, AUTHORITIES_REPLACED, message), false);
    }
    (Verdict::new(ConditionStatus::False, reason, format!("{reached}; {why}")), false)
}

/// Reason of condition and event, when ca.crt was replaced without an overlap.
pub const AUTHORITIES_REPLACED: &str = "AuthoritiesReplaced";

/// What that means, and what a person can do.
pub const REPLACED: &str = "ca.crt has no authority in common with the one that members trusted: those that have read it and \
     those that have not refuse each other's new connections, so all are told to read it at once; clients need the new ca.crt \
     now; to avoid this, first put the old and the new authority into ca.crt together";

fn names_of(results: &BTreeMap<String, NodeResult>, wanted: impl Fn(&NodeResult) -> bool) -> Vec<String> {
    results.iter().filter(|(_, result)| wanted(result)).map(|(name, _)| name.clone()).collect()
}

/// Enough of a hash for a person.
pub(crate) fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

fn list(names: &[String]) -> String {
    let listed = names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}
