//! What a server must say of itself at the instant at which a command reaches it. Each check is asked on the connection that
//! the command follows on; none looks at anything else.

use shared::slots::SlotSet;
use shared::valkey::report::NodeReport;
use shared::valkey::types::NodeId;

/// The server is the one that the plan saw.
pub(super) fn is(id: NodeId) -> impl Fn(&NodeReport) -> Result<(), String> {
    move |report| {
        if report.id == id { Ok(()) } else { Err(format!("{} answers in the place of {id}", report.id)) }
    }
}

/// It has met nobody.
pub(super) fn alone(report: &NodeReport) -> Result<(), String> {
    if report.nodes.len() == 1 { Ok(()) } else { Err("it knows other nodes already".to_owned()) }
}

/// It owns no slots.
pub(super) fn owns_nothing(report: &NodeReport) -> Result<(), String> {
    let slots = report.myself().map(|line| line.slots.clone()).unwrap_or_default();
    if slots.is_empty() { Ok(()) } else { Err(format!("it owns slots {slots}")) }
}

/// At the instant of the reset: it owns nothing, and it is not the primary of anybody that it knows.
pub(super) fn may_reset(report: &NodeReport) -> Result<(), String> {
    owns_nothing(report)?;
    let follower = report.nodes.iter().find(|line| line.primary == Some(report.id));
    follower.map_or(Ok(()), |line| Err(format!("{} replicates it", line.id)))
}

/// The giver owns all of the slots, takes part in no move, and knows the receiver as a primary.
pub(super) fn may_give(report: &NodeReport, receiver: NodeId, slots: &SlotSet) -> Result<(), String> {
    let own = report.myself().map(|line| line.slots.clone()).unwrap_or_default();
    let missing = slots.difference(&own);
    if !missing.is_empty() {
        return Err(format!("it does not own {missing}"));
    }
    let open = report.migrations.iter().flatten().find(|job| job.state.is_open());
    if let Some(job) = open {
        return Err(format!("slots {} are moving already", job.slots));
    }
    match report.line(receiver) {
        Some(line) if line.flags.primary && !line.flags.fail => Ok(()),
        _ => Err(format!("it does not know {receiver} as a live primary")),
    }
}

/// It does not follow the one that it is to forget, which owns nothing in its view.
pub(super) fn may_forget(report: &NodeReport, id: NodeId) -> Result<(), String> {
    if report.myself().and_then(|line| line.primary) == Some(id) {
        return Err(format!("it replicates {id}"));
    }
    match report.line(id) {
        Some(line) if !line.slots.is_empty() => Err(format!("{id} owns slots {}", line.slots)),
        _ => Ok(()),
    }
}

/// A replica that asks for a hand-over must be in sync with the living primary: otherwise the engine stalls the
/// primary's writes for five seconds and nothing comes of it (measured on 9.1.2).
pub(super) fn may_hand_over(report: &NodeReport, from: NodeId) -> Result<(), String> {
    if report.myself().and_then(|line| line.primary) != Some(from) {
        return Err(format!("it does not replicate {from}"));
    }
    let synced = report.info.link.as_ref().is_some_and(|link| link.up && !link.sync_in_progress)
        && !report.info.loading;
    if synced { Ok(()) } else { Err(format!("it is not in sync with {from}")) }
}

/// The promotion gate at the replica itself: it follows the dead primary, which still owns its slots in its view, and
/// its link is not alive.
pub(super) fn may_take_over(report: &NodeReport, from: NodeId) -> Result<(), String> {
    if report.myself().and_then(|line| line.primary) != Some(from) {
        return Err(format!("it does not replicate {from}"));
    }
    if report.line(from).is_none_or(|line| line.slots.is_empty()) {
        return Err(format!("{from} owns no slots in its view any more"));
    }
    let fresh = report.info.link.as_ref().is_some_and(|link| link.up && link.last_io_seconds == 0);
    let reachable =
        report.line(from).is_some_and(|line| line.link_connected && !line.flags.fail && !line.flags.pfail);
    if fresh && reachable { Err(format!("its link to {from} is alive")) } else { Ok(()) }
}
