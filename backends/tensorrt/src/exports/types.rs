//! Element types and memory formats as engines describe them, by one set of names.

/// The element type a description names, as build specs write it: `fp32`, `fp16`, `int8`, ...
pub fn element_of(description: &str) -> Option<&'static str> {
    let words = description.split(|c: char| !c.is_ascii_alphanumeric());
    words.into_iter().find_map(|word| {
        Some(match word.to_ascii_lowercase().as_str() {
            "float" | "fp32" | "float32" | "kfloat" => "fp32",
            "half" | "fp16" | "float16" | "khalf" => "fp16",
            "bf16" | "bfloat16" | "kbf16" => "bf16",
            "fp8" | "float8" | "fp8e4m3" | "kfp8" => "fp8",
            "fp4" | "float4" | "fp4e2m1" | "kfp4" => "fp4",
            "e8m0" | "ke8m0" => "e8m0",
            "int8" | "kint8" => "int8",
            "uint8" | "kuint8" => "uint8",
            "int4" | "kint4" => "int4",
            "int32" | "kint32" => "int32",
            "int64" | "kint64" => "int64",
            "bool" | "kbool" => "bool",
            _ => return None,
        })
    })
}

/// Bits of one element of a type that [`element_of`] names.
pub fn element_bits(element: &str) -> Option<u64> {
    Some(match element {
        "int64" => 64,
        "fp32" | "tf32" | "int32" => 32,
        "fp16" | "bf16" => 16,
        "fp8" | "int8" | "uint8" | "bool" | "e8m0" => 8,
        "fp4" | "int4" => 4,
        _ => return None,
    })
}

/// A short name of the memory format a description names; empty where it names a type alone.
pub(super) fn format_of(description: &str) -> String {
    let lower = description.to_ascii_lowercase();
    // "Thirty-two wide" ends in "two wide".
    let wide = [("thirty-two wide", "CHW32"), ("sixteen wide", "CHW16"), ("four wide", "CHW4"), ("two wide", "CHW2")];
    if let Some((_, format)) = wide.iter().find(|(words, _)| lower.contains(words)) {
        return (*format).to_owned();
    }
    if lower.contains("row major linear") {
        return "linear".to_owned();
    }
    if lower.contains("channel major") {
        let multiple = lower.split_once('%').map(|(_, rest)| rest.trim_start());
        let multiple = multiple.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()).unwrap_or("");
        return format!("NHWC{multiple}");
    }
    // A type alone, or a format in words of its own.
    let is_type_alone = element_of(description).is_some() && !description.trim().contains(' ');
    if is_type_alone { String::new() } else { description.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_of_all_generations() {
        for (description, element, format) in [
            ("Float", "fp32", ""),
            ("Half", "fp16", ""),
            ("BFloat16", "bf16", ""),
            ("Row major linear FP32", "fp32", "linear"),
            ("Row major linear FP16 format", "fp16", "linear"),
            ("Channel major FP16 format where channel % 8 == 0", "fp16", "NHWC8"),
            ("Channel major INT8 format", "int8", "NHWC"),
            ("Thirty-two wide channel vectorized row major Int8 format", "int8", "CHW32"),
            ("Four wide channel vectorized row major Int8 format", "int8", "CHW4"),
            ("Int64", "int64", ""),
        ] {
            assert_eq!(element_of(description), Some(element), "{description}");
            assert_eq!(format_of(description), format, "{description}");
            assert!(element_bits(element).is_some());
        }
        assert_eq!(element_of("N/A due to dynamic shapes"), None);
        assert_eq!(element_bits("thing"), None);
    }
}
