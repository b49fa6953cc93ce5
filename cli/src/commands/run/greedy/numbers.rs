//! Whole numbers and scores in tensors.

use crate::failure::Failure;
use planforge_types::{ElementType, HostTensor, Port};

pub fn is_one_number(port: &Port) -> bool {
    matches!(port.element, ElementType::I32 | ElementType::I64) && port.shape.iter().all(|size| *size == Some(1))
}

/// One row of scores, of which the largest is the next token's.
pub fn is_scores(port: &Port) -> bool {
    let is_float = matches!(port.element, ElementType::F32 | ElementType::F16 | ElementType::Bf16 | ElementType::F64);
    let Some((last, rows)) = port.shape.split_last() else { return false };
    is_float && last.is_some_and(|size| size > 1) && rows.iter().all(|size| *size == Some(1))
}

pub fn zeros(port: &Port) -> Result<HostTensor, Failure> {
    let sizes: Option<Vec<usize>> = port.shape.iter().map(|size| usize::try_from((*size)?).ok()).collect();
    let shape = sizes.ok_or_else(|| {
        Failure::usage(format!("the file has no input '{}', whose shape the plan leaves open", port.name))
    })?;
    let bytes = vec![0; shape.iter().product::<usize>() * port.element.bytes()];
    Ok(HostTensor { element: port.element, shape, bytes })
}

pub fn number(port: &Port, value: i64) -> Result<HostTensor, Failure> {
    let HostTensor { element, shape, .. } = zeros(port)?;
    Ok(of_number(element, &shape, value))
}

/// One whole number of this type.
pub fn of_number(element: ElementType, shape: &[usize], value: i64) -> HostTensor {
    let bytes = match element {
        ElementType::I32 => (value as i32).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    };
    HostTensor { element, shape: shape.to_vec(), bytes }
}

pub fn whole_numbers(tensor: &HostTensor) -> Option<Vec<i64>> {
    match tensor.element {
        ElementType::I64 => {
            Some(tensor.bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
        }
        ElementType::I32 => {
            Some(tensor.bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect())
        }
        _ => None,
    }
}

/// The token that a tensor says is next: its number, or the place of its largest score, the first of equals.
pub fn token(tensor: &HostTensor) -> Option<i64> {
    if let Some(numbers) = whole_numbers(tensor) {
        return numbers.first().copied();
    }
    let mut best: Option<(usize, f64)> = None;
    for (place, score) in scores(tensor)?.into_iter().enumerate() {
        if !score.is_nan() && best.is_none_or(|(_, largest)| score > largest) {
            best = Some((place, score));
        }
    }
    i64::try_from(best?.0).ok()
}

pub fn scores(tensor: &HostTensor) -> Option<Vec<f64>> {
    let halves = || tensor.bytes.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
    Some(match tensor.element {
        ElementType::F32 => {
            tensor.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect()
        }
        ElementType::F64 => tensor.bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
        ElementType::Bf16 => halves().map(|bits| f32::from_bits(u32::from(bits) << 16).into()).collect(),
        ElementType::F16 => halves().map(of_half).collect(),
        _ => return None,
    })
}

fn of_half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff) / 1024.0);
    let size = match exponent {
        0 => fraction * (-14f64).exp2(),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        _ => (1.0 + fraction) * f64::from(exponent - 15).exp2(),
    };
    if bits >> 15 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_score_is_the_token_in_every_type() {
        let scores = [-3.5, 0.25, 6.0, 6.0, -0.125];
        for element in [ElementType::F32, ElementType::F16, ElementType::Bf16, ElementType::F64] {
            let tensor = HostTensor::of_values(element, vec![1, 1, 5], &scores);
            assert_eq!(super::scores(&tensor).as_deref(), Some(&scores[..]), "{element}");
            assert_eq!(token(&tensor), Some(2), "{element}");
        }
        let subnormal = HostTensor::of_values(ElementType::F16, vec![2], &[5.960_464_477_539_063e-8, f64::INFINITY]);
        assert_eq!(super::scores(&subnormal), Some(vec![5.960_464_477_539_063e-8, f64::INFINITY]));
        assert_eq!(token(&HostTensor::of_values(ElementType::I32, vec![1, 1], &[7.0])), Some(7));
        assert_eq!(token(&HostTensor::of_values(ElementType::U8, vec![1], &[7.0])), None);
    }
}
