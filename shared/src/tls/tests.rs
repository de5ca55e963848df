//! Secrets of every kind of wrongness, and the words for each.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::ServerName;

use super::*;

const SERVICE: &str = "c.ns.svc.cluster.local";
const MEMBERS: &str = "*.c.ns.svc.cluster.local";
const BOTH: [ExtendedKeyUsagePurpose; 2] =
    [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];

pub(super) type Issuer = CertifiedIssuer<'static, KeyPair>;

pub(super) fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

pub(super) fn authority(name: &str) -> Issuer {
    CertifiedIssuer::self_signed(authority_params(name), KeyPair::generate().unwrap()).unwrap()
}

fn params(names: &[&str], usages: &[ExtendedKeyUsagePurpose]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.extended_key_usages = usages.to_vec();
    params
}

/// A certificate and its key.
fn issue(params: &CertificateParams, by: &Issuer) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, by).unwrap().pem(), key.serialize_pem())
}

fn secret(parts: &[(&str, &[u8])]) -> Secret {
    let data = parts.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.to_vec())));
    Secret { data: Some(data.collect()), ..Secret::default() }
}

fn whole(certificate: &str, key: &str, authorities: &str) -> Secret {
    secret(&[
        (KEY_CERTIFICATE, certificate.as_bytes()),
        (KEY_PRIVATE, key.as_bytes()),
        (KEY_AUTHORITIES, authorities.as_bytes()),
    ])
}

fn check(secret: &Secret) -> Result<Valid, Problem> {
    Material::read(Some(secret)).check("s", "c", "ns")
}

fn words(secret: &Secret) -> String {
    check(secret).unwrap_err().to_string()
}

fn doubts(secret: &Secret) -> Vec<&'static str> {
    check(secret).unwrap().doubts.iter().map(Doubt::reason).collect()
}

#[test]
fn a_good_secret_is_valid_without_a_doubt_and_gives_leaf_and_authorities() {
    let ours = authority("ours");
    let mut good = params(&[SERVICE, MEMBERS], &BOTH);
    good.not_after = date_time_ymd(2030, 1, 1);
    let (certificate, key) = issue(&good, &ours);
    let secret = whole(&certificate, &key, &ours.pem());
    assert_eq!(check(&secret), Ok(Valid { expires: 1_893_456_000, doubts: vec![] }));
    let material = Material::read(Some(&secret));
    assert_eq!(material.authorities().as_deref(), Some(ours.pem().as_str()));
    assert!(certificate.contains("BEGIN CERTIFICATE"));
    assert_eq!(
        material.leaf().map(<[u8]>::to_vec),
        CertificateDer::from_pem_slice(certificate.as_bytes()).ok().map(|it| it.to_vec())
    );
}

#[test]
fn each_problem_has_its_exact_words_and_the_first_in_order_is_told() {
    let ours = authority("ours");
    let (certificate, key) = issue(&params(&[SERVICE, MEMBERS], &BOTH), &ours);
    let not_found = Material::read(None).check("s", "c", "ns").unwrap_err().to_string();
    assert_eq!(not_found, "TLS Secret \"s\" not found in namespace \"ns\"");
    for empty in [Secret::default(), secret(&[])] {
        assert_eq!(words(&empty), "TLS Secret \"s\" has no data");
    }
    for (parts, missing) in [
        (vec![("other", "x")], "tls.crt"),
        (vec![(KEY_CERTIFICATE, "rubbish")], "tls.key"),
        (vec![(KEY_PRIVATE, "rubbish")], "tls.crt"),
        (vec![(KEY_CERTIFICATE, "rubbish"), (KEY_PRIVATE, "rubbish")], "ca.crt"),
    ] {
        let parts: Vec<(&str, &[u8])> = parts.iter().map(|(key, value)| (*key, value.as_bytes())).collect();
        assert_eq!(words(&secret(&parts)), format!("TLS Secret \"s\" missing required key \"{missing}\""));
    }
    let block = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
    for rubbish in [String::new(), "rubbish".to_owned(), block("%%%"), key.clone()] {
        let secret = whole(&rubbish, &key, &ours.pem());
        assert_eq!(words(&secret), "TLS Secret \"s\": tls.crt is not valid PEM", "{rubbish}");
    }
    let secret = whole(&block("AAAA"), &key, &ours.pem());
    assert_eq!(words(&secret), "TLS Secret \"s\": tls.crt is not a valid X.509 certificate");
    for (names, missing) in [
        (vec!["other.example"], SERVICE),
        (vec![MEMBERS], SERVICE),
        (vec!["c.other.svc.cluster.local", MEMBERS], SERVICE),
        (vec![SERVICE], MEMBERS),
        (vec![SERVICE, "*.ns.svc.cluster.local"], MEMBERS),
    ] {
        let (certificate, key) = issue(&params(&names, &BOTH), &ours);
        let secret = whole(&certificate, &key, &ours.pem());
        assert_eq!(
            words(&secret),
            format!("TLS cert in Secret \"s\" missing SAN \"{missing}\""),
            "{names:?}"
        );
    }
    assert_eq!(doubts(&whole(&certificate, &key, &ours.pem())), Vec::<&str>::new());
}

#[test]
fn names_are_compared_as_dns_does() {
    let ours = authority("ours");
    let shouted = params(&["C.NS.svc.cluster.local", "*.C.ns.SVC.cluster.local", "extra.example"], &BOTH);
    let (certificate, key) = issue(&shouted, &ours);
    assert_eq!(doubts(&whole(&certificate, &key, &ours.pem())), Vec::<&str>::new());
}

#[test]
fn a_key_of_another_certificate_or_no_key_is_a_doubt_that_keeps_servers_off() {
    let ours = authority("ours");
    let (certificate, key) = issue(&params(&[SERVICE, MEMBERS], &BOTH), &ours);
    let (_, other) = issue(&params(&[SERVICE, MEMBERS], &BOTH), &ours);
    for wrong in [other.as_str(), "", "rubbish", certificate.as_str()] {
        let secret = whole(&certificate, wrong, &ours.pem());
        assert_eq!(doubts(&secret), ["TlsKeyMismatch"], "{wrong}");
        assert!(check(&secret).unwrap().unusable().is_some());
    }
    // Correcting the key alone is a change that nodes have to hear of.
    let revision =
        |key: &str| Material::read(Some(&whole(&certificate, key, &ours.pem()))).revision().to_owned();
    assert_ne!(revision(&key), revision(&other));
    assert_eq!(revision(&key), revision(&key));
}

#[test]
fn only_an_authority_in_the_bundle_vouches() {
    let (ours, theirs) = (authority("ours"), authority("theirs"));
    // The name of an authority is no proof of its key.
    let namesake = authority("ours");
    let (certificate, key) = issue(&params(&[SERVICE, MEMBERS], &BOTH), &ours);
    let with = |authorities: &str| doubts(&whole(&certificate, &key, authorities));
    for foreign in [theirs.pem(), namesake.pem(), String::new(), "rubbish".to_owned()] {
        assert_eq!(with(&foreign), ["TlsUntrusted"], "{foreign}");
    }
    for bundle in [ours.pem() + &theirs.pem(), theirs.pem() + &namesake.pem() + &ours.pem()] {
        assert_eq!(with(&bundle), Vec::<&str>::new());
    }
}

#[test]
fn an_intermediate_in_tls_crt_leads_to_the_authority() {
    let ours = authority("ours");
    let middle =
        CertifiedIssuer::signed_by(authority_params("middle"), KeyPair::generate().unwrap(), &ours).unwrap();
    let (certificate, key) = issue(&params(&[SERVICE, MEMBERS], &BOTH), &middle);
    assert_eq!(doubts(&whole(&certificate, &key, &ours.pem())), ["TlsUntrusted"]);
    assert_eq!(doubts(&whole(&(certificate + &middle.pem()), &key, &ours.pem())), Vec::<&str>::new());
}

#[test]
fn a_certificate_that_signs_itself_is_its_own_authority() {
    for is_ca in [IsCa::ExplicitNoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
        let mut own = params(&[SERVICE, MEMBERS], &BOTH);
        own.is_ca = is_ca;
        let key = KeyPair::generate().unwrap();
        let certificate = own.self_signed(&key).unwrap().pem();
        let secret = whole(&certificate, &key.serialize_pem(), &certificate);
        assert_eq!(doubts(&secret), Vec::<&str>::new());
    }
}

#[test]
fn a_certificate_that_members_cannot_use_as_clients_is_doubtful_but_usable() {
    let ours = authority("ours");
    let of = |usages: &[ExtendedKeyUsagePurpose]| {
        let (certificate, key) = issue(&params(&[SERVICE, MEMBERS], usages), &ours);
        let secret = whole(&certificate, &key, &ours.pem());
        assert!(check(&secret).unwrap().unusable().is_none());
        doubts(&secret)
    };
    assert_eq!(of(&[ExtendedKeyUsagePurpose::ServerAuth]), ["TlsNoClientAuth"]);
    assert_eq!(of(&[]), Vec::<&str>::new(), "without the extension every usage is allowed");
    assert_eq!(of(&BOTH), Vec::<&str>::new());
}

#[test]
fn an_expired_certificate_is_valid_in_form_and_still_proves_whose_it_is() {
    let ours = authority("ours");
    let mut old = params(&[SERVICE, MEMBERS], &BOTH);
    (old.not_before, old.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let (certificate, key) = issue(&old, &ours);
    let secret = whole(&certificate, &key, &ours.pem());
    assert_eq!(check(&secret), Ok(Valid { expires: 1_609_459_200, doubts: vec![] }));
    let leaf = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_hours(24 * 365 * 56));
    let verify = |authority: &Issuer, name: &str| {
        use rustls::client::danger::ServerCertVerifier as _;
        let authorities = Authorities::from_pem(authority.pem().as_bytes()).unwrap();
        authorities
            .verify_server_cert(&leaf, &[], &ServerName::try_from(name.to_owned()).unwrap(), &[], now)
            .is_ok()
    };
    assert!(verify(&ours, "c-0.c.ns.svc.cluster.local"));
    assert!(!verify(&ours, "c-0.d.ns.svc.cluster.local"), "another cluster's name");
    assert!(!verify(&authority("ours"), "c-0.c.ns.svc.cluster.local"), "another authority");
}

#[test]
fn one_that_is_not_valid_yet_is_refused_by_connections_and_no_problem_of_form() {
    let ours = authority("ours");
    let mut early = params(&[SERVICE, MEMBERS], &BOTH);
    early.not_before = date_time_ymd(2090, 1, 1);
    let (certificate, key) = issue(&early, &ours);
    assert_eq!(doubts(&whole(&certificate, &key, &ours.pem())), Vec::<&str>::new());
    let leaf = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let authorities = Authorities::from_pem(ours.pem().as_bytes()).unwrap();
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_hours(24 * 365 * 56));
    assert!(authorities.vouch(&leaf, &[], now).is_err());
}

#[test]
fn neither_the_key_nor_its_checksum_is_kept() {
    let ours = authority("ours");
    let (certificate, key) = issue(&params(&[SERVICE, MEMBERS], &BOTH), &ours);
    let material = Material::read(Some(&whole(&certificate, &key, &ours.pem())));
    let shown = format!("{material:?}");
    let line = key.lines().nth(1).unwrap();
    assert!(!shown.contains(line) && !shown.contains(&hex::encode(Sha256::digest(key.as_bytes()))));
}

/// What a key of the Secret holds.
fn part() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop_oneof![
        Just(None),
        Just(Some(Vec::new())),
        "[ -~\n]{0,80}".prop_map(|text| Some(text.into_bytes())),
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(Some),
        "[A-Za-z0-9+/=\n]{0,120}".prop_map(|body| Some(
            format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n").into_bytes()
        )),
        proptest::collection::vec(any::<u8>(), 0..120).prop_map(|der| {
            let pem = pem_of(&der);
            Some(pem.into_bytes())
        }),
    ]
}

fn pem_of(der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut body = String::new();
    for chunk in der.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * place) & 63) as usize];
            body.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
}

proptest! {
    #[test]
    fn whatever_the_parts_are_the_first_problem_in_order_is_named(
        certificate in part(), key in part(), authorities in part(), stranger in part(),
    ) {
        let parts = [
            (KEY_CERTIFICATE, &certificate), (KEY_PRIVATE, &key), (KEY_AUTHORITIES, &authorities), ("z", &stranger),
        ];
        let data: BTreeMap<String, ByteString> = parts
            .iter()
            .filter_map(|(name, value)| Some(((*name).to_owned(), ByteString(value.as_ref()?.clone()))))
            .collect();
        let missing = parts[..3].iter().find(|(_, value)| value.is_none()).map(|(name, _)| *name);
        let problem = check(&Secret { data: Some(data.clone()), ..Secret::default() }).unwrap_err();
        match (data.is_empty(), missing) {
            (true, _) => prop_assert!(matches!(problem, Problem::NoData { .. }), "{}", problem),
            (false, Some(name)) => {
                let named = matches!(problem, Problem::MissingKey { key, .. } if key == name);
                prop_assert!(named, "{}", problem);
            }
            // Rubbish is never taken for a certificate.
            (false, None) => {
                let rubbish = matches!(problem, Problem::NotPem { .. } | Problem::NotX509 { .. });
                prop_assert!(rubbish, "{}", problem);
            }
        }
    }

    #[test]
    fn a_certificate_is_valid_exactly_if_both_names_are_among_its_own(
        others in proptest::collection::btree_set("[a-z]{1,8}(\\.[a-z]{1,8}){0,3}", 0..4),
        service in any::<bool>(), members in any::<bool>(),
    ) {
        let ours = authority("ours");
        let mut names: Vec<&str> = others.iter().map(String::as_str).collect();
        names.extend(service.then_some(SERVICE));
        names.extend(members.then_some(MEMBERS));
        let (certificate, key) = issue(&params(&names, &BOTH), &ours);
        let result = check(&whole(&certificate, &key, &ours.pem()));
        prop_assert_eq!(result.is_ok(), service && members);
    }

    #[test]
    fn a_damaged_certificate_never_panics_and_never_passes_for_the_good_one(at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let ours = authority("ours");
        let (certificate, key) = issue(&params(&[SERVICE, MEMBERS], &BOTH), &ours);
        let mut der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap().to_vec();
        let at = at.index(der.len());
        der[at] ^= flip;
        if let Ok(valid) = check(&whole(&pem_of(&der), &key, &ours.pem())) {
            prop_assert!(valid.doubts.iter().any(|doubt| matches!(doubt, Doubt::Untrusted(_))), "{:?}", valid);
        }
    }
}
