//! What a certificate says, read from its DER.
//!
//! Only certificates that TLS has verified come here, so that what does not read is a bug of ours and no attack; it is an
//! error all the same.

use super::key_hash;
use planforge_types::Digest;
use std::net::IpAddr;
use tokio_rustls::rustls::{
    client::verify_server_name,
    pki_types::{CertificateDer, ServerName},
    server::ParsedCertificate,
};

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const BOOLEAN: u8 = 0x01;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// In front of a certificate's extensions (RFC 5280, 4.1).
const EXTENSIONS: u8 = 0xa3;
/// The extension that holds a certificate's names, 2.5.29.17, and two kinds of them (RFC 5280, 4.2.1.6).
const SUBJECT_ALTERNATIVE_NAME: [u8; 3] = [0x55, 0x1d, 0x11];
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;

/// What counts of a certificate that was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Under what its key is known, where it was enrolled here.
    pub key: Digest,
    /// Of the key, in DER.
    pub public_key_info: Vec<u8>,
    /// Until when it holds, in milliseconds since 1970.
    pub expires_ms: u64,
}

impl Shown {
    /// Reads a certificate; `None`: it has not the form of one.
    pub fn read(certificate: &CertificateDer<'_>) -> Option<Self> {
        let mut certificate = Reader(Reader(certificate).content(SEQUENCE)?);
        let mut fields = Reader(certificate.content(SEQUENCE)?);
        // version, serial number, signature algorithm, issuer
        fields.skip_if(VERSION)?;
        fields.content(INTEGER)?;
        fields.content(SEQUENCE)?;
        fields.content(SEQUENCE)?;
        let mut validity = Reader(fields.content(SEQUENCE)?);
        validity.any()?;
        let (kind, not_after) = validity.any()?;
        // subject
        fields.content(SEQUENCE)?;
        let public_key_info = fields.whole(SEQUENCE)?;
        Some(Self {
            key: key_hash(public_key_info),
            public_key_info: public_key_info.to_vec(),
            expires_ms: time_ms(kind, not_after)?,
        })
    }
}

/// Whether a certificate is made out to that name, as one of its DNS names.
pub fn names(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let Ok(name) = ServerName::try_from(name) else { return false };
    ParsedCertificate::try_from(certificate).is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
}

/// The hosts that a certificate is made out to, DNS names and addresses, in its order; none where it has not the form of
/// a certificate. Names for a whole domain (`*.example`) are left out: they are no host.
pub fn hosts(certificate: &CertificateDer<'_>) -> Vec<String> {
    alternative_names(certificate).unwrap_or_default()
}

fn alternative_names(certificate: &CertificateDer<'_>) -> Option<Vec<String>> {
    let mut certificate = Reader(Reader(certificate).content(SEQUENCE)?);
    let mut fields = Reader(certificate.content(SEQUENCE)?);
    let extensions = loop {
        let (tag, content) = fields.any()?;
        if tag == EXTENSIONS {
            break Reader(content).content(SEQUENCE)?;
        }
    };
    let mut extensions = Reader(extensions);
    while let Some(extension) = extensions.content(SEQUENCE) {
        let mut extension = Reader(extension);
        let is_names = extension.content(OBJECT_IDENTIFIER)? == SUBJECT_ALTERNATIVE_NAME;
        extension.skip_if(BOOLEAN)?;
        if is_names {
            let mut names = Reader(Reader(extension.content(OCTET_STRING)?).content(SEQUENCE)?);
            let mut hosts = Vec::new();
            while let Some((kind, name)) = names.any() {
                hosts.extend(host(kind, name));
            }
            return Some(hosts);
        }
    }
    None
}

fn host(kind: u8, name: &[u8]) -> Option<String> {
    match kind {
        DNS_NAME => {
            let name = std::str::from_utf8(name).ok()?;
            ServerName::try_from(name).is_ok().then(|| name.to_owned())
        }
        IP_ADDRESS => {
            let v4 = <[u8; 4]>::try_from(name).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(name).map(IpAddr::from)).ok().map(|ip| ip.to_string())
        }
        _ => None,
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The next element: its tag, its content, and all of it.
    fn next(&mut self) -> Option<(u8, &'a [u8], &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        let whole = &self.0[..self.0.len() - rest.len()];
        self.0 = rest;
        Some((tag, content, whole))
    }

    fn any(&mut self) -> Option<(u8, &'a [u8])> {
        self.next().map(|(tag, content, _)| (tag, content))
    }

    fn content(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.any().filter(|(found, _)| *found == tag).map(|(_, content)| content)
    }

    fn whole(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _, _)| *found == tag).map(|(_, _, whole)| whole)
    }

    fn skip_if(&mut self, tag: u8) -> Option<()> {
        if self.0.first() == Some(&tag) { self.any().map(drop) } else { Some(()) }
    }
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ` in milliseconds since 1970.
fn time_ms(kind: u8, text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = match kind {
        UTC_TIME => {
            let year: u64 = text.get(..2)?.parse().ok()?;
            // As RFC 5280 says.
            (if year < 50 { 2000 + year } else { 1900 + year }, text.get(2..)?)
        }
        GENERALIZED_TIME => (text.get(..4)?.parse().ok()?, text.get(4..)?),
        _ => return None,
    };
    let part = |at: usize| rest.get(at..at + 2)?.parse::<u64>().ok();
    let (month, day, hour, minute, second) = (part(0)?, part(2)?, part(4)?, part(6)?, part(8)?);
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since 1970, counting years from March, so that the day of leap years is the last.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (months * 153 + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, PublicKeyData as _, date_time_ymd};

    #[test]
    fn key_end_and_names_of_a_certificate_are_read() {
        let key = KeyPair::generate().unwrap();
        for (year, ms) in [(2049, 2_493_072_000_000_u64), (2050, 2_524_608_000_000)] {
            let mut params = CertificateParams::new(vec!["rack-1.example".to_owned()]).unwrap();
            params.not_after = date_time_ymd(year, 1, 1);
            let certificate = params.self_signed(&key).unwrap();
            let shown = Shown::read(certificate.der()).unwrap();
            assert_eq!(shown.public_key_info, key.subject_public_key_info());
            assert_eq!(shown.key, key_hash(&key.subject_public_key_info()));
            assert_eq!(shown.expires_ms, ms);
            assert!(names(certificate.der(), "rack-1.example"));
            for other in ["rack-2.example", "example", "", "rack 1", "127.0.0.1"] {
                assert!(!names(certificate.der(), other), "{other}");
            }
            for length in 0..certificate.der().len() {
                Shown::read(&CertificateDer::from(certificate.der()[..length].to_vec()));
            }
        }
    }

    #[test]
    fn the_hosts_of_a_certificate_are_read() {
        let key = KeyPair::generate().unwrap();
        let made_out_to = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            CertificateParams::new(names).unwrap().self_signed(&key).unwrap()
        };
        let hosts_of = |names: &[&str]| hosts(made_out_to(names).der());
        assert_eq!(hosts_of(&["farm.example", "10.0.0.7", "::1"]), ["farm.example", "10.0.0.7", "::1"]);
        assert_eq!(hosts_of(&["*.example", "a.example"]), ["a.example"]);
        assert!(hosts_of(&[]).is_empty());
        let whole = made_out_to(&["farm.example"]);
        for length in 0..whole.der().len() {
            hosts(&CertificateDer::from(whole.der()[..length].to_vec()));
        }
    }

    #[test]
    fn times_are_read() {
        assert_eq!(time_ms(UTC_TIME, b"700101000000Z"), Some(0));
        assert_eq!(time_ms(UTC_TIME, b"000229123456Z"), Some(951_827_696_000));
        assert_eq!(time_ms(GENERALIZED_TIME, b"20240229000000Z"), Some(1_709_164_800_000));
        for nonsense in ["", "Z", "991301000000Z", "990100000000Z", "99010100000Z", "690101000000", "\u{e9}0101000000Z"]
        {
            assert_eq!(time_ms(UTC_TIME, nonsense.as_bytes()), None, "{nonsense}");
        }
    }
}
