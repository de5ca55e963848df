//! A throw-away certificate authority.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SerialNumber, date_time_ymd,
};

/// An authority that signs node certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key, PEM.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// What a certificate says.
#[derive(Debug, Clone)]
pub struct Request {
    hosts: Vec<String>,
    serial: Option<u64>,
    client_auth: bool,
    /// First and last year: from its first day to the first day of the last.
    years: Option<(i32, i32)>,
    /// How long from now.
    life: Option<Duration>,
}

impl Request {
    /// A certificate for `hosts` that serves and connects.
    pub fn new<T: Into<String>>(hosts: impl IntoIterator<Item = T>) -> Self {
        let hosts = hosts.into_iter().map(Into::into).collect();
        Self { hosts, serial: None, client_auth: true, years: None, life: None }
    }

    /// With this serial number.
    #[must_use]
    pub fn serial(mut self, serial: u64) -> Self {
        self.serial = Some(serial);
        self
    }

    /// That may only serve.
    #[must_use]
    pub fn server_only(mut self) -> Self {
        self.client_auth = false;
        self
    }

    /// Valid from the first day of `begin` to the first day of `end`.
    #[must_use]
    pub fn years(mut self, begin: i32, end: i32) -> Self {
        self.years = Some((begin, end));
        self
    }
}

impl Request {
    /// Valid from now for this time.
    #[must_use]
    pub fn seconds(mut self, life: Duration) -> Self {
        self.life = Some(life);
        self
    }
}

impl Authority {
    /// A new authority with a key of its own.
    pub fn new(name: &str) -> Result<Self> {
        Ok(Self(CertifiedIssuer::self_signed(Self::params(name), KeyPair::generate()?)?))
    }

    /// One that is valid until the first day of this year.
    pub fn until(name: &str, year: i32) -> Result<Self> {
        let mut params = Self::params(name);
        params.not_after = date_time_ymd(year, 1, 1);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    /// Its certificate, PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for `hosts` that serves and connects, with this serial number.
    pub fn issue(&self, hosts: &[&str], serial: u64) -> Result<Issued> {
        self.sign(&Request::new(hosts.iter().copied()).serial(serial))
    }

    /// Signs what is asked for, with a new key.
    pub fn sign(&self, request: &Request) -> Result<Issued> {
        let mut params = CertificateParams::new(request.hosts.clone())?;
        params.serial_number = request.serial.map(SerialNumber::from);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        if request.client_auth {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        if let Some((begin, end)) = request.years {
            (params.not_before, params.not_after) = (date_time_ymd(begin, 1, 1), date_time_ymd(end, 1, 1));
        }
        if let Some(life) = request.life {
            params.not_after =
                date_time_ymd(1970, 1, 1) + SystemTime::now().duration_since(UNIX_EPOCH)? + life;
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}
