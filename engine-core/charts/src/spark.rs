//! One line of a terminal: eight heights of a block.

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Values beside each other, from nothing to the largest; what is not above 0 is a space.
pub fn sparkline(values: &[f64]) -> String {
    let largest = values.iter().copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
    let block = |value: &f64| match *value {
        value if value.is_finite() && value > 0.0 && largest > 0.0 => {
            BLOCKS[((value / largest * 8.0).ceil() as usize).clamp(1, 8) - 1]
        }
        _ => ' ',
    };
    values.iter().map(block).collect()
}

/// How samples are spread between two values, in `width` parts of equal size; what is beyond counts to the last.
pub fn histogram(samples: &[f64], (low, high): (f64, f64), width: usize) -> String {
    let mut counts = vec![0.0; width.max(1)];
    for sample in samples.iter().filter(|sample| sample.is_finite()) {
        let share = if high > low { (sample - low) / (high - low) } else { 0.0 };
        let part = (share.max(0.0) * counts.len() as f64) as usize;
        let last = counts.len() - 1;
        counts[part.min(last)] += 1.0;
    }
    sparkline(&counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_follow_the_values() {
        assert_eq!(sparkline(&[0.0, 1.0, 4.0, 8.0]), " ▁▄█");
        assert_eq!(sparkline(&[f64::NAN, -1.0]), "  ");
        assert_eq!(histogram(&[1.0, 1.1, 2.0, 9.0], (1.0, 3.0), 4), "█ ▄▄");
        assert_eq!(histogram(&[], (0.0, 0.0), 3), "   ");
        assert_eq!(histogram(&[5.0], (5.0, 5.0), 0), "█");
    }
}
