//! Who may vouch for a node's certificate: the authorities of a cluster's `ca.crt`, and nobody else.
//!
//! Owns the one verification that the Secret's check and every connection share. An expired certificate still proves
//! whose it is: it is verified for the last instant at which it was valid, because a node that serves one must stay
//! within reach to be told of its renewal. That it has expired is told elsewhere.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{self, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};
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
