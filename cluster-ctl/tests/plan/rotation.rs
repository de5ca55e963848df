//! Rotation of the passwords: each state of the Secret, and what follows.

use cluster_ctl::passwords::{Pair, Passwords};
use cluster_ctl::publish::Publication;
use cluster_ctl::rotation::{Step, next};
use shared::secret::Redacted;

use crate::world::{World, world};

fn pair(word: &str) -> Pair {
    let password = |user: &str| Redacted::new(format!("{user}-{word}"));
    Pair { operator: password("operator"), repl: password("repl") }
}

fn rest() -> Passwords {
    Passwords::fresh(pair("old"), None)
}

fn publication(of: &Passwords) -> Publication {
    let hashes = of.operator_hashes().into_iter().chain(of.repl_hashes());
    let text: Vec<String> = hashes.map(|hash| format!("#{}", hash.as_str())).collect();
    Publication { text: text.join(" "), revision: "r".to_owned(), refused: None }
}

/// The step with users.acl published as it is rendered from `passwords`.
fn step(passwords: &Passwords, requested: Option<&str>, world: &World) -> Step {
    next(passwords, requested, &world.observed(), Some(&publication(passwords)), true)
}

fn formed() -> World {
    world(3, 1).formed()
}

#[test]
fn nothing_is_rotated_that_nobody_asked_for_or_that_was_rotated() {
    assert_eq!(step(&rest(), None, &formed()), Step::Rest);
    assert_eq!(step(&rest(), Some(""), &formed()), Step::Rest);
    let done = Passwords { rotated: Some("t".to_owned()), ..rest() };
    assert_eq!(step(&done, Some("t"), &formed()), Step::Rest);
    assert_eq!(step(&done, Some("u"), &formed()), Step::Begin("u".to_owned()));
    assert_eq!(step(&done, None, &formed()), Step::Rest);
}

#[test]
fn it_begins_when_the_cluster_is_formed() {
    assert!(matches!(step(&rest(), Some("t"), &world(3, 1).whole()), Step::Wait(_)));
    assert_eq!(step(&rest(), Some("t"), &formed()), Step::Begin("t".to_owned()));
}

#[test]
fn the_new_ones_are_used_when_what_is_published_accepts_both() {
    let begun = rest().begin(pair("new"), "t");
    let of = |publication: Option<&Publication>, published| {
        next(&begun, Some("t"), &formed().observed(), publication, published)
    };
    assert_eq!(of(Some(&publication(&begun)), true), Step::Switch { revision: "r".to_owned() });
    assert!(matches!(of(Some(&publication(&begun)), false), Step::Wait(_)), "rendered is not published");
    assert!(matches!(of(Some(&publication(&rest())), true), Step::Wait(_)), "a refused file was restored");
    assert!(matches!(of(None, true), Step::Wait(_)), "something does not resolve");
}

#[test]
fn what_was_begun_is_finished_whatever_the_cluster_asks_for_now() {
    let begun = rest().begin(pair("new"), "t");
    let switched = begun.switch().unwrap();
    for requested in [None, Some("t"), Some("another"), Some("")] {
        assert!(matches!(step(&begun, requested, &formed()), Step::Switch { .. }), "{requested:?}");
        assert_eq!(step(&switched, requested, &formed()), Step::Finish, "{requested:?}");
    }
    assert_eq!(step(&switched.finish(), Some("another"), &formed()), Step::Begin("another".to_owned()));
}

#[test]
fn a_member_that_may_run_and_does_not_answer_holds_every_phase_and_a_dead_one_none() {
    let begun = rest().begin(pair("new"), "t");
    for passwords in [begun.clone(), begun.switch().unwrap()] {
        let silent = formed().with(|world| world.silence("c-03", None));
        assert!(matches!(step(&passwords, Some("t"), &silent), Step::Wait(why) if why.contains("c-03")));
        let dead = formed().with(|world| world.kill("c-03"));
        assert!(!matches!(step(&passwords, Some("t"), &dead), Step::Wait(_)));
    }
}

#[test]
fn interrupted_anywhere_it_goes_on_to_one_end() {
    let mut passwords = rest();
    let mut updates = 0;
    loop {
        // Each step is decided anew from the Secret, as by an operator that has just started.
        passwords = match step(&passwords, Some("t"), &formed()) {
            Step::Begin(token) => passwords.begin(pair("new"), &token),
            Step::Switch { .. } => passwords.switch().unwrap(),
            Step::Finish => passwords.finish(),
            Step::Rest => break,
            Step::Wait(why) => panic!("{why}"),
        };
        updates += 1;
    }
    assert_eq!((updates, passwords), (3, Passwords::fresh(pair("new"), Some("t"))));
}
