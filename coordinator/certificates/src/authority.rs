//! The authority that certifies agents' keys.
//!
//! ```text
//! DATA/agent-ca.key   its key (0600), made at the first start that needs it
//! DATA/agent-ca.pem   its certificate, made of the key at every start
//! ```
//!
//! It certifies clients only: no agent's certificate can stand for a server.

use planforge_types::{
    durable,
    private_file::{Exposed, refuse_exposed},
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use tokio_rustls::rustls::{
    crypto::ring,
    pki_types::{CertificateDer, alg_id},
};

/// How long a certificate of an agent holds.
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Clocks of other hosts may be behind by as much.
const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);
/// How long the authority's own certificate holds; it is made anew at every start.
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
const KEY_FILE: &str = "agent-ca.key";
const CERTIFICATE_FILE: &str = "agent-ca.pem";
/// A point of P-256, uncompressed.
const POINT_BYTES: usize = 65;

/// Why there is no authority, or a key is not certified.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Exposed(#[from] Exposed),
    #[error("the key {} of the authority over agents cannot be used: {source}", path.display())]
    Key { path: PathBuf, source: rcgen::Error },
    #[error("cannot make a certificate: {0}")]
    Certify(#[from] rcgen::Error),
    #[error("the key to be certified is no P-256 key that has signed the request")]
    Unproven,
}

/// Certifies agents' keys.
#[derive(Debug)]
pub struct Authority {
    params: CertificateParams,
    key: KeyPair,
    certificate: CertificateDer<'static>,
    life: Duration,
}

/// A fresh certificate.
#[derive(Clone, Debug)]
pub struct Issued {
    pub pem: String,
    pub expires_ms: u64,
    /// When its holder does well to ask for the next one.
    pub renew_in: Duration,
}

impl Authority {
    /// The authority of a data folder, made where there is none.
    pub fn open(data_dir: &Path, life: Duration, allow_readable_key: bool) -> Result<Self, AuthorityError> {
        let path = data_dir.join(KEY_FILE);
        let failed = |action| {
            let path = path.clone();
            move |source| AuthorityError::Io { action, path, source }
        };
        if !path.try_exists().map_err(failed("look at"))? {
            let fresh = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
            durable::write_private(&path, fresh.serialize_pem().as_bytes()).map_err(failed("write"))?;
        }
        if !allow_readable_key {
            refuse_exposed(&path)?;
        }
        let pem = fs::read_to_string(&path).map_err(failed("read"))?;
        let key = KeyPair::from_pem(&pem).map_err(|source| AuthorityError::Key { path: path.clone(), source })?;
        let mut params = of_now(AUTHORITY_LIFE);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, "planforge agents");
        let certificate = params.self_signed(&key)?;
        let file = data_dir.join(CERTIFICATE_FILE);
        durable::write(&file, certificate.pem().as_bytes()).map_err(|source| AuthorityError::Io {
            action: "write",
            path: file,
            source,
        })?;
        Ok(Self { params, key, certificate: certificate.der().clone(), life })
    }

    /// What vouches for the certificates that it makes.
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    /// Certifies a key for an agent.
    pub fn certify(&self, key: &PublicKey, agent: &str) -> Result<Issued, AuthorityError> {
        let mut params = of_now(self.life);
        params.distinguished_name.push(DnType::CommonName, agent);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let expires = params.not_after.unix_timestamp().max(0).cast_unsigned();
        let certificate = params.signed_by(key, &Issuer::from_params(&self.params, &self.key))?;
        Ok(Issued { pem: certificate.pem(), expires_ms: expires * 1_000, renew_in: self.life * 2 / 3 })
    }
}

fn of_now(life: Duration) -> CertificateParams {
    let now = SystemTime::now();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    (params.not_before, params.not_after) = ((now - CLOCK_SKEW).into(), (now + life).into());
    params
}

/// The public half of an agent's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey(Vec<u8>);

impl PublicKey {
    /// A key that has signed `words`.
    pub fn proven(point: &[u8], signature: &[u8], words: &[u8]) -> Result<Self, AuthorityError> {
        let algorithms = ring::default_provider().signature_verification_algorithms.all;
        let ecdsa = algorithms.iter().find(|algorithm| {
            algorithm.public_key_alg_id() == alg_id::ECDSA_P256 && algorithm.signature_alg_id() == alg_id::ECDSA_SHA256
        });
        let proven = ecdsa.is_some_and(|ecdsa| ecdsa.verify_signature(point, words, signature).is_ok());
        if proven && point.len() == POINT_BYTES { Ok(Self(point.to_vec())) } else { Err(AuthorityError::Unproven) }
    }

    /// The key of a certificate that was shown; `None`: it is none that is certified here.
    pub fn of_info(public_key_info: &[u8]) -> Option<Self> {
        let at = public_key_info.len().checked_sub(POINT_BYTES)?;
        let key = Self(public_key_info[at..].to_vec());
        (key.subject_public_key_info() == public_key_info).then_some(key)
    }
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shown;
    use rcgen::SigningKey as _;

    fn proven(key: &KeyPair, words: &[u8]) -> Result<PublicKey, AuthorityError> {
        PublicKey::proven(key.public_key_raw(), &key.sign(words).unwrap(), words)
    }

    #[test]
    fn only_a_key_that_signed_is_certified_and_the_authority_stays_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(folder.path(), CERTIFICATE_LIFE, false).unwrap();
        let key = KeyPair::generate().unwrap();
        let public = proven(&key, b"words").unwrap();
        let issued = authority.certify(&public, "agent1").unwrap();
        use tokio_rustls::rustls::pki_types::pem::PemObject as _;
        let certificate = CertificateDer::from_pem_slice(issued.pem.as_bytes()).unwrap();
        let shown = Shown::read(&certificate).unwrap();
        assert_eq!(shown.public_key_info, key.subject_public_key_info());
        assert_eq!(shown.expires_ms, issued.expires_ms);
        assert_eq!(PublicKey::of_info(&shown.public_key_info), Some(public));

        let signature = key.sign(b"words").unwrap();
        let other = KeyPair::generate().unwrap();
        for (key, signature, words) in [
            (other.public_key_raw(), &signature[..], &b"words"[..]),
            (key.public_key_raw(), &signature, b"other words"),
            (key.public_key_raw(), b"", b"words"),
            (key.public_key_raw(), b"?", b"words"),
            (b"", &signature, b"words"),
        ] {
            assert!(PublicKey::proven(key, signature, words).is_err());
        }

        let again = Authority::open(folder.path(), CERTIFICATE_LIFE, false).unwrap();
        assert_eq!(again.key.serialized_der(), authority.key.serialized_der());
        use std::os::unix::fs::PermissionsExt as _;
        let path = folder.path().join(KEY_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Authority::open(folder.path(), CERTIFICATE_LIFE, false), Err(AuthorityError::Exposed(_))));
        assert!(Authority::open(folder.path(), CERTIFICATE_LIFE, true).is_ok());
    }
}
