//! Deliberate errors are caught, each by the invariant that it breaks.

use sim::ports::mutants::Mutant;
use sim::scenario::{Event, Scenario, Victim};
use sim::simulation::Simulation;

/// Some story of the first `seeds` catches the mutant with an invariant that says `words`, and ends well without it.
fn assert_caught(mutant: Mutant, seeds: u64, words: &str, story: impl Fn(u64) -> Scenario) {
    let mut said = Vec::new();
    for seed in 0..seeds {
        let simulation = Simulation::new(story(seed), false);
        simulation.mutate(mutant);
        match simulation.run() {
            Ok(_) => {}
            Err(failure) if failure.violation.contains(words) => {
                let healthy = Simulation::new(story(seed), false).run();
                healthy.unwrap_or_else(|failure| panic!("without {mutant:?}: {failure}"));
                return;
            }
            Err(failure) => said.push(failure.violation),
        }
    }
    panic!("{mutant:?} was not caught by {words:?} in {seeds} stories; what was said: {said:?}");
}

fn twins(mut scenario: Scenario) -> Scenario {
    scenario.twins = true;
    scenario
}

#[test]
fn creating_from_a_stale_list_is_caught() {
    assert_caught(Mutant::StaleList, 20, "is made although", |seed| {
        let mut scenario = Scenario::bootstrap(seed, 3, 1);
        scenario.events.push((100, Event::Stale(0, 1, 3_000)));
        scenario
    });
}

#[test]
fn assigning_a_slot_twice_is_caught() {
    assert_caught(Mutant::SlotsTwice, 3, "gets slots that", |seed| Scenario::bootstrap(seed, 3, 1));
}

#[test]
fn forgetting_a_slot_owner_is_caught() {
    assert_caught(Mutant::OwnerOverlooked, 10, "is told to forget", |seed| {
        let mut scenario = Scenario::one_event(seed, 3, 0, Event::Kill(Victim::Primary));
        scenario.calm_at = 60_000;
        scenario
    });
}

#[test]
fn taking_silence_for_death_is_caught() {
    assert_caught(Mutant::SilenceIsDeath, 10, "lives", |seed| {
        // With two shards the engine itself promotes nobody.
        let mut scenario = Scenario::bootstrap(seed, 2, 1);
        scenario.writes = true;
        scenario.events.push((30_000, Event::Freeze(Victim::Primary, 40_000)));
        scenario.calm_at = 80_000;
        scenario
    });
}

#[test]
fn acting_without_the_lock_is_caught() {
    assert_caught(Mutant::NoLock, 10, "the lock does not hold", |seed| {
        let mut scenario = twins(Scenario::one_event(seed, 3, 1, Event::Kill(Victim::Any)));
        scenario.events.push((30_100, Event::Stale(2, 1, 5_000)));
        scenario
    });
}

#[test]
fn promoting_a_replica_without_a_copy_is_caught() {
    assert_caught(Mutant::CopylessIsCopy, 40, "which holds no copy", |seed| {
        let mut scenario = Scenario::bootstrap(seed, 3, 1);
        let at = 2_000 + i64::try_from(seed).unwrap() * 60;
        scenario.events.push((at, Event::Kill(Victim::Primary)));
        scenario
    });
}

/// Something that happens 30 s after the birth of a cluster of this size.
fn later(seed: u64, shape: (u16, u16), event: Event) -> Scenario {
    let mut scenario = Scenario::bootstrap(seed, shape.0, shape.1);
    scenario.writes = true;
    scenario.events.push((30_000, event));
    scenario.calm_at = 90_000;
    scenario
}

#[test]
fn forgetting_a_primary_before_its_replica_is_promoted_is_caught() {
    assert_caught(Mutant::ForgetsEarly, 10, "is told to forget", |seed| {
        later(seed, (3, 1), Event::Kill(Victim::Primary))
    });
}

#[test]
fn retiring_a_replica_before_its_successor_is_in_sync_is_caught() {
    assert_caught(Mutant::RetiresEarly, 10, "is reset although its shard has", |seed| {
        later(seed, (3, 1), Event::Image("9.1.3"))
    });
}

#[test]
fn promoting_a_replica_of_another_shard_is_caught() {
    assert_caught(Mutant::WrongShard, 10, "lives", |seed| later(seed, (3, 1), Event::Kill(Victim::Primary)));
}

#[test]
fn calling_a_shard_lost_that_only_the_operator_does_not_reach_is_caught() {
    assert_caught(Mutant::UnreachableIsDeath, 10, "is made for a lost shard although", |seed| {
        later(seed, (3, 0), Event::Unreachable(Victim::Primary, 40_000))
    });
}

#[test]
fn sending_force_again_before_a_new_tick_is_caught() {
    assert_caught(Mutant::ForceTwice, 5, "sends FAILOVER again in one tick", |seed| {
        later(seed, (3, 1), Event::Kill(Victim::Primary))
    });
}

#[test]
fn deleting_a_member_before_its_reset_is_caught() {
    assert_caught(Mutant::DeletesUnreset, 5, "which lives and is known to", |seed| {
        later(seed, (3, 2), Event::Resize("cart".to_owned(), 3, 1))
    });
}

#[test]
fn giving_slots_to_a_replacement_at_epoch_0_is_caught() {
    assert_caught(Mutant::EpochZero, 5, "gets slots at epoch 0", |seed| {
        later(seed, (3, 0), Event::Kill(Victim::Primary))
    });
}

#[test]
fn withholding_forget_from_a_failed_member_without_slots_is_caught() {
    assert_caught(Mutant::FailOverlooked, 5, "of no use", |seed| {
        later(seed, (3, 1), Event::Freeze(Victim::Replica, 50_000))
    });
}
