//! Which value wins, what each failure says, and what is still known after it.

use proptest::prelude::*;

use super::*;
use crate::api::Resources;

/// A menu under construction.
#[derive(Default, Clone, Debug)]
struct Menu {
    configs: BTreeMap<String, ValkeyConfigSpec>,
    images: BTreeMap<String, ValkeyImageSpec>,
}

impl Menu {
    fn config(mut self, name: &str, edit: impl FnOnce(&mut ValkeyConfigSpec)) -> Self {
        let mut spec = ValkeyConfigSpec::default();
        edit(&mut spec);
        self.configs.insert(name.into(), spec);
        self
    }

    fn image(mut self, name: &str, tag: &str) -> Self {
        let spec = ValkeyImageSpec {
            repository: "reg.example/valkey".into(),
            tag: tag.into(),
            version: "9.1.0".into(),
        };
        self.images.insert(name.into(), spec);
        self
    }

    fn resolve(&self, name: &str) -> Resolution {
        resolve(name, &self.configs, &self.images)
    }

    /// A chain `c1 → c2 → … → cN`, of which the last selects image `i`.
    fn chain_of(length: usize) -> Self {
        (1..=length).fold(Self::default().image("i", "9.1"), |menu, n| {
            menu.config(&format!("c{n}"), |spec| {
                if n == length {
                    spec.image_ref = Some("i".into());
                } else {
                    spec.base_ref = Some(format!("c{}", n + 1));
                }
            })
        })
    }
}

fn user(name: &str) -> AclBinding {
    AclBinding { username: name.into(), ..AclBinding::default() }
}

fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn error(resolution: &Resolution) -> String {
    resolution.config.as_ref().unwrap_err().to_string()
}

#[test]
fn one_config_is_taken_as_it_is() {
    let menu = Menu::default().image("v9", "9.1.0").config("small", |spec| {
        spec.image_ref = Some("v9".into());
        spec.resources = Some(Resources { cpu: Some("1".into()), memory: Some("2Gi".into()) });
        spec.valkey = settings(&[("maxmemory-policy", "allkeys-lru")]);
        spec.acl = Some(vec![user("app")]);
    });
    let expected = EffectiveConfig {
        image: "reg.example/valkey:9.1.0".into(),
        image_name: "v9".into(),
        version: "9.1.0".into(),
        cpu: Some("1".into()),
        memory: Some("2Gi".into()),
        valkey: settings(&[("maxmemory-policy", "allkeys-lru")]),
        acl: vec![user("app")],
        chain: vec!["small".into()],
    };
    let seen = menu.resolve("small");
    assert_eq!(seen.config, Ok(expected));
    assert_eq!(seen.acl, Ok(vec![user("app")]));
    assert_eq!(seen.image_name.as_deref(), Some("v9"));
}

#[test]
fn each_value_comes_from_the_nearest_config_that_sets_it() {
    let menu = Menu::default()
        .image("old", "8.1")
        .image("new", "9.1")
        .config("leaf", |spec| {
            spec.base_ref = Some("middle".into());
            spec.resources = Some(Resources { cpu: None, memory: Some("8Gi".into()) });
            spec.valkey = settings(&[("save", ""), ("maxclients", "5")]);
        })
        .config("middle", |spec| {
            spec.base_ref = Some("root".into());
            spec.image_ref = Some("new".into());
            spec.valkey = settings(&[("maxclients", "10"), ("hz", "20")]);
        })
        .config("root", |spec| {
            spec.image_ref = Some("old".into());
            spec.resources = Some(Resources { cpu: Some("2".into()), memory: Some("1Gi".into()) });
            spec.valkey = settings(&[("hz", "10"), ("timeout", "0")]);
        });
    let got = menu.resolve("leaf").config.unwrap();
    assert_eq!(got.image_name, "new");
    assert_eq!(got.cpu.as_deref(), Some("2"), "cpu and memory are inherited separately");
    assert_eq!(got.memory.as_deref(), Some("8Gi"));
    let merged = settings(&[("save", ""), ("maxclients", "5"), ("hz", "20"), ("timeout", "0")]);
    assert_eq!(got.valkey, merged);
    assert_eq!(got.chain, ["leaf", "middle", "root"]);
}

#[test]
fn acl_is_taken_whole_and_an_empty_list_counts_as_set() {
    let menu = Menu::default()
        .image("i", "9.1")
        .config("unset", |spec| spec.base_ref = Some("own".into()))
        .config("own", |spec| {
            spec.base_ref = Some("root".into());
            spec.acl = Some(vec![user("own")]);
        })
        .config("empty", |spec| {
            spec.base_ref = Some("root".into());
            spec.acl = Some(Vec::new());
        })
        .config("root", |spec| {
            spec.image_ref = Some("i".into());
            spec.acl = Some(vec![user("root")]);
        });
    for (config, expected) in [("unset", vec![user("own")]), ("empty", vec![]), ("root", vec![user("root")])]
    {
        let seen = menu.resolve(config);
        assert_eq!(seen.acl, Ok(expected.clone()), "{config}");
        assert_eq!(seen.config.unwrap().acl, expected, "{config}");
    }
}

#[test]
fn a_digest_is_joined_with_an_at_sign() {
    let digest = format!("sha256:{}", "ab".repeat(32));
    let menu =
        Menu::default().image("pinned", &digest).config("c", |spec| spec.image_ref = Some("pinned".into()));
    assert_eq!(menu.resolve("c").config.unwrap().image, format!("reg.example/valkey@{digest}"));
}

#[test]
fn every_failure_has_its_exact_words() {
    let none = Menu::default();
    assert_eq!(error(&none.resolve("gone")), "ValkeyConfig \"gone\" not found");

    let dangling = Menu::default().config("leaf", |spec| spec.base_ref = Some("gone".into()));
    assert_eq!(error(&dangling.resolve("leaf")), "ValkeyConfig \"gone\" not found");

    let imageless =
        Menu::default().config("leaf", |spec| spec.base_ref = Some("root".into())).config("root", |_| ());
    assert_eq!(error(&imageless.resolve("leaf")), "no image_ref in config chain ending at \"leaf\"");

    let no_image = Menu::default().config("leaf", |spec| spec.image_ref = Some("v9".into()));
    assert_eq!(error(&no_image.resolve("leaf")), "ValkeyImage \"v9\" not found");

    let circle = Menu::default()
        .config("a", |spec| spec.base_ref = Some("b".into()))
        .config("b", |spec| spec.base_ref = Some("a".into()));
    assert_eq!(error(&circle.resolve("a")), "config inheritance depth exceeds 10 (cycle?)");

    let own_base = Menu::default().image("i", "9").config("self", |spec| {
        spec.base_ref = Some("self".into());
        spec.image_ref = Some("i".into());
    });
    assert_eq!(error(&own_base.resolve("self")), "config inheritance depth exceeds 10 (cycle?)");
}

#[test]
fn ten_configs_are_a_chain_and_eleven_are_too_many() {
    let ten = Menu::chain_of(10).resolve("c1");
    assert_eq!(ten.config.unwrap().chain.len(), 10);
    let eleven = Menu::chain_of(11).resolve("c1");
    assert_eq!(error(&eleven), "config inheritance depth exceeds 10 (cycle?)");
    assert_eq!(eleven.chain.len(), 10);
}

#[test]
fn a_tenth_config_with_a_missing_base_is_too_deep_because_an_eleventh_is_never_looked_up() {
    let mut menu = Menu::chain_of(11);
    menu.configs.remove("c11");
    assert_eq!(menu.resolve("c1").config, Err(ResolveError::TooDeep));
}

#[test]
fn a_failed_resolution_still_names_what_it_looked_up() {
    let menu = Menu::default().config("leaf", |spec| {
        spec.base_ref = Some("gone".into());
        spec.image_ref = Some("v9".into());
    });
    let seen = menu.resolve("leaf");
    assert_eq!(seen.chain, ["leaf", "gone"]);
    assert!(seen.uses_config("gone") && seen.uses_config("leaf") && seen.uses_image("v9"));
    assert!(!seen.uses_config("v9") && !seen.uses_image("leaf"));
}

#[test]
fn acl_is_known_without_the_image_and_without_configs_beyond_the_one_that_sets_it() {
    let menu = Menu::default()
        .config("near", |spec| {
            spec.base_ref = Some("gone".into());
            spec.acl = Some(vec![user("app")]);
        })
        .config("far", |spec| spec.base_ref = Some("gone".into()))
        .config("imageless", |spec| spec.image_ref = Some("gone".into()));
    assert_eq!(menu.resolve("near").acl, Ok(vec![user("app")]));
    let missing = ResolveError::ConfigNotFound { name: "gone".into() };
    assert_eq!(menu.resolve("far").acl, Err(missing), "the missing config may set it");
    assert_eq!(menu.resolve("imageless").acl, Ok(Vec::new()));
}

#[test]
fn a_username_bound_twice_is_refused_by_name() {
    let merged = merge_acl(&[user("a"), user("b")], &[user("c"), user("b")]);
    assert_eq!(merged.unwrap_err().to_string(), "duplicate username \"b\" in merged ACL bindings");
    let fine = merge_acl(&[user("b")], &[user("a")]).unwrap();
    assert_eq!(fine, [user("b"), user("a")], "the config's bindings come first");
}

/// A name out of few, so that chains, circles and missing ones are all common.
fn name() -> impl Strategy<Value = String> {
    "[a-f]"
}

fn spec() -> impl Strategy<Value = ValkeyConfigSpec> {
    (
        prop::option::weighted(0.3, "[i-k]"),
        prop::option::weighted(0.8, name()),
        prop::option::of((prop::option::of("[1-9]"), prop::option::of("[1-9]Gi"))),
        prop::collection::btree_map("[p-s]", "[0-9]", 0..4),
        prop::option::weighted(0.3, prop::collection::vec(name().prop_map(|n| user(&n)), 0..3)),
    )
        .prop_map(|(image_ref, base_ref, size, valkey, acl)| ValkeyConfigSpec {
            image_ref,
            base_ref,
            resources: size.map(|(cpu, memory)| Resources { cpu, memory }),
            valkey,
            acl,
        })
}

fn menu() -> impl Strategy<Value = Menu> {
    (prop::collection::btree_map(name(), spec(), 0..6), prop::collection::btree_set("[i-k]", 0..3)).prop_map(
        |(configs, images)| {
            images
                .iter()
                .fold(Menu { configs, images: BTreeMap::new() }, |menu, image| menu.image(image, "9"))
        },
    )
}

/// The specification read from the other end: fold from the root, each config overriding what is below it.
fn fold_from_root(menu: &Menu, chain: &[String]) -> ValkeyConfigSpec {
    chain.iter().rev().fold(ValkeyConfigSpec::default(), |below, name| {
        let spec = &menu.configs[name];
        let (near, far) = (spec.resources.clone().unwrap_or_default(), below.resources.unwrap_or_default());
        let mut valkey = below.valkey;
        valkey.extend(spec.valkey.clone());
        ValkeyConfigSpec {
            image_ref: spec.image_ref.clone().or(below.image_ref),
            base_ref: None,
            resources: Some(Resources { cpu: near.cpu.or(far.cpu), memory: near.memory.or(far.memory) }),
            valkey,
            acl: spec.acl.clone().or(below.acl),
        }
    })
}

proptest! {
    #[test]
    fn a_resolved_config_equals_the_fold_from_the_root(menu in menu(), selected in name()) {
        let seen = menu.resolve(&selected);
        if let Ok(got) = seen.config {
            let expected = fold_from_root(&menu, &got.chain);
            prop_assert_eq!(Some(&got.image_name), expected.image_ref.as_ref());
            let size = expected.resources.unwrap_or_default();
            prop_assert_eq!((got.cpu, got.memory), (size.cpu, size.memory));
            prop_assert_eq!(got.valkey, expected.valkey);
            prop_assert_eq!(&got.acl, &expected.acl.unwrap_or_default());
            prop_assert_eq!(seen.acl, Ok(got.acl));
        }
    }

    #[test]
    fn any_menu_ends_within_the_limit_and_names_each_config_that_matters(menu in menu(), selected in name()) {
        let seen = menu.resolve(&selected);
        prop_assert!((1..=MAX_CHAIN).contains(&seen.chain.len()));
        prop_assert_eq!(&seen.chain[0], &selected);
        for name in ["a", "b", "c", "d", "e", "f"].into_iter().filter(|name| !seen.uses_config(name)) {
            let mut edited = menu.clone();
            edited.configs.remove(name);
            prop_assert_eq!(&edited.resolve(&selected), &seen, "{} was not said to be used", name);
        }
        for image in ["i", "j", "k"].into_iter().filter(|image| !seen.uses_image(image)) {
            let edited = menu.clone().image(image, "other");
            prop_assert_eq!(&edited.resolve(&selected), &seen, "{} was not said to be used", image);
        }
    }

    #[test]
    fn a_known_acl_never_depends_on_what_is_missing(menu in menu(), selected in name(), added in spec()) {
        let seen = menu.resolve(&selected);
        if let (Ok(acl), Err(ResolveError::ConfigNotFound { name })) = (&seen.acl, &seen.config) {
            let mut completed = menu.clone();
            completed.configs.insert(name.clone(), added);
            prop_assert_eq!(completed.resolve(&selected).acl, Ok(acl.clone()));
        }
    }
}
