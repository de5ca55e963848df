//! For how long running members have not answered, or have kept keys that bar them from leaving. Remembered since the first
//! tick that saw it, by uptime: losing that only lengthens a wait.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::{Answer, Member, Observed};

/// UIDs of the Pods that run and whose servers did not answer in this tick.
pub fn silent_pods(seen: &Observed) -> BTreeSet<String> {
    pods(seen, |member| member.pod_running() && matches!(member.answer, Answer::Silent(_)))
}

/// UIDs of the Pods whose members [leave with keys](Member::leaves_with_keys).
pub fn pods_with_keys(seen: &Observed) -> BTreeSet<String> {
    pods(seen, Member::leaves_with_keys)
}

fn pods(seen: &Observed, are: impl Fn(&Member) -> bool) -> BTreeSet<String> {
    let members = seen.members.values().filter(|member| are(member));
    members.filter_map(|member| Some(member.pod.as_ref()?.uid.clone())).collect()
}

/// Marks each member with the age of its silence, and of its leaving with keys.
pub fn mark(
    seen: &mut Observed,
    silences: &BTreeMap<String, Duration>,
    keys_kept: &BTreeMap<String, Duration>,
) {
    for member in seen.members.values_mut() {
        let millis = |ages: &BTreeMap<String, Duration>| {
            let age = member.pod.as_ref().and_then(|pod| ages.get(&pod.uid)).copied().unwrap_or_default();
            i64::try_from(age.as_millis()).unwrap_or(i64::MAX)
        };
        (member.silent_millis, member.keys_kept_millis) = (millis(silences), millis(keys_kept));
    }
}
