//! From the spec and the menu to what is wanted: size, node template, ACL file. Pure.

use shared::acl::{self, AclFile, AclInput, PasswordHash};
use shared::api::{Lifecycle, Placement, ValkeyNodeSpec, ZoneSpread};
use shared::names;
use shared::resolve::{self, Resolution};
use shared::tls::Doubt;
use shared::valkey::types::EngineVersion;

use crate::action::Wait;
use crate::model::{Certificate, Desired, Limits, Millis, Observed, Patience};
use crate::observe::shape;
use crate::passwords::Passwords;
use crate::ports::World;
use crate::publish::{self, Publication};
use crate::words::Reason;

/// The oldest engine that the operator knows; rendered for when a version is not known.
pub const OLDEST_ENGINE: EngineVersion = EngineVersion::new(8, 1, 0);

/// The spec's config, resolved.
pub fn resolve(world: &World) -> Resolution {
    resolve::resolve(&world.cluster.spec.config_ref, &world.menu.configs, &world.menu.images)
}

/// What is wanted. `names` are fresh node names; `default_spread` is the operator's setting, written into each new
/// node so that node-ctl needs to know none.
pub fn desired(
    world: &World,
    resolution: &Resolution,
    names: Vec<String>,
    default_spread: ZoneSpread,
) -> Desired {
    let spec = &world.cluster.spec;
    let template = resolution.config.as_ref().map_err(ToString::to_string).map(|config| {
        let placement = spec.placement.clone().unwrap_or_default();
        ValkeyNodeSpec {
            cluster_name: world.cluster.metadata.name.clone().unwrap_or_default(),
            image: config.image.clone(),
            cpu: config.cpu.clone(),
            memory: config.memory.clone(),
            version: Some(config.version.clone()),
            valkey_settings: config.valkey.clone(),
            shard_index: 0,
            tls_secret: spec.tls.as_ref().map(|tls| tls.secret_ref.clone()),
            placement: Some(Placement {
                zone_spread: Some(placement.zone_spread.unwrap_or(default_spread)),
                ..placement
            }),
            lifecycle: Lifecycle::Joining,
        }
    });
    Desired {
        shape: shape(spec.shards, spec.replicas_per_shard),
        template,
        acl: Ok(()),
        notices: Vec::new(),
        hold: None,
        tls: Ok(()),
        certificate: None,
        names,
        patience: Patience::default(),
        limits: Limits::default(),
    }
}

/// The lowest engine version that must understand the ACL file: of the running nodes, and of the image to be run.
pub fn acl_engine(seen: &Observed, resolution: &Resolution) -> EngineVersion {
    let running = seen.reports().map(|(_, report)| report.info.version);
    let declared =
        resolution.config.as_ref().ok().map(|config| config.version.parse().unwrap_or(OLDEST_ENGINE));
    running.chain(declared).min().unwrap_or(OLDEST_ENGINE)
}

/// The ACL file that should be published, or what does not resolve, in the words for a person.
pub fn acl_file(
    world: &World,
    resolution: &Resolution,
    passwords: &Passwords,
    engine: EngineVersion,
) -> Result<AclFile, String> {
    let config = resolution.acl.as_ref().map_err(ToString::to_string)?;
    acl::render(&AclInput {
        config,
        cluster: &world.cluster.spec.acl,
        roles: &world.menu.roles,
        operator_passwords: &passwords.operator_hashes(),
        repl_passwords: &passwords.repl_hashes(),
        engine,
    })
    .map_err(|error| error.to_string())
}

/// What follows from the state of the ACL ConfigMap and the auth Secret.
pub fn note_access(want: &mut Desired, world: &World, publication: Option<&Publication>) {
    let wait = |reason, message: String| Wait { reason, message };
    if let Some(words) = publication.and_then(|publication| publication.refused.as_ref()) {
        let message = format!(
            "a node refused users.acl, the last accepted one is published instead; mend the binding or role: {words}"
        );
        want.notices.push(wait(Reason::AclRefused, message));
    }
    if world.auth.as_ref().is_some_and(|secret| secret.metadata.deletion_timestamp.is_some()) {
        let message = "the auth Secret was deleted; it stays usable and goes with the cluster".to_owned();
        want.notices.push(wait(Reason::AuthSecretDeleted, message));
    }
    if world.acl.as_ref().is_some_and(|map| publish::unproved(map)) {
        let message = "no node is made until a running node has proved the published users.acl".to_owned();
        want.hold = Some(wait(Reason::AclUnproved, message));
    }
}

/// The verdict on the TLS Secret, and what follows from it: while servers cannot use it no node is made.
pub fn note_tls(want: &mut Desired, world: &World) {
    let (Some(tls), Some(material)) = (&world.cluster.spec.tls, &world.tls) else { return };
    let meta = &world.cluster.metadata;
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let valid = match material.check(&tls.secret_ref, &part(&meta.name), &part(&meta.namespace)) {
        Ok(valid) => valid,
        Err(problem) => {
            let message = problem.to_string();
            want.tls = Err(message.clone());
            want.hold = Some(Wait { reason: Reason::TlsInvalid, message });
            return;
        }
    };
    let wait = |doubt: &Doubt| {
        let reason = match doubt {
            Doubt::KeyMismatch(_) => Reason::TlsKeyMismatch,
            Doubt::Untrusted(_) => Reason::TlsUntrusted,
            Doubt::NoClientAuth => Reason::TlsNoClientAuth,
        };
        Wait { reason, message: format!("TLS Secret \"{}\": {doubt}", tls.secret_ref) }
    };
    let unusable = valid.unusable().map(wait);
    if unusable.is_some() {
        want.hold.clone_from(&unusable);
    }
    want.certificate = Some(Certificate {
        expires: Millis(valid.expires.saturating_mul(1000)),
        doubts: valid.doubts.iter().map(wait).collect(),
        unusable,
    });
}

/// What is said of such passwords.
pub fn unknown_passwords() -> Wait {
    let message = "the auth Secret holds passwords that the published users.acl does not know; they are not published: \
                   put the old ones back, and ask for a rotation by annotation instead";
    Wait { reason: Reason::AuthSecretChanged, message: message.to_owned() }
}

/// Whether the published users.acl knows the passwords in the auth Secret. If not, somebody changed the Secret: what no
/// node accepts is not published, because it would lock out operator and replicas.
pub fn are_known(passwords: &Passwords, world: &World) -> bool {
    let published = world.acl.as_ref().and_then(|map| map.data.as_ref()?.get(names::KEY_USERS_ACL));
    let Some(published) = published.filter(|_| !world.nodes.is_empty()) else { return true };
    let knows = |hashes: Vec<PasswordHash>| hashes.iter().any(|hash| published.contains(hash.as_str()));
    knows(passwords.operator_hashes()) && knows(passwords.repl_hashes())
}
