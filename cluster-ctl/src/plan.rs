//! The decision: from what was seen and what is wanted to at most one step. Pure, total, deterministic.
//!
//! Owns the order of the rules; each rule lives in its own file, in this order. No client, clock, I/O or randomness.

mod bootstrap;
pub mod deletion;
pub(crate) mod failover;
mod islands;
pub mod join;
mod lost;
pub mod outdated;
mod picture;
mod retire;
mod rolling;
pub mod safety;
mod shards;
mod spread;
pub mod stability;
mod start;
mod topology;
mod view;

use crate::action::{Decision, Pace, Wait};
use crate::model::{Desired, Observed, Ownership};
use crate::words::Reason;
use picture::Picture;

/// What one rule says.
#[derive(Debug)]
pub enum Verdict {
    /// This is the step of the tick.
    Act(Box<Decision>),
    /// Something holds the rule up; the next rule is asked, and the wait is shown.
    Wait(Vec<Wait>),
    /// Nothing for this rule to do.
    Pass,
}

impl Verdict {
    pub(crate) fn act(decision: Decision) -> Self {
        Self::Act(Box::new(decision))
    }

    pub(crate) fn wait(reason: Reason, message: impl Into<String>) -> Self {
        Self::Wait(vec![Wait { reason, message: message.into() }])
    }
}

type Rule = fn(&Picture<'_>, &Desired) -> Verdict;

/// Repair, and the end of what was begun: asked first, in this order.
const REPAIR: &[Rule] = &[
    stability::forget_dead,
    failover::promote_replica,
    failover::end_silence,
    lost::replace_lost_primary,
    lost::give_unowned,
    lost::release_followers,
    lost::reset_again,
    stability::remove_dead,
    stability::end_hung,
    stability::restore_members,
    islands::introduce,
    join::finish_joins,
    retire::finish_leaving,
    rolling::evacuate,
];

/// Planned work, asked only while nothing is under repair.
const PLANNED: &[Rule] = &[
    topology::retire_drained,
    topology::rebalance,
    topology::add_shards,
    topology::await_drained,
    rolling::roll,
    rolling::remove_excess,
];

/// Decides the tick.
pub fn plan(seen: &Observed, want: &Desired) -> Decision {
    if seen.cluster.deleting {
        return deletion::plan(seen);
    }
    let decision = decide(seen, want);
    match &want.tls {
        Ok(()) => decision,
        Err(words) => decision.in_front(Wait { reason: Reason::TlsInvalid, message: words.clone() }),
    }
}

fn decide(seen: &Observed, want: &Desired) -> Decision {
    if seen.objects.auth == Ownership::Missing && !seen.members.is_empty() {
        // Nobody can be asked, and a new password would lock us out: nothing may be concluded from the silence.
        let message =
            "the auth Secret is gone and no copy of it is accepted by any node; restore it from a backup";
        return Decision::wait(Reason::AuthSecretLost, message, Pace::Wait);
    }
    let seen = &Picture::new(seen, want);
    if !seen.formed() {
        return bootstrap::plan(seen, want);
    }
    let mut waits = Vec::new();
    for rule in REPAIR {
        match rule(seen, want) {
            Verdict::Act(decision) => return decision.with_waits(waits),
            Verdict::Wait(more) => waits.extend(more),
            Verdict::Pass => {}
        }
    }
    if !waits.is_empty() || want.tls.is_err() {
        return view::idle(seen, want, waits);
    }
    for rule in PLANNED {
        match rule(seen, want) {
            Verdict::Act(decision) => return decision.with_waits(waits),
            // A step that the running engine cannot do yields to rolling to one that can.
            Verdict::Wait(more) if more.iter().all(|wait| wait.reason == Reason::EngineTooOld) => {
                waits.extend(more);
            }
            Verdict::Wait(more) => {
                waits.extend(more);
                break;
            }
            Verdict::Pass => {}
        }
    }
    view::idle(seen, want, waits)
}
