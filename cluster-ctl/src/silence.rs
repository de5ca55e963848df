//! For how long running members have not answered. Remembered since the first tick without an answer, by uptime: losing
//! that only lengthens a wait.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::{Answer, Observed};

/// UIDs of the Pods that run and whose servers did not answer in this tick.
pub fn silent_pods(seen: &Observed) -> BTreeSet<String> {
    let silent = seen
        .members
        .values()
        .filter(|member| member.pod_running() && matches!(member.answer, Answer::Silent(_)));
    silent.filter_map(|member| Some(member.pod.as_ref()?.uid.clone())).collect()
}

/// Marks each silent member with the age of its silence.
pub fn mark(seen: &mut Observed, ages: &BTreeMap<String, Duration>) {
    for member in seen.members.values_mut() {
        let age = member.pod.as_ref().and_then(|pod| ages.get(&pod.uid)).copied().unwrap_or_default();
        member.silent_millis = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
    }
}
