//! Who may vouch for a node's certificate: the authorities of a cluster's `ca.crt`, and nobody else.
//!
//! Owns the one verification that the Secret's check and every connection share. An expired certificate still proves
//! whose it is: it is verified for the last instant at which it was valid, because a node that serves one must stay
//! within reach to be told of its renewal. That it has expired is told elsewhere.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{self, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The certificates of a `ca.crt`; in an overlap bundle each of them counts.
#[derive(Debug, Clone)]
pub struct Authorities {
    roots: Arc<RootCertStore>,
    certificates: Arc<[CertificateDer<'static>]>,
    provider: Arc<CryptoProvider>,
}

impl Authorities {
    /// Reads a PEM text with one or more certificates. What in it is no authority is left out.
    ///
    /// # Errors
    /// It is no PEM, or no authority is left.
    pub fn from_pem(pem: &[u8]) -> io::Result<Self> {
        let certificates: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(io::Error::other)?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        if roots.is_empty() {
            return Err(io::Error::other("no certificate authority given"));
        }
        let provider = Arc::new(crypto::ring::default_provider());
        Ok(Self { roots: Arc::new(roots), certificates: certificates.into(), provider })
    }

    /// Another one whenever the set of certificates is another; their order, and the text between them, do not count.
    pub fn revision(&self) -> String {
        let certificates: BTreeSet<&[u8]> = self.certificates.iter().map(AsRef::as_ref).collect();
        let mut hash = Sha256::new();
        for certificate in certificates {
            hash.update(Sha256::digest(certificate));
        }
        hex::encode(hash.finalize())
    }

    /// Whether all certificates of `other` are among these.
    pub fn contain(&self, other: &Self) -> bool {
        other.certificates.iter().all(|certificate| self.certificates.contains(certificate))
    }

    /// Whether some authority is in both, by its name and key: one whose certificate was renewed is still the same.
    pub fn overlap(&self, other: &Self) -> bool {
        let identity = |store: &RootCertStore| -> BTreeSet<(Vec<u8>, Vec<u8>)> {
            let roots = store.roots.iter();
            roots.map(|root| (root.subject.to_vec(), root.subject_public_key_info.to_vec())).collect()
        };
        !identity(&self.roots).is_disjoint(&identity(&other.roots))
    }

    /// Serial number of the certificate that expires first, as Valkey 9.1 reports it (`tls_ca_cert_serial`: upper-case
    /// hexadecimal, the first of several that expire at once); `None` where the engine's way to write it is not known.
    pub fn first_to_expire(&self) -> Option<String> {
        let (_, certificate) = self.expiries()?.into_iter().min_by_key(|(expires, _)| *expires)?;
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let serial = parsed.raw_serial();
        let negative = serial.first().is_some_and(|byte| byte & 0x80 != 0);
        let digits: Vec<u8> = serial.iter().copied().skip_while(|byte| *byte == 0).collect();
        (!negative && !digits.is_empty()).then(|| hex::encode_upper(digits))
    }

    /// Whether a server that reports [`Self::first_to_expire`] of these has read exactly these, and not another choice of
    /// the authorities in `all`: so it is when there is one certificate, and none in `all` that outlives it.
    pub fn shown_by_first_to_expire(&self, all: &Self) -> bool {
        let (Some(own), Some(others)) = (self.expiries(), all.expiries()) else { return false };
        let Some((expires, one)) = own.first() else { return false };
        own.iter().all(|(_, certificate)| certificate == one)
            && others.iter().all(|(other, certificate)| certificate == one || other < expires)
    }

    /// When each certificate expires, seconds since the Unix epoch, in the order of the text.
    fn expiries(&self) -> Option<Vec<(i64, &CertificateDer<'static>)>> {
        let expires = |certificate: &CertificateDer<'_>| {
            let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
            Some(parsed.validity().not_after.timestamp())
        };
        self.certificates.iter().map(|certificate| Some((expires(certificate)?, certificate))).collect()
    }

    /// Whether an authority vouches for `leaf` by way of `intermediates`; or the leaf is itself in the bundle, as
    /// certificates that sign themselves are.
    ///
    /// # Errors
    /// Why not.
    pub fn vouch(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        if self.certificates.iter().any(|certificate| certificate == leaf) {
            return Ok(());
        }
        let now = within_validity(leaf, intermediates, now);
        let algorithms = self.provider.signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(leaf)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)
    }
}

/// The PEM texts one after the other, without those that add no certificate. Texts in which there is none are left out.
pub fn bundle<'a>(texts: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut bundle: Option<(String, Authorities)> = None;
    for text in texts {
        let Ok(authorities) = Authorities::from_pem(text.as_bytes()) else { continue };
        let (joined, had) = match bundle.take() {
            None => (text.to_owned(), authorities),
            Some((text, had)) if had.contain(&authorities) => (text, had),
            Some((_, had)) if authorities.contain(&had) => (text.to_owned(), authorities),
            Some((first, had)) => {
                let joined = format!("{}\n{text}", first.trim_end());
                match Authorities::from_pem(joined.as_bytes()) {
                    Ok(both) => (joined, both),
                    Err(_) => (first, had),
                }
            }
        };
        bundle = Some((joined, had));
    }
    bundle.map(|(text, _)| text)
}

/// `now`, or the last instant at which all of the chain was valid, if that is past.
fn within_validity(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
) -> UnixTime {
    let ends = std::iter::once(leaf).chain(intermediates).filter_map(|certificate| {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        u64::try_from(certificate.validity().not_after.timestamp()).ok()
    });
    let end = ends.min().unwrap_or(u64::MAX);
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(now.as_secs().min(end)))
}

impl ServerCertVerifier for Authorities {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.vouch(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, SerialNumber, date_time_ymd};

    use super::super::tests::authority_params;
    use super::*;

    /// A certificate of an authority with this serial number, valid until this year.
    fn pem(serial: &[u8], until: i32) -> String {
        let mut params = authority_params(&hex::encode(serial));
        params.serial_number = Some(SerialNumber::from_slice(serial));
        params.not_after = date_time_ymd(until, 1, 1);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    fn of(parts: &[&String]) -> Authorities {
        let text: Vec<&str> = parts.iter().map(|part| part.as_str()).collect();
        Authorities::from_pem(text.concat().as_bytes()).unwrap()
    }

    #[test]
    fn the_first_to_expire_is_written_as_the_engine_writes_it() {
        let (soon, late, twin) = (pem(&[0x0a, 0x01], 2030), pem(&[0x7f], 2040), pem(&[0x33], 2030));
        assert_eq!(of(&[&soon]).first_to_expire().as_deref(), Some("0A01"));
        assert_eq!(of(&[&late, &soon]).first_to_expire().as_deref(), Some("0A01"));
        assert_eq!(of(&[&late, &twin, &soon]).first_to_expire().as_deref(), Some("33"), "the first of two");
    }

    #[test]
    fn one_certificate_that_nothing_outlives_is_shown_and_no_other_choice() {
        let (soon, late, twin) = (pem(&[1], 2030), pem(&[2], 2040), pem(&[3], 2040));
        let (soon_alone, late_alone, both) = (of(&[&soon]), of(&[&late]), of(&[&soon, &late]));
        assert!(late_alone.shown_by_first_to_expire(&both), "the removal of the older one");
        assert!(!both.shown_by_first_to_expire(&both), "an addition looks as before");
        assert!(!soon_alone.shown_by_first_to_expire(&both), "so does the removal of the younger one");
        assert!(!late_alone.shown_by_first_to_expire(&of(&[&late, &twin])), "they expire at once");
    }

    #[test]
    fn a_bundle_holds_each_certificate_of_its_parts() {
        let (a, b) = (pem(&[1], 2030), pem(&[2], 2030));
        let both = bundle([a.trim_end(), "", "rubbish", &b, &a]).unwrap();
        assert_eq!(both.matches("BEGIN CERTIFICATE").count(), 2);
        assert!(of(&[&both]).contain(&of(&[&a, &b])));
        assert_eq!(bundle([a.as_str(), &both]), Some(both.clone()), "one that has all stands for all");
        assert_eq!(bundle(["", "rubbish"]), None);
    }
}
