//! TensorRT's calibration cache as text, for versions up to 10.16: later ones have no calibration.
//!
//! ```text
//! TRT-100500-EntropyCalibration2
//! image: 3c010204
//! ```
//!
//! The first line carries the version that is to read it and the calibrator; a line for each tensor carries its scale
//! (greatest magnitude kept over 127) as the bits of a single-precision number, the highest byte first.

use crate::error::PrecisionError;
use std::collections::BTreeMap;

/// The newest version that reads one.
const NEWEST: [u32; 2] = [10, 16];
/// What trtexec calibrates with, and so what it reads.
const CALIBRATOR: &str = "EntropyCalibration2";

/// The cache for one TensorRT version, such as `10.3.0`.
///
/// # Errors
///
/// When the version is none, or has no calibration, or a scale is no positive number.
pub fn text(version: &str, scales: &BTreeMap<String, f32>) -> Result<String, PrecisionError> {
    let number = version_number(version)?;
    let mut text = format!("TRT-{number}-{CALIBRATOR}\n");
    for (name, scale) in scales {
        if !scale.is_normal() || *scale < 0.0 {
            return Err(PrecisionError::Scale { name: name.clone(), scale: *scale });
        }
        // A name ends at the last colon, so that it may hold some.
        if name.contains('\n') {
            return Err(PrecisionError::Options(format!(
                "tensor '{}' has a name of several lines, which no cache can hold",
                name.escape_default()
            )));
        }
        text += &format!("{name}: {:08x}\n", scale.to_bits());
    }
    Ok(text)
}

/// `8601` for 8.6.1, `100500` for 10.5.0: as the library's own headers count.
fn version_number(version: &str) -> Result<u32, PrecisionError> {
    let parts: Option<Vec<u32>> =
        version.split('.').take(3).map(|part| part.parse().ok().filter(|part| *part < 100)).collect();
    let Some([major, minor, rest @ ..]) = parts.as_deref() else {
        return Err(PrecisionError::Options(format!("'{version}' is no TensorRT version, such as 8.6.1 or 10.3.0")));
    };
    let patch = rest.first().copied().unwrap_or(0);
    if [*major, *minor] > NEWEST {
        let [newest, minor] = NEWEST;
        return Err(PrecisionError::Options(format!(
            "TensorRT {version} reads no calibration cache, the last that does is {newest}.{minor}: give it the prepared model"
        )));
    }
    let (thousands, hundreds) = if *major >= 10 { (10_000, 100) } else { (1000, 100) };
    Ok(major * thousands + minor * hundreds + patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_counted_as_the_library_does() {
        assert_eq!(version_number("8.6.1").unwrap(), 8601);
        assert_eq!(version_number("10.16.0.72").unwrap(), 101_600);
        assert_eq!(version_number("10.3").unwrap(), 100_300);
        let gone = version_number("11.0.0").unwrap_err().to_string();
        assert!(gone.contains("the last that does is 10.16"), "{gone}");
        assert!(version_number("10.17.0").is_err() && version_number("ten").is_err() && version_number("").is_err());
    }

    #[test]
    fn scales_are_written_highest_byte_first() {
        // 1/127 lies so in every cache of an input between −1 and 1.
        let scales = BTreeMap::from([("image".to_owned(), 1.0_f32 / 127.0), ("b:0".to_owned(), 0.5)]);
        assert_eq!(
            text("10.5.0", &scales).unwrap(),
            "TRT-100500-EntropyCalibration2\nb:0: 3f000000\nimage: 3c010204\n"
        );
    }

    #[test]
    fn a_scale_of_nothing_is_refused_by_name() {
        for scale in [0.0, f32::NAN, -1.0, f32::INFINITY] {
            let error = text("8.6.1", &BTreeMap::from([("dead".to_owned(), scale)])).unwrap_err();
            assert!(error.to_string().contains("the scale of 'dead'"), "{error}");
        }
    }
}
