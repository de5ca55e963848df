//! Rotation of the system users' passwords: what is to be done next, from the auth Secret and what was seen. Pure.
//!
//! First fresh passwords are announced beside the current ones. When every member has proved a users.acl that accepts
//! both, every member logs in at its primary with the new one, and the new ones take the place of the current ones. When
//! the operator has logged in anew everywhere the old ones are withdrawn. A member that does not answer holds the phase.
//! Links and logins that exist are not touched by any of it.

use crate::action::Wait;
use crate::model::Observed;
use crate::passwords::Passwords;
use crate::publish::Publication;
use crate::words::Reason;

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing is asked for.
    Rest,
    /// Something is awaited, in these words.
    Wait(String),
    /// Announce fresh passwords for this token.
    Begin(String),
    /// Prove that every member runs this revision of users.acl, then give every member the announced replication password,
    /// then switch.
    Switch {
        /// The revision that accepts both.
        revision: String,
    },
    /// Give every member the current replication password once more, then withdraw the old ones.
    Finish,
}

/// Decides the next step. `requested` is the token on the cluster; `publication` is what is to be published, and
/// `published` whether it is.
pub fn next(
    passwords: &Passwords,
    requested: Option<&str>,
    seen: &Observed,
    publication: Option<&Publication>,
    published: bool,
) -> Step {
    let begun = passwords.next.is_some() || passwords.previous.is_some();
    let token = requested.filter(|token| !token.is_empty() && passwords.rotated.as_deref() != Some(token));
    match token {
        None if !begun => return Step::Rest,
        Some(_) if !seen.formed() => return Step::Wait("it begins when the cluster is formed".to_owned()),
        Some(token) if !begun => return Step::Begin(token.to_owned()),
        _ => {}
    }
    if let Some(silent) = unheard(seen) {
        return Step::Wait(format!("{silent} does not answer; every member has to learn the new passwords"));
    }
    if passwords.previous.is_some() {
        return Step::Finish;
    }
    match publication {
        Some(publication) if published && accepts(publication, passwords) => {
            Step::Switch { revision: publication.revision.clone() }
        }
        _ => Step::Wait("users.acl with the new passwords is not published yet".to_owned()),
    }
}

/// A member that may run and did not answer with the present login.
fn unheard(seen: &Observed) -> Option<&str> {
    let staying = seen.staying().filter(|member| !member.verified_dead());
    staying.filter(|member| member.report().is_none()).map(|member| member.name.as_str()).next()
}

fn accepts(publication: &Publication, passwords: &Passwords) -> bool {
    let hashes = passwords.operator_hashes().into_iter().chain(passwords.repl_hashes());
    hashes.into_iter().all(|hash| publication.text.contains(hash.as_str()))
}

/// What a person sees of a rotation that goes on.
pub fn notice(passwords: &Passwords, step: &Step) -> Option<Wait> {
    let phase = match (&passwords.next, &passwords.previous) {
        (_, Some(_)) => "the new ones are in use, the old ones are being withdrawn",
        (Some(_), None) => "every member is learning the new ones",
        (None, None) => "it was asked for",
    };
    let message = match step {
        Step::Rest => return None,
        Step::Wait(why) => format!("rotation of the system users' passwords: {phase}; {why}"),
        Step::Begin(_) | Step::Switch { .. } | Step::Finish => {
            format!("rotation of the system users' passwords: {phase}")
        }
    };
    Some(Wait { reason: Reason::RotatingPasswords, message })
}
