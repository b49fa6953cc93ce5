//! Values of options, read into types; the error says what is wrong.

use super::StreamingBudget;
use std::ops::RangeInclusive;

/// Longest decimal number that is passed on.
const MAX_DECIMAL_CHARS: usize = 12;

pub(super) fn flag(text: &str) -> Result<bool, String> {
    match text {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(format!("'{}' is neither true nor false", short(text))),
    }
}

pub(super) fn number(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse::<u64>().ok().filter(|n| digits && range.contains(n));
    number.ok_or_else(|| format!("'{}' is no whole number from {} to {}", short(text), range.start(), range.end()))
}

/// A plain decimal from 0 to `most`, as it was written.
pub(super) fn decimal(text: &str, most: f64) -> Result<String, String> {
    let plain = !text.is_empty()
        && text.len() <= MAX_DECIMAL_CHARS
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let fits = plain && text.parse::<f64>().is_ok_and(|number| (0.0..=most).contains(&number));
    if fits { Ok(text.to_owned()) } else { Err(format!("'{}' is no number from 0 to {most}", short(text))) }
}

pub(super) fn choice<'a>(text: &'a str, words: &[&'a str]) -> Result<&'a str, String> {
    let found = words.iter().find(|word| **word == text);
    found.copied().ok_or_else(|| format!("'{}' is none of {}", short(text), words.join(", ")))
}

pub(super) fn budget(text: &str) -> Result<StreamingBudget, String> {
    if text == "auto" {
        return Ok(StreamingBudget::Automatic);
    }
    match text.strip_suffix('%') {
        // 100 % would be no streaming, which the tool asserts against.
        Some(percent) => number(percent, 0..=99).map(StreamingBudget::Percent),
        // 0 bytes mean "off" to 10.0 and "as little as possible" to newer versions.
        None => number(text, 1..=MAX_BUDGET_BYTES).map(StreamingBudget::Bytes),
    }
}

/// The tool reads the budget as a double: exact up to here.
const MAX_BUDGET_BYTES: u64 = 1 << 53;

/// Lists: what stands between commas.
pub(super) mod lists {
    use super::{super::IoFormat, super::LayerType, super::Switch, short};
    use planforge_types::{DimRange, OptimizationProfile};

    /// Longest list that is passed on.
    const MAX_ITEMS: usize = 512;

    fn items(text: &str) -> Result<Vec<&str>, String> {
        let items: Vec<&str> = text.split(',').collect();
        if items.len() > MAX_ITEMS {
            return Err(format!("it lists {} items, at most {MAX_ITEMS} are possible", items.len()));
        }
        Ok(items)
    }

    fn word(text: &str) -> Result<&str, String> {
        let good = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if good { Ok(text) } else { Err(format!("'{}' is no word of letters, digits and _", short(text))) }
    }

    /// `+name,-name`
    pub(crate) fn switches(text: &str) -> Result<Vec<Switch>, String> {
        let mut switches: Vec<Switch> = Vec::new();
        for item in items(text)? {
            let (on, name) = match (item.strip_prefix('+'), item.strip_prefix('-')) {
                (Some(name), _) => (true, name),
                (_, Some(name)) => (false, name),
                _ => return Err(format!("'{}' begins with neither + nor -", short(item))),
            };
            let name = word(name)?.to_owned();
            if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
                return Err(format!("'{}' is no name", short(&name)));
            }
            if switches.iter().any(|other| other.name.eq_ignore_ascii_case(&name)) {
                return Err(format!("'{}' stands there twice", short(&name)));
            }
            switches.push(Switch { on, name });
        }
        Ok(switches)
    }

    /// `layer:type,*:type`, with `type+type` per output where `several`.
    pub(crate) fn layer_types(text: &str, several: bool) -> Result<Vec<LayerType>, String> {
        let mut layers: Vec<LayerType> = Vec::new();
        for item in items(text)? {
            let (layer, types) = item.rsplit_once(':').ok_or_else(|| format!("'{}' is not LAYER:TYPE", short(item)))?;
            if layer.is_empty() || layer.contains('\'') || layer.contains(char::is_control) {
                return Err(format!("'{}' is no layer name that the tool can take", short(layer)));
            }
            if layers.iter().any(|other| other.layer == layer) {
                return Err(format!("layer '{}' stands there twice", short(layer)));
            }
            let types = types.split('+').map(element).collect::<Result<Vec<_>, _>>()?;
            if types.len() > 1 && !several {
                return Err(format!("'{}' gives several types to one layer", short(item)));
            }
            layers.push(LayerType { layer: layer.to_owned(), types });
        }
        Ok(layers)
    }

    /// `type:layout+layout` or only `layout+layout` per input or output.
    pub(crate) fn io_formats(text: &str) -> Result<Vec<IoFormat>, String> {
        let format = |item: &str| {
            let (element_text, layouts) = match item.split_once(':') {
                Some((element_text, layouts)) => (Some(element(element_text)?), layouts),
                None => (None, item),
            };
            let layouts = layouts.split('+').map(|l| layout(l).map(str::to_owned)).collect::<Result<_, _>>()?;
            Ok(IoFormat { element: element_text, layouts })
        };
        items(text)?.into_iter().map(format).collect()
    }

    /// `name:1x3x224`, with `MIN..MAX` or `MIN..OPT..MAX` for a dimension that varies.
    pub(crate) fn shapes(text: &str) -> Result<OptimizationProfile, String> {
        let mut profile = OptimizationProfile::default();
        for item in items(text)? {
            let (name, dims) = item.rsplit_once(':').ok_or_else(|| format!("'{}' is not NAME:SHAPE", short(item)))?;
            if name.is_empty() || name.contains(['\'', '*']) || name.contains(char::is_control) {
                return Err(format!("'{}' is no tensor name that the tool can take", short(name)));
            }
            let dims = dims.split('x').map(dim).collect::<Result<Vec<_>, _>>()?;
            if profile.inputs.insert(name.to_owned(), dims).is_some() {
                return Err(format!("input '{}' stands there twice", short(name)));
            }
        }
        Ok(profile)
    }

    fn dim(text: &str) -> Result<DimRange, String> {
        let wrong = || format!("'{}' is no dimension: write N, MIN..MAX or MIN..OPT..MAX", short(text));
        let size = |digits: &str| super::number(digits, 1..=i32::MAX as u64).map_err(|_| wrong());
        let sizes = text.split("..").map(size).collect::<Result<Vec<u64>, _>>()?;
        let (min, opt, max) = match sizes[..] {
            [size] => (size, size, size),
            [min, max] => (min, max, max),
            [min, opt, max] => (min, opt, max),
            _ => return Err(wrong()),
        };
        if min > opt || opt > max {
            return Err(format!("'{}' does not go from small to large", short(text)));
        }
        Ok(DimRange { min, opt, max })
    }

    /// `layer:GPU,other:GPU`
    pub(crate) fn devices(text: &str) -> Result<Vec<String>, String> {
        let mut layers: Vec<String> = Vec::new();
        for item in items(text)? {
            let (layer, device) = item.rsplit_once(':').ok_or_else(|| format!("'{}' is not LAYER:GPU", short(item)))?;
            if layer.is_empty() || layer.contains('\'') || layer.contains(char::is_control) {
                return Err(format!("'{}' is no layer name that the tool can take", short(layer)));
            }
            match device {
                "GPU" => {}
                "DLA" => return Err("this farm builds for whole GPUs, not for the DLA cores of embedded boards".into()),
                _ => return Err(format!("'{}' is no device: GPU is the one there is", short(device))),
            }
            if layers.iter().any(|other| other == layer) {
                return Err(format!("layer '{}' stands there twice", short(layer)));
            }
            layers.push(layer.to_owned());
        }
        Ok(layers)
    }

    /// Element types that some version takes.
    const ELEMENTS: [&str; 10] = ["fp32", "fp16", "bf16", "int8", "int32", "int64", "uint8", "bool", "fp8", "int4"];
    /// Memory layouts that some version takes.
    const LAYOUTS: [&str; 11] =
        ["chw", "chw2", "chw4", "hwc8", "chw16", "chw32", "dhwc8", "cdhw32", "hwc", "dhwc", "hwc16"];

    fn element(text: &str) -> Result<String, String> {
        match ELEMENTS.contains(&text) {
            true => Ok(text.to_owned()),
            false => Err(format!("'{}' is none of {}", short(text), ELEMENTS.join(", "))),
        }
    }

    fn layout(text: &str) -> Result<&str, String> {
        match LAYOUTS.contains(&text) {
            true => Ok(text),
            false if text.starts_with("dla_") => Err("DLA layouts are not for whole GPUs".into()),
            false => Err(format!("'{}' is none of {}", short(text), LAYOUTS.join(", "))),
        }
    }
}

/// As much of a text as belongs into a message.
fn short(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}
