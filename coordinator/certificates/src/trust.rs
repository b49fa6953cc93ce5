//! Whose certificates are believed.

use std::path::Path;
use tokio_rustls::rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

/// The authorities in the PEM file `ca_file`; without one the system's, which may be none.
///
/// # Errors
/// When the file cannot be read, holds something else than certificates, or none.
pub fn authorities(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    let Some(path) = ca_file else {
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(store);
    };
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())? {
        let added = store.add(certificate.map_err(|error| error.to_string())?);
        added.map_err(|error| error.to_string())?;
    }
    if store.is_empty() { Err("it holds no certificate".into()) } else { Ok(store) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_certificate_names_no_authority() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        assert!(authorities(Some(&file)).is_err());
        std::fs::write(&file, "nothing of the kind").unwrap();
        assert_eq!(authorities(Some(&file)).unwrap_err(), "it holds no certificate");
        let own = rcgen::generate_simple_self_signed(["farm.example".to_owned()]).unwrap();
        std::fs::write(&file, own.cert.pem()).unwrap();
        assert_eq!(authorities(Some(&file)).unwrap().len(), 1);
    }
}
