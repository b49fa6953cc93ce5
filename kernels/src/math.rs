//! exp, erf, tanh and the activations made of them, in f32 arithmetic without branches, so that loops over them
//! vectorise at every level and every level gives the same bits.

/// Below this, exp is zero in f32 even with subnormals.
const EXP_LOW: f32 = -87.336_54;
/// Above this, exp overflows f32.
const EXP_HIGH: f32 = 88.722_83;
/// Adding and taking away 1.5 * 2^23 rounds to the nearest integer.
const ROUNDER: f32 = 12_582_912.0;

/// `e^x`, relative error under 2e-7 where the result is a normal number; 0 below, infinity above, NaN for NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let clamped = x.clamp(EXP_LOW, EXP_HIGH);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    // ln 2 in two parts, the first with few bits so that n * part is exact.
    let r = clamped - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5e-1;
    let e = p * r * r + r + 1.0;
    // The low bits of `shifted` are n; 2^n in two factors, because n may be 128. Wrapping, because a check for
    // overflow (there is none) would keep loops from vectorising in builds that check.
    let n_bits = (shifted.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
    let half = n_bits >> 1;
    let low = f32::from_bits((half.wrapping_add(127) << 23) as u32);
    let high = f32::from_bits((n_bits.wrapping_sub(half).wrapping_add(127) << 23) as u32);
    let value = e * low * high;
    let value = if x < EXP_LOW { 0.0 } else { value };
    let value = if x > EXP_HIGH { f32::INFINITY } else { value };
    if x.is_nan() { x } else { value }
}

/// `erfc(|x|)` by Abramowitz and Stegun 7.1.26; absolute error under 3e-7.
#[inline(always)]
fn erfc_of_magnitude(x: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * a);
    let mut p = 1.061_405_4;
    p = p * t - 1.453_152;
    p = p * t + 1.421_413_7;
    p = p * t - 0.284_496_74;
    p = p * t + 0.254_829_6;
    p * t * exp(-a * a)
}

/// The error function; absolute error under 5e-7.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let tail = 1.0 - erfc_of_magnitude(x);
    // Near zero 1 - erfc loses digits; the series does not.
    let square = x * x;
    let near = x
        * (std::f32::consts::FRAC_2_SQRT_PI - square * (0.376_126_4 - square * (0.112_837_92 - square * 0.026_866_17)));
    let magnitude = if x.abs() < 0.2 { near.abs() } else { tail };
    magnitude.copysign(x)
}

/// `x / (1 + e^-x)`'s second factor.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Hyperbolic tangent; absolute error under 3e-7.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let e = exp(-2.0 * x.abs());
    let far = (1.0 - e) / (1.0 + e);
    let square = x * x;
    let near = x.abs() * (1.0 - square * (0.333_333_34 - square * (0.133_333_33 - square * 0.053_968_254)));
    let magnitude = if x.abs() < 0.1 { near } else { far };
    magnitude.copysign(x)
}

/// `x * (1 + erf(x / sqrt 2)) / 2`; keeps its relative accuracy in the negative tail.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    let half_tail = 0.5 * erfc_of_magnitude(x * std::f32::consts::FRAC_1_SQRT_2);
    let share = if x < 0.0 { half_tail } else { 1.0 - half_tail };
    x * share
}

/// GELU with tanh in place of erf.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    0.5 * x * (1.0 + tanh(0.797_884_6 * (x + 0.044_715 * x * x * x)))
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// erf in f64 by its series and continued fraction, good to 1e-13: the oracle.
    fn erf_f64(x: f64) -> f64 {
        if x.abs() < 3.0 {
            let mut term = x;
            let mut sum = x;
            for n in 1..200 {
                term *= -x * x / n as f64;
                sum += term / (2 * n + 1) as f64;
            }
            sum * std::f64::consts::FRAC_2_SQRT_PI
        } else {
            let a = x.abs();
            let mut fraction = 0.0;
            for n in (1..200).rev() {
                fraction = n as f64 / 2.0 / (a + fraction);
            }
            (1.0 - (-a * a).exp() / ((a + fraction) * std::f64::consts::PI.sqrt())).copysign(x)
        }
    }

    #[test]
    fn functions_agree_with_double_precision() {
        for step in -20_000..=20_000 {
            let x = step as f32 * 0.001;
            let wide = f64::from(x);
            let check = |name: &str, got: f32, want: f64, absolute: f64, relative: f64| {
                let error = (f64::from(got) - want).abs();
                assert!(error <= absolute + relative * want.abs(), "{name}({x}) = {got}, not {want}");
            };
            check("exp", exp(x), wide.exp(), 0.0, 4e-7);
            check("erf", erf(x), erf_f64(wide), 5e-7, 0.0);
            check("tanh", tanh(x), wide.tanh(), 5e-7, 0.0);
            check("sigmoid", sigmoid(x), 1.0 / (1.0 + (-wide).exp()), 1e-7, 5e-7);
            check("gelu", gelu(x), wide * 0.5 * (1.0 + erf_f64(wide / 2f64.sqrt())), 1e-6, 2e-6);
        }
    }

    #[test]
    fn edges_are_kept() {
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(1e30), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert!((exp(88.7) / 88.7f32.exp() - 1.0).abs() < 1e-6);
        assert_eq!(erf(0.0), 0.0);
        assert_eq!(tanh(50.0), 1.0);
        assert_eq!(tanh(-50.0), -1.0);
        assert!(gelu(f32::NAN).is_nan());
        assert_eq!(sigmoid(-200.0), 0.0);
    }
}
