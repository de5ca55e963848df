//! Primaries that nobody sees die: each story ends well without a person, and by the action that it is about.

use sim::clock::Ms;
use sim::scenario::{Event, Scenario, Victim};
use sim::simulation::Simulation;

/// A formed cluster of this size, without a person who confirms deaths, that something happens to after 30 s.
fn story(seed: u64, shape: (u16, u16), events: &[(Ms, Event)]) -> Scenario {
    let mut scenario = Scenario::bootstrap(seed, shape.0, shape.1);
    scenario.writes = true;
    scenario.confirms = false;
    scenario.events.extend(events.iter().map(|(after, event)| (30_000 + after, event.clone())));
    scenario.calm_at = 120_000;
    scenario
}

/// Every story ends well; in how many the operator took an action of this kind.
fn taken(kind: &str, stories: impl Iterator<Item = Scenario>) -> usize {
    let ended = stories
        .map(|story| Simulation::new(story, false).run().unwrap_or_else(|failure| panic!("{failure}")));
    ended.filter(|summary| summary.actions.contains_key(kind)).count()
}

#[test]
fn a_frozen_primary_for_which_nobody_can_vote_has_its_pod_ended_and_is_succeeded() {
    let freeze = [(0, Event::Freeze(Victim::Primary, 80_000))];
    for shape in [(1, 1), (2, 1), (2, 2)] {
        let stories = (0..4).map(|seed| story(seed, shape, &freeze));
        assert_eq!(taken("EndPod", stories), 4, "{shape:?}");
    }
}

#[test]
fn a_primary_that_comes_back_in_time_keeps_its_pod() {
    let freeze = [(0, Event::Freeze(Victim::Primary, 15_000))];
    assert_eq!(taken("EndPod", (0..6).map(|seed| story(seed, (2, 1), &freeze))), 0);
}

#[test]
fn a_machine_that_is_lost_for_good_proves_the_death_of_the_primary_on_it() {
    for taint in [false, true] {
        let stories = (0..8).map(|seed| {
            let machine = u8::try_from(seed % 4).unwrap();
            story(seed, (2, 1), &[(0, Event::MachineGone(machine, taint))])
        });
        assert!(taken("Failover", stories) > 0, "no machine of eight carried a primary (taint {taint})");
    }
}

#[test]
fn a_pod_that_was_deleted_without_grace_proves_the_death_after_a_while() {
    let delete = [(0, Event::ForceDelete(Victim::Primary))];
    assert_eq!(taken("Failover", (0..6).map(|seed| story(seed, (2, 1), &delete))), 6);
}

#[test]
fn a_silent_primary_whose_replica_lost_its_election_is_succeeded_by_force() {
    // The replica has begun its election when it is cut off from every voter; it is back before the next one.
    let events = |seed: u64| {
        let cut_off = 6_000 + i64::try_from(seed).unwrap() * 100;
        [(0, Event::Freeze(Victim::Primary, 60_000)), (cut_off, Event::Isolate(Victim::Replica, 12_000))]
    };
    assert!(taken("Failover", (0..24).map(|seed| story(seed, (3, 1), &events(seed)))) > 0);
}

#[test]
fn a_cluster_that_the_watch_does_not_show_yet_is_asked_for_less_and_less_often() {
    // The edit is not seen for twenty seconds, and until then every write of the status is refused.
    let events = [
        (0, Event::Stale(0, 0, 20_000)),
        (100, Event::Resize("cart".to_owned(), 1, 2)),
        (200, Event::Kill(Victim::Replica)),
    ];
    for seed in 0..4 {
        let summary = Simulation::new(story(seed, (1, 1), &events), false).run();
        let (before, after) = summary.unwrap_or_else(|failure| panic!("{failure}")).calls;
        let calls = after - before;
        assert!(calls < 300, "{calls} calls, those that heal the cluster among them (seed {seed})");
    }
}

#[test]
fn what_was_done_to_objects_that_the_watch_does_not_show_yet_is_repeated_less_and_less_often() {
    // For twenty seconds no change of a node is seen: neither that it was marked, made or deleted.
    for event in [Event::Kill(Victim::Replica), Event::Resize("cart".to_owned(), 2, 0)] {
        let events = [(0, Event::Stale(0, 1, 20_000)), (100, event)];
        for seed in 0..4 {
            let summary = Simulation::new(story(seed, (2, 1), &events), false).run();
            let summary = summary.unwrap_or_else(|failure| panic!("{failure}"));
            let actions: u32 = summary.actions.values().sum();
            assert!(actions < 60, "{:?} (seed {seed})", summary.actions);
        }
    }
}

#[test]
fn an_operator_that_has_not_heard_of_the_deletion_does_not_hold_the_secret_that_the_other_released() {
    // Of two, one sees for twenty seconds that the Secret is without its finalizer, and not that the cluster goes.
    for seed in 0..8 {
        let events = [(0, Event::Stale(0, 0, 20_000)), (100, Event::Delete("cart".to_owned()))];
        let mut story = story(seed, (1, 0), &events);
        story.twins = true;
        Simulation::new(story, false).run().unwrap_or_else(|failure| panic!("{failure}"));
    }
}
