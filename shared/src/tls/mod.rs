//! The TLS Secret of a cluster: what is in it, and whether a cluster can serve with it. Pure.
//!
//! Owns the order of the checks and their exact words, which people search for. A [`Problem`] makes a cluster
//! `Invalid`; a [`Doubt`] is told and leaves it as it is. Knows nothing of who reads the Secret or when.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use rustls::crypto;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::names;

mod authorities;
mod record;
#[cfg(test)]
mod tests;

pub use authorities::{Authorities, bundle};
pub use record::AuthorityRecord;

/// Key of the certificate chain, the node's own certificate first.
pub const KEY_CERTIFICATE: &str = "tls.crt";
/// Key of the private key.
pub const KEY_PRIVATE: &str = "tls.key";
/// Key of the authorities that vouch for members and are trusted by them.
pub const KEY_AUTHORITIES: &str = "ca.crt";

/// The keys that must be there, in the order in which a missing one is named.
const KEYS: [&str; 3] = [KEY_CERTIFICATE, KEY_PRIVATE, KEY_AUTHORITIES];

/// A certificate is told to expire soon from this long before its end, seconds: 30 days.
pub const EXPIRES_SOON_SECONDS: i64 = 30 * 24 * 3600;

/// Why a cluster cannot serve with its TLS Secret. The words are exact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// There is no Secret of the name.
    #[error("TLS Secret \"{secret}\" not found in namespace \"{namespace}\"")]
    NotFound {
        /// The Secret.
        secret: String,
        /// Where it was looked for.
        namespace: String,
    },
    /// The Secret holds nothing.
    #[error("TLS Secret \"{secret}\" has no data")]
    NoData {
        /// The Secret.
        secret: String,
    },
    /// One of the three keys is not there.
    #[error("TLS Secret \"{secret}\" missing required key \"{key}\"")]
    MissingKey {
        /// The Secret.
        secret: String,
        /// The first missing key.
        key: &'static str,
    },
    /// tls.crt holds no PEM block with a certificate.
    #[error("TLS Secret \"{secret}\": tls.crt is not valid PEM")]
    NotPem {
        /// The Secret.
        secret: String,
    },
    /// The first PEM block of tls.crt is no certificate.
    #[error("TLS Secret \"{secret}\": tls.crt is not a valid X.509 certificate")]
    NotX509 {
        /// The Secret.
        secret: String,
    },
    /// The certificate does not cover a name that clients dial.
    #[error("TLS cert in Secret \"{secret}\" missing SAN \"{name}\"")]
    MissingName {
        /// The Secret.
        secret: String,
        /// The name, a wildcard for the members.
        name: String,
    },
}

/// What will give trouble although the Secret is valid in form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// tls.key is not the certificate's, or no key.
    KeyMismatch(String),
    /// No authority in ca.crt vouches for the certificate.
    Untrusted(String),
    /// Members may not use the certificate as clients of each other.
    NoClientAuth,
}

impl Doubt {
    /// The word in conditions and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::KeyMismatch(_) => "TlsKeyMismatch",
            Self::Untrusted(_) => "TlsUntrusted",
            Self::NoClientAuth => "TlsNoClientAuth",
        }
    }

    /// A server cannot start with these files, or could not talk to the others: running ones keep what they have.
    pub fn is_unusable(&self) -> bool {
        matches!(self, Self::KeyMismatch(_) | Self::Untrusted(_))
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyMismatch(why) => write!(f, "tls.key does not belong to tls.crt: {why}"),
            Self::Untrusted(why) => write!(f, "tls.crt is not signed by an authority in ca.crt: {why}"),
            Self::NoClientAuth => f.write_str(
                "the certificate may not be used by clients, which members are to each other; issue it with the usage \
                 \"client auth\" besides \"server auth\"",
            ),
        }
    }
}

/// A certificate with which a cluster can serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Valid {
    /// When it expires, seconds since the Unix epoch.
    pub expires: i64,
    /// What will give trouble, gravest first.
    pub doubts: Vec<Doubt>,
}

impl Valid {
    /// The gravest doubt that keeps servers from taking these files.
    pub fn unusable(&self) -> Option<&Doubt> {
        self.doubts.iter().find(|doubt| doubt.is_unusable())
    }
}

/// What a TLS Secret holds, without its private key. Depends on no cluster's name and on no clock, so that it can be kept
/// for as long as the Secret does not change.
#[derive(Debug, Clone)]
pub struct Material {
    content: Content,
    authorities: Option<Arc<str>>,
    revision: String,
}

#[derive(Debug, Clone)]
enum Content {
    NotFound,
    NoData,
    Missing(&'static str),
    NotPem,
    NotX509,
    Certificate(Certificate),
}

#[derive(Debug, Clone)]
struct Certificate {
    leaf: CertificateDer<'static>,
    /// DNS names that it covers, lower case.
    names: BTreeSet<String>,
    expires: i64,
    doubts: Vec<Doubt>,
}

impl Material {
    /// Reads a Secret; `None` stands for one that does not exist.
    pub fn read(secret: Option<&Secret>) -> Self {
        let data = secret.and_then(|secret| secret.data.as_ref());
        let value = |key: &str| data.and_then(|data| data.get(key)).map(|ByteString(bytes)| bytes.as_slice());
        let authorities = value(KEY_AUTHORITIES).filter(|pem| Authorities::from_pem(pem).is_ok());
        let authorities = authorities.map(|pem| String::from_utf8_lossy(pem).into());
        let missing = KEYS.into_iter().find(|key| value(key).is_none());
        let content = match (secret, missing) {
            (None, _) => Content::NotFound,
            (Some(_), _) if data.is_none_or(std::collections::BTreeMap::is_empty) => Content::NoData,
            (Some(_), Some(key)) => Content::Missing(key),
            (Some(_), None) => {
                let bytes = |key| value(key).unwrap_or_default();
                content(bytes(KEY_CERTIFICATE), bytes(KEY_PRIVATE), bytes(KEY_AUTHORITIES))
            }
        };
        let revision = revision(value(KEY_CERTIFICATE), value(KEY_AUTHORITIES), &content);
        Self { content, authorities, revision }
    }

    /// Whether `cluster` in `namespace` can serve with it; `secret` is its name, for the words.
    ///
    /// # Errors
    /// The first problem, in the order of the table in `docs/security/tls.md`.
    pub fn check(&self, secret: &str, cluster: &str, namespace: &str) -> Result<Valid, Problem> {
        let secret = secret.to_owned();
        let certificate = match &self.content {
            Content::NotFound => {
                return Err(Problem::NotFound { secret, namespace: namespace.to_owned() });
            }
            Content::NoData => return Err(Problem::NoData { secret }),
            Content::Missing(key) => return Err(Problem::MissingKey { secret, key }),
            Content::NotPem => return Err(Problem::NotPem { secret }),
            Content::NotX509 => return Err(Problem::NotX509 { secret }),
            Content::Certificate(certificate) => certificate,
        };
        let host = names::service_host(cluster, namespace);
        for name in [host.clone(), format!("*.{host}")] {
            if !certificate.names.contains(&name.to_ascii_lowercase()) {
                return Err(Problem::MissingName { secret, name });
            }
        }
        Ok(Valid { expires: certificate.expires, doubts: certificate.doubts.clone() })
    }

    /// The text of ca.crt, if there is an authority in it.
    pub fn authorities(&self) -> Option<Arc<str>> {
        self.authorities.clone()
    }

    /// The text of ca.crt if nodes can serve with all of it; otherwise they keep what they had, and so must whoever
    /// verifies them.
    pub fn usable_authorities(&self, secret: &str, cluster: &str, namespace: &str) -> Option<Arc<str>> {
        let valid = self.check(secret, cluster, namespace).ok()?;
        self.authorities().filter(|_| valid.unusable().is_none())
    }

    /// The certificate that nodes are to serve, DER.
    pub fn leaf(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Certificate(certificate) => Some(certificate.leaf.as_ref()),
            _ => None,
        }
    }

    /// Another one whenever what nodes have to re-read is another. No secret.
    pub fn revision(&self) -> &str {
        &self.revision
    }
}

/// A checksum of the public parts, and of whether the key fits: a key is not to be told from its checksum.
fn revision(certificate: Option<&[u8]>, authorities: Option<&[u8]>, content: &Content) -> String {
    let mut hash = Sha256::new();
    for part in [certificate, authorities] {
        hash.update(Sha256::digest(part.unwrap_or_default()));
    }
    let fits = match content {
        Content::Certificate(certificate) => {
            !certificate.doubts.iter().any(|doubt| matches!(doubt, Doubt::KeyMismatch(_)))
        }
        _ => false,
    };
    hash.update([u8::from(fits)]);
    hex::encode(hash.finalize())
}

fn content(certificate: &[u8], key: &[u8], authorities: &[u8]) -> Content {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let Ok(chain) = chain else { return Content::NotPem };
    let Some((leaf, intermediates)) = chain.split_first() else { return Content::NotPem };
    let Ok((_, parsed)) = X509Certificate::from_der(leaf) else { return Content::NotX509 };
    let Ok(names) = dns_names(&parsed) else { return Content::NotX509 };
    let usage = parsed.extended_key_usage().ok().flatten();
    let doubts = [
        key_doubt(&chain, key),
        trust_doubt(leaf, intermediates, authorities),
        usage
            .is_some_and(|usage| !usage.value.any && !usage.value.client_auth)
            .then_some(Doubt::NoClientAuth),
    ];
    Content::Certificate(Certificate {
        names,
        expires: parsed.validity().not_after.timestamp(),
        doubts: doubts.into_iter().flatten().collect(),
        leaf: leaf.clone(),
    })
}

fn dns_names(certificate: &X509Certificate<'_>) -> Result<BTreeSet<String>, x509_parser::error::X509Error> {
    let names = certificate.subject_alternative_name()?;
    let names = names.iter().flat_map(|names| &names.value.general_names);
    Ok(names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        })
        .collect())
}

fn key_doubt(chain: &[CertificateDer<'static>], key: &[u8]) -> Option<Doubt> {
    let key = match PrivateKeyDer::from_pem_slice(key) {
        Ok(key) => key,
        Err(error) => return Some(Doubt::KeyMismatch(format!("no private key in PEM form ({error})"))),
    };
    let provider = crypto::ring::default_provider();
    // A kind of key that is not known here may be known to the server: no doubt without proof.
    let key = provider.key_provider.load_private_key(key).ok()?;
    match CertifiedKey::new(chain.to_vec(), key).keys_match() {
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Some(Doubt::KeyMismatch("it is the key of another certificate".to_owned()))
        }
        _ => None,
    }
}

/// Judged for an instant at which the chain had begun: whether it has begun or expired is another question.
fn trust_doubt(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    authorities: &[u8],
) -> Option<Doubt> {
    let begin = |certificate: &CertificateDer<'_>| {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        u64::try_from(parsed.validity().not_before.timestamp()).ok()
    };
    let begun = std::iter::once(leaf).chain(intermediates).filter_map(begin).max().unwrap_or(0);
    let begun = UnixTime::since_unix_epoch(std::time::Duration::from_secs(begun));
    let vouched = Authorities::from_pem(authorities).map_err(|error| error.to_string());
    let vouched = vouched
        .and_then(|trusted| trusted.vouch(leaf, intermediates, begun).map_err(|error| error.to_string()));
    vouched.err().map(Doubt::Untrusted)
}
