//! Raw samples, kept inline: whole nanoseconds, compressed, decodable in one line of any language.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use flate2::{Compression, read::ZlibDecoder, write::ZlibEncoder};
use serde::{Deserialize, Serialize};
use std::io::{Read as _, Write as _};

/// The only encoding so far: little-endian unsigned 64-bit nanoseconds, zlib, base64.
pub const ENCODING: &str = "u64le-ns+zlib+base64";

/// Most samples a report keeps, so that a report stays under 100 KiB.
pub const MAX_SAMPLES: usize = 10_000;

const NS_PER_MS: f64 = 1e6;

/// Compressed samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// [`ENCODING`].
    pub encoding: String,
    pub count: u64,
    pub data: String,
}

/// Samples that cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum SamplesError {
    #[error("samples are encoded as '{0}', which this version does not know (it knows {ENCODING})")]
    Encoding(String),
    #[error("{0} samples are more than the {MAX_SAMPLES} a report may keep")]
    TooMany(u64),
    #[error("samples are no base64")]
    Base64(#[from] base64::DecodeError),
    #[error("samples cannot be decompressed")]
    Zlib(#[from] std::io::Error),
    #[error("samples hold {found} bytes where {count} values need {}", count * 8)]
    Length { count: u64, found: u64 },
}

/// A latency as reports keep it: rounded to whole nanoseconds.
pub fn whole_ns_ms(latency_ms: f64) -> f64 {
    (latency_ms * NS_PER_MS).round() / NS_PER_MS
}

impl Samples {
    /// Compresses latencies in milliseconds, rounded to whole nanoseconds; those past [`MAX_SAMPLES`] are dropped.
    pub fn encode(latencies_ms: &[f64]) -> Self {
        let kept = &latencies_ms[..latencies_ms.len().min(MAX_SAMPLES)];
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        let packed: Vec<u8> = kept.iter().flat_map(|ms| ((ms * NS_PER_MS).round() as u64).to_le_bytes()).collect();
        encoder.write_all(&packed).expect("a Vec takes every write");
        let compressed = encoder.finish().expect("a Vec takes every write");
        Self { encoding: ENCODING.into(), count: kept.len() as u64, data: STANDARD.encode(compressed) }
    }

    /// The latencies in milliseconds, in the order measured.
    pub fn decode(&self) -> Result<Vec<f64>, SamplesError> {
        if self.encoding != ENCODING {
            return Err(SamplesError::Encoding(self.encoding.chars().take(80).collect()));
        }
        if self.count > MAX_SAMPLES as u64 {
            return Err(SamplesError::TooMany(self.count));
        }
        let compressed = STANDARD.decode(&self.data)?;
        let mut packed = Vec::new();
        // One byte past the expected length is enough to notice a bomb.
        ZlibDecoder::new(&compressed[..]).take(self.count * 8 + 1).read_to_end(&mut packed)?;
        if packed.len() as u64 != self.count * 8 {
            return Err(SamplesError::Length { count: self.count, found: packed.len() as u64 });
        }
        let (values, _) = packed.as_chunks::<8>();
        Ok(values.iter().map(|bytes| u64::from_le_bytes(*bytes) as f64 / NS_PER_MS).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn samples_come_back_to_the_nanosecond(latencies in proptest::collection::vec(0.0..1e7f64, 0..500)) {
            let samples = Samples::encode(&latencies);
            let expected: Vec<f64> = latencies.iter().map(|ms| whole_ns_ms(*ms)).collect();
            prop_assert_eq!(samples.decode().unwrap(), expected);
        }
    }

    #[test]
    fn damaged_samples_are_refused() {
        let good = Samples::encode(&[1.0, 2.0, 3.0]);
        let wrong_count = Samples { count: 2, ..good.clone() };
        assert!(matches!(wrong_count.decode(), Err(SamplesError::Length { count: 2, found: 17 })));
        let too_many = Samples { count: u64::MAX, ..good.clone() };
        assert!(matches!(too_many.decode(), Err(SamplesError::TooMany(_))));
        let other = Samples { encoding: "csv".into(), ..good.clone() };
        assert!(matches!(other.decode(), Err(SamplesError::Encoding(_))));
        assert!(Samples { data: "!".into(), ..good.clone() }.decode().is_err());
        assert!(Samples { data: STANDARD.encode(b"no zlib"), ..good }.decode().is_err());
    }
}
