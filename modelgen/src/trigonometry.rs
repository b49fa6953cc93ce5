//! Cosines and sines by nothing but additions, products, divisions and roots, so that their bits are the same on every
//! machine.

/// Of the angles `place / base^(i / pairs)` for every place and pair: cosines, then sines, a row for each place.
pub fn turns(base: f64, places: usize, pairs: usize) -> [Vec<f32>; 2] {
    assert!(pairs.is_power_of_two(), "powers of the base are made of square roots");
    let mut step = base;
    for _ in 0..pairs.trailing_zeros() {
        step = step.sqrt();
    }
    let mut frequencies = vec![1.0_f64];
    while frequencies.len() < pairs {
        frequencies.push(frequencies[frequencies.len() - 1] / step);
    }
    let angles = || (0..places).flat_map(|place| frequencies.iter().map(move |frequency| place as f64 * frequency));
    [angles().map(|angle| cosine_and_sine(angle).0).collect(), angles().map(|angle| cosine_and_sine(angle).1).collect()]
}

/// By their series, of what is left of the angle after whole turns.
fn cosine_and_sine(angle: f64) -> (f32, f32) {
    let turn = std::f64::consts::TAU;
    let x = angle - (angle / turn).round() * turn;
    let (mut cosine, mut sine) = (0.0, 0.0);
    let mut term = 1.0;
    // At most pi: terms are far below the last bit behind these.
    for power in 0..30_u32 {
        match power % 4 {
            0 => cosine += term,
            1 => sine += term,
            2 => cosine -= term,
            _ => sine -= term,
        }
        term *= x / f64::from(power + 1);
    }
    (cosine as f32, sine as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_are_those_of_the_library() {
        for step in 0..4000 {
            let angle = f64::from(step) * 0.77;
            let (cosine, sine) = cosine_and_sine(angle);
            assert!((f64::from(cosine) - angle.cos()).abs() < 1e-6, "cos {angle}");
            assert!((f64::from(sine) - angle.sin()).abs() < 1e-6, "sin {angle}");
        }
        let [cosines, sines] = turns(10_000.0, 3, 4);
        assert_eq!((cosines.len(), sines[0]), (12, 0.0));
        assert!((f64::from(sines[2 * 4 + 1]) - (2.0 / 10_000f64.powf(0.25)).sin()).abs() < 1e-6);
    }
}
