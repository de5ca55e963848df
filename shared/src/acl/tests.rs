use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::api::{CategoryRule, CommandRule};

const HASH: &str = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8";

fn role(categories: &[(&str, Access)], commands: &[(&str, Option<&str>, Access)]) -> ValkeyRoleSpec {
    ValkeyRoleSpec {
        categories: categories
            .iter()
            .map(|(name, access)| CategoryRule { name: (*name).to_owned(), access: *access })
            .collect(),
        commands: commands
            .iter()
            .map(|(name, subcommand, access)| CommandRule {
                name: (*name).to_owned(),
                subcommand: subcommand.map(ToOwned::to_owned),
                access: *access,
            })
            .collect(),
    }
}

fn roles() -> BTreeMap<String, ValkeyRoleSpec> {
    let reader = role(&[("read", Access::Allow), ("connection", Access::Allow)], &[]);
    let app = role(
        &[("all", Access::Allow), ("dangerous", Access::Deny)],
        &[("config", Some("get"), Access::Allow), ("keys", None, Access::Deny)],
    );
    BTreeMap::from([
        ("reader".to_owned(), reader),
        ("app".to_owned(), app),
        ("nothing".to_owned(), ValkeyRoleSpec::default()),
    ])
}

fn key(pattern: &str, access: KeyAccess) -> KeyPattern {
    KeyPattern { pattern: pattern.to_owned(), access }
}

fn permission(role: &str, keys: &[KeyPattern], channels: &[&str]) -> Permission {
    Permission {
        role_ref: role.to_owned(),
        keys: keys.to_vec(),
        channels: channels.iter().map(|channel| (*channel).to_owned()).collect(),
    }
}

fn binding(username: &str, permissions: Vec<Permission>) -> AclBinding {
    AclBinding { username: username.to_owned(), password_hashes: vec![HASH.to_owned()], permissions }
}

fn render_for(
    config: &[AclBinding],
    cluster: &[AclBinding],
    engine: EngineVersion,
) -> Result<AclFile, AclError> {
    let hashes = |password: &str| [PasswordHash::of(&Redacted::new(password.to_owned()))];
    render(&AclInput {
        config,
        cluster,
        roles: &roles(),
        operator_passwords: &hashes("operator"),
        repl_passwords: &hashes("repl"),
        engine,
    })
}

const NEW: EngineVersion = EngineVersion::new(9, 1, 2);
const OLD: EngineVersion = EngineVersion::new(8, 1, 1);

fn everything() -> Vec<AclBinding> {
    let reader = permission("reader", &[key("shared:*", KeyAccess::Read)], &["news.*"]);
    let app = permission(
        "app",
        &[key("app:*", KeyAccess::ReadWrite), key("audit:*", KeyAccess::Write)],
        &["app.*", "a(b"],
    );
    vec![
        binding("app", vec![app.clone(), reader.clone(), permission("nothing", &[], &[])]),
        binding("idle", vec![permission("nothing", &[], &[])]),
        binding(
            "all-of-it",
            vec![permission(
                "app",
                &[key("x", KeyAccess::Read), key("*", KeyAccess::ReadWrite)],
                &["y", "*"],
            )],
        ),
    ]
}

#[test]
fn every_form_of_binding_renders_as_documented() {
    insta::assert_snapshot!("full_9", render_for(&everything(), &[], NEW).unwrap().text);
}

#[test]
fn an_older_engine_gets_no_word_that_it_does_not_know() {
    let text = render_for(&[], &[], OLD).unwrap().text;
    insta::assert_snapshot!("empty_8", text);
    for unknown in ["syncslots", "migrateslots", "slotmigrations"] {
        assert!(!text.contains(unknown), "{text}");
    }
}

#[test]
fn the_default_user_is_open_without_bindings_off_with_any_and_as_bound_when_named() {
    let first_line = |bindings: &[AclBinding]| {
        let text = render_for(&[], bindings, NEW).unwrap().text;
        (text.lines().next().unwrap().to_owned(), text.matches("user default ").count())
    };
    let reader = || vec![permission("reader", &[], &[])];
    assert_eq!(first_line(&[]), ("user default on nopass ~* &* +@all".to_owned(), 1));
    let off = "user default off resetpass resetchannels resetkeys -@all".to_owned();
    assert_eq!(first_line(&[binding("app", reader())]), (off, 1));
    let (line, count) = first_line(&[binding("default", reader())]);
    assert_eq!(line, format!("user default on resetchannels resetkeys -@all #{HASH} +@read +@connection"));
    assert_eq!(count, 1);
}

#[test]
fn blocked_bindings_are_told_in_the_documented_words() {
    let app = || binding("app", vec![permission("reader", &[], &[])]);
    let error = |config: &[AclBinding], cluster: &[AclBinding]| {
        render_for(config, cluster, NEW).unwrap_err().to_string()
    };
    assert_eq!(error(&[app()], &[app()]), "duplicate username \"app\" in merged ACL bindings");
    assert_eq!(
        error(&[], &[binding("app", vec![permission("ghost", &[], &[])])]),
        "ValkeyRole \"ghost\" not found (referenced by user \"app\")"
    );
    assert!(error(&[], &[binding("_momento_operator", vec![])]).contains("cannot be expressed safely"));
}

#[test]
fn a_file_over_the_limit_is_an_error() {
    let long = "k".repeat(256);
    let keys: Vec<KeyPattern> = (0..16).map(|_| key(&long, KeyAccess::Read)).collect();
    let permissions = || (0..16).map(|_| permission("reader", &keys, &[])).collect();
    let bindings: Vec<AclBinding> = (0..64).map(|n| binding(&format!("u{n}"), permissions())).collect();
    let error = render_for(&bindings, &[], NEW).unwrap_err();
    assert!(error.to_string().starts_with("ACL too large"), "{error}");
}

#[test]
fn the_revision_is_read_back_and_any_change_is_noticed() {
    let file = render_for(&everything(), &[], NEW).unwrap();
    assert_eq!(revision(&file.text).as_ref(), Some(&file.revision));
    assert_eq!(revision(&file.text.replace("shared:", "other:")), None);
    assert_eq!(revision(""), None);
    assert_eq!(revision("\n"), None);
    assert_eq!(revision(file.text.trim_end()), None);
    assert_ne!(render_for(&everything(), &[], OLD).unwrap().revision, file.revision);
}

/// Splits a line as the server does where no quotes occur, selectors kept whole.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut open = false;
    for word in line.split(' ') {
        match words.last_mut() {
            Some(selector) if open => {
                selector.push(' ');
                selector.push_str(word);
            }
            _ => {
                open = word.starts_with('(');
                words.push(word.to_owned());
            }
        }
        open = open && !word.ends_with(')');
    }
    assert!(!open, "selector not closed in {line:?}");
    words
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z*:?\\[\\](){}#%+@|.-]{1,12}",
        1 => ".{0,12}",
        1 => "[a-z\\n\\r\\t \"'~&)]{0,6}",
    ]
}

fn any_binding() -> impl Strategy<Value = AclBinding> {
    let access = prop_oneof![Just(KeyAccess::Read), Just(KeyAccess::Write), Just(KeyAccess::ReadWrite)];
    let keys = prop::collection::vec((any_text(), access), 0..3);
    let permission =
        (keys, prop::collection::vec(any_text(), 0..3)).prop_map(|(keys, channels)| Permission {
            role_ref: "app".to_owned(),
            keys: keys.into_iter().map(|(pattern, access)| KeyPattern { pattern, access }).collect(),
            channels,
        });
    let hash = prop_oneof![9 => "[0-9a-f]{64}", 1 => any_text()];
    let name = prop_oneof![9 => "[a-zA-Z0-9_-]{1,8}", 1 => any_text()];
    (name, prop::collection::vec(hash, 1..3), prop::collection::vec(permission, 0..4)).prop_map(
        |(username, password_hashes, permissions)| AclBinding { username, password_hashes, permissions },
    )
}

proptest! {
    #[test]
    fn no_input_adds_a_line_or_a_user_and_every_line_reads_back(
        bindings in prop::collection::vec(any_binding(), 0..4),
    ) {
        let Ok(file) = render_for(&[], &bindings, NEW) else { return Ok(()) };
        prop_assert_eq!(&file, &render_for(&[], &bindings, NEW).unwrap());
        let named_default = bindings.iter().any(|binding| binding.username == "default");
        let lines: Vec<&str> = file.text.split_terminator('\n').collect();
        prop_assert_eq!(lines.len(), bindings.len() + usize::from(!named_default) + 3);
        let users: Vec<String> = lines.iter().map(|line| words(line)[1].clone()).collect();
        let mut expected: Vec<String> = Vec::new();
        if !named_default { expected.push("default".to_owned()); }
        expected.extend(bindings.iter().map(|binding| binding.username.clone()));
        expected.extend([names::USER_OPERATOR, names::USER_REPL, names::USER_REVISION].map(ToOwned::to_owned));
        prop_assert_eq!(users, expected);
        for (binding, line) in bindings.iter().zip(lines.iter().skip(usize::from(!named_default))) {
            let words = words(line);
            let selectors = words.iter().filter(|word| word.starts_with('(')).count();
            prop_assert_eq!(selectors, binding.permissions.len().saturating_sub(1), "{}", line);
            let hashes = words.iter().filter(|word| word.starts_with('#')).count();
            prop_assert_eq!(hashes, binding.password_hashes.len());
            prop_assert!(words.iter().all(|word| word != "nopass" && word != "allkeys"));
        }
        prop_assert_eq!(revision(&file.text), Some(file.revision));
    }
}
