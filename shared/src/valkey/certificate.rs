//! The leaf of a PEM certificate chain, to compare with what a node serves. Validates nothing.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};

/// The text holds no certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tls.crt holds no certificate in PEM form")]
pub struct NoCertificate;

/// The first certificate of a PEM text, DER: the one that a server presents for itself.
pub fn leaf(pem: &str) -> Result<Vec<u8>, NoCertificate> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map(|leaf| leaf.to_vec()).map_err(|_| NoCertificate)
}

/// SHA-256 of a DER certificate, lower-case hexadecimal.
pub fn fingerprint(der: &[u8]) -> String {
    hex::encode(Sha256::digest(der))
}
