//! exp, erf, tanh and the activations made of them, in f32 arithmetic without branches, so that loops over them
//! vectorise at every level; `FUSED` as in [`crate::isa`].

use crate::isa::multiply_add;

/// Numbers as integers the way `as` makes them: cut toward zero, kept within the type, 0 for what is no number.
///
/// For f32 in steps that loops vectorise, which they do not do with `as`.
pub(crate) trait ToInteger: Copy {
    fn to_i8(self) -> i8;
    fn to_u8(self) -> u8;
    fn to_i16(self) -> i16;
    fn to_u16(self) -> u16;
    fn to_i32(self) -> i32;
}

/// Cut, of a number within bounds that i32 holds; what is no number is the lower one.
#[inline(always)]
fn cut(x: f32, low: f32, high: f32) -> i32 {
    let x = if x > low { x } else { low };
    let x = if x < high { x } else { high };
    // SAFETY: a number within the bounds, all of which are well within those of i32.
    unsafe { x.to_int_unchecked() }
}

#[inline(always)]
fn or_zero(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x }
}

impl ToInteger for f32 {
    #[inline(always)]
    fn to_i8(self) -> i8 {
        cut(or_zero(self), -128.0, 127.0) as i8
    }

    #[inline(always)]
    fn to_u8(self) -> u8 {
        cut(self, 0.0, 255.0) as u8
    }

    #[inline(always)]
    fn to_i16(self) -> i16 {
        cut(or_zero(self), -32_768.0, 32_767.0) as i16
    }

    #[inline(always)]
    fn to_u16(self) -> u16 {
        cut(self, 0.0, 65_535.0) as u16
    }

    #[inline(always)]
    fn to_i32(self) -> i32 {
        const BEYOND: f32 = 2_147_483_648.0;
        let fits = self > -BEYOND && self < BEYOND;
        // SAFETY: every number between the two is one of i32 when it is cut.
        let whole: i32 = unsafe { (if fits { self } else { 0.0 }).to_int_unchecked() };
        let whole = if self >= BEYOND { i32::MAX } else { whole };
        if self <= -BEYOND { i32::MIN } else { whole }
    }
}

macro_rules! plainly_to_integer {
    ($number:ty) => {
        impl ToInteger for $number {
            #[inline(always)]
            fn to_i8(self) -> i8 {
                self as i8
            }

            #[inline(always)]
            fn to_u8(self) -> u8 {
                self as u8
            }

            #[inline(always)]
            fn to_i16(self) -> i16 {
                self as i16
            }

            #[inline(always)]
            fn to_u16(self) -> u16 {
                self as u16
            }

            #[inline(always)]
            fn to_i32(self) -> i32 {
                self as i32
            }
        }
    };
}
plainly_to_integer!(f64);
plainly_to_integer!(i64);

/// Below this, exp is zero in f32 even with subnormals.
const EXP_LOW: f32 = -87.336_54;
/// Above this, exp overflows f32.
const EXP_HIGH: f32 = 88.722_83;
/// Where `e^x` is about 1e-38, the least that is no subnormal number.
const SIGMOID_LOW: f32 = -87.0;
/// Adding and taking away 1.5 * 2^23 rounds to the nearest integer.
const ROUNDER: f32 = 12_582_912.0;

/// `x` as a whole number of times ln 2 and a rest: the number plus [`ROUNDER`], and the rest.
#[inline(always)]
fn parted<const FUSED: bool>(x: f32) -> (f32, f32) {
    let shifted = multiply_add::<FUSED>(x, std::f32::consts::LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    // ln 2 in two parts, the first with few bits so that n * part is exact.
    let r = multiply_add::<FUSED>(n, -0.693_359_4, x);
    (shifted, multiply_add::<FUSED>(n, 2.121_944_4e-4, r))
}

/// `e^x` for x within [`EXP_LOW`, `EXP_HIGH`] or NaN.
#[inline(always)]
fn exp_within<const FUSED: bool>(x: f32) -> f32 {
    let (shifted, r) = parted::<FUSED>(x);
    exp_of_parts::<FUSED>(shifted, r)
}

/// `e^(n ln 2 + r)`, where `shifted` is `n` plus [`ROUNDER`] and `r` is within ±0.4.
#[inline(always)]
fn exp_of_parts<const FUSED: bool>(shifted: f32, r: f32) -> f32 {
    let mut p = 1.987_569_1e-4;
    p = multiply_add::<FUSED>(p, r, 1.398_2e-3);
    p = multiply_add::<FUSED>(p, r, 8.333_452e-3);
    p = multiply_add::<FUSED>(p, r, 4.166_579_6e-2);
    p = multiply_add::<FUSED>(p, r, 1.666_666_5e-1);
    p = multiply_add::<FUSED>(p, r, 5e-1);
    let e = multiply_add::<FUSED>(p * r, r, r) + 1.0;
    // The low bits of `shifted` are n; 2^n in two factors, because n may be 128. Wrapping, because a check for
    // overflow (there is none) would keep loops from vectorising in builds that check.
    let n_bits = (shifted.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
    let half = n_bits >> 1;
    let low = f32::from_bits((half.wrapping_add(127) << 23) as u32);
    let high = f32::from_bits((n_bits.wrapping_sub(half).wrapping_add(127) << 23) as u32);
    // NaN stays NaN: whatever the factors, the product of one is.
    e * low * high
}

/// `e^x`, relative error under 2e-7 where the result is a normal number; 0 below, infinity above, NaN for NaN.
#[inline(always)]
pub fn exp<const FUSED: bool>(x: f32) -> f32 {
    let value = exp_within::<FUSED>(x.clamp(EXP_LOW, EXP_HIGH));
    let value = if x < EXP_LOW { 0.0 } else { value };
    if x > EXP_HIGH { f32::INFINITY } else { value }
}

/// The natural logarithm, relative error under 3e-7; -infinity of 0, NaN below.
#[inline(always)]
pub fn ln<const FUSED: bool>(x: f32) -> f32 {
    // Subnormal numbers are made normal first.
    let tiny = x < f32::MIN_POSITIVE;
    let bits = (if tiny { x * 8_388_608.0 } else { x }).to_bits() as i32;
    // x = m 2^e, m from sqrt(1/2) to sqrt 2.
    let e = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let f = f32::from_bits(bits.wrapping_sub(e << 23) as u32) - 1.0;
    let e = e as f32 - if tiny { 23.0 } else { 0.0 };
    let mut p = 7.037_683_6e-2;
    for coefficient in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = multiply_add::<FUSED>(p, f, coefficient);
    }
    let square = f * f;
    let tail = multiply_add::<FUSED>(p * f, square, -2.121_944_4e-4 * e);
    let value = multiply_add::<FUSED>(-0.5, square, tail) + f + 0.693_359_4 * e;
    let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
    let value = if x == f32::INFINITY { x } else { value };
    if x >= 0.0 { value } else { f32::NAN }
}

/// `erfc(|x|)` by Abramowitz and Stegun 7.1.26; absolute error under 3e-7.
#[inline(always)]
fn erfc_of_magnitude<const FUSED: bool>(x: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / multiply_add::<FUSED>(0.327_591_1, a, 1.0);
    let mut p = 1.061_405_4;
    p = multiply_add::<FUSED>(p, t, -1.453_152);
    p = multiply_add::<FUSED>(p, t, 1.421_413_7);
    p = multiply_add::<FUSED>(p, t, -0.284_496_74);
    p = multiply_add::<FUSED>(p, t, 0.254_829_6);
    // Below the bound the result is as good as zero in any sum with a number near one, and never subnormal.
    p * t * exp_within::<FUSED>((-a * a).max(SIGMOID_LOW))
}

/// The error function; absolute error under 5e-7.
#[inline(always)]
pub fn erf<const FUSED: bool>(x: f32) -> f32 {
    let tail = 1.0 - erfc_of_magnitude::<FUSED>(x);
    // Near zero 1 - erfc loses digits; the series does not.
    let square = x * x;
    let near = x
        * (std::f32::consts::FRAC_2_SQRT_PI - square * (0.376_126_4 - square * (0.112_837_92 - square * 0.026_866_17)));
    let magnitude = if x.abs() < 0.2 { near.abs() } else { tail };
    magnitude.copysign(x)
}

/// `x / (1 + e^-x)`'s second factor; at least 1e-38, so that no product with it is slow to make.
#[inline(always)]
pub fn sigmoid<const FUSED: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp_within::<FUSED>((-x).clamp(SIGMOID_LOW, -SIGMOID_LOW)))
}

/// Hyperbolic tangent; absolute error under 3e-7.
#[inline(always)]
pub fn tanh<const FUSED: bool>(x: f32) -> f32 {
    let e = exp_within::<FUSED>((-2.0 * x.abs()).clamp(SIGMOID_LOW, 0.0));
    let far = (1.0 - e) / (1.0 + e);
    let square = x * x;
    let near = x.abs() * (1.0 - square * (0.333_333_34 - square * (0.133_333_33 - square * 0.053_968_254)));
    let magnitude = if x.abs() < 0.1 { near } else { far };
    magnitude.copysign(x)
}

/// Beyond this GELU's negative tail is as good as zero: less than 3e-38, at the edge of the normal numbers.
const GELU_END: f32 = 13.1;

/// `e^(-a² / 2)` for `a` from 0 to [`GELU_END`], relative error under 5e-7: the square has no more digits than an f32
/// holds before the decimal point matters, so it is taken in two parts, of which the first is exact.
#[inline(always)]
fn bell<const FUSED: bool>(a: f32) -> f32 {
    let head = f32::from_bits(a.to_bits() & 0xffff_f000);
    let rest = (a - head) * (a + head);
    let (shifted, r) = parted::<FUSED>(-0.5 * head * head);
    exp_of_parts::<FUSED>(shifted, multiply_add::<FUSED>(-0.5, rest, r))
}

/// `x * (1 + erf(x / sqrt 2)) / 2`; relative error under 2e-6 also in the negative tail, as far as `GELU_END`.
#[inline(always)]
pub fn gelu<const FUSED: bool>(x: f32) -> f32 {
    let a = if x.abs() > GELU_END { GELU_END } else { x.abs() };
    // erfc(a / sqrt 2) e^(a² / 2) as a polynomial in t, of least relative error.
    let t = 1.0 / multiply_add::<FUSED>(0.44 * std::f32::consts::FRAC_1_SQRT_2, a, 1.0);
    let mut p = 0.071_081_49;
    p = multiply_add::<FUSED>(p, t, -0.277_326_8);
    p = multiply_add::<FUSED>(p, t, 0.295_558_5);
    p = multiply_add::<FUSED>(p, t, -0.019_079_963);
    p = multiply_add::<FUSED>(p, t, 0.215_192_84);
    p = multiply_add::<FUSED>(p, t, 0.217_513_88);
    p = multiply_add::<FUSED>(p, t, 0.248_836_84);
    p = multiply_add::<FUSED>(p, t, 0.248_223_35);
    // The bell last: everything before it is far from the smallest numbers.
    let tail = 0.5 * a * t * p * bell::<FUSED>(a);
    if x < 0.0 { -tail } else { x - tail }
}

/// Beyond this the negative tail of GELU with tanh is as good as zero: less than 2e-37.
const GELU_TANH_END: f32 = 10.0;

/// GELU with tanh in place of erf; relative error under 3e-5 also in the negative tail, as far as `GELU_TANH_END`.
#[inline(always)]
pub fn gelu_tanh<const FUSED: bool>(x: f32) -> f32 {
    let x = if x < -GELU_TANH_END { -GELU_TANH_END } else { x };
    // Half of 1 + tanh is the sigmoid of twice the angle; the sum would leave the tail no digits.
    x * sigmoid::<FUSED>(1.595_769 * (x + 0.044_715 * x * x * x))
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub fn silu<const FUSED: bool>(x: f32) -> f32 {
    x * sigmoid::<FUSED>(x)
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

    fn functions_agree<const FUSED: bool>() {
        for step in -20_000..=20_000 {
            let x = step as f32 * 0.001;
            let wide = f64::from(x);
            let check = |name: &str, got: f32, want: f64, absolute: f64, relative: f64| {
                let error = (f64::from(got) - want).abs();
                assert!(error <= absolute + relative * want.abs(), "{name}({x}) = {got}, not {want}");
            };
            check("exp", exp::<FUSED>(x), wide.exp(), 0.0, 4e-7);
            check("erf", erf::<FUSED>(x), erf_f64(wide), 5e-7, 0.0);
            if x != 0.0 {
                check("ln", ln::<FUSED>(x.abs()), wide.abs().ln(), 1e-7, 3e-7);
            }
            check("tanh", tanh::<FUSED>(x), wide.tanh(), 5e-7, 0.0);
            check("sigmoid", sigmoid::<FUSED>(x), 1.0 / (1.0 + (-wide).exp()), 1e-7, 5e-7);
            check("gelu", gelu::<FUSED>(x), wide * 0.5 * libm::erfc(-wide / 2f64.sqrt()), 3e-38, 2e-6);
            let angle = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide.powi(3));
            check("gelu_tanh", gelu_tanh::<FUSED>(x), wide / (1.0 + (-2.0 * angle).exp()), 2e-37, 3e-5);
        }
    }

    fn edges<const FUSED: bool>() {
        assert_eq!(exp::<FUSED>(-1e30), 0.0);
        assert_eq!(exp::<FUSED>(1e30), f32::INFINITY);
        assert!(exp::<FUSED>(f32::NAN).is_nan());
        assert!((exp::<FUSED>(88.7) / 88.7f32.exp() - 1.0).abs() < 1e-6);
        assert_eq!(erf::<FUSED>(0.0), 0.0);
        assert_eq!((ln::<FUSED>(0.0), ln::<FUSED>(f32::INFINITY)), (f32::NEG_INFINITY, f32::INFINITY));
        assert!(ln::<FUSED>(-1.0).is_nan() && ln::<FUSED>(f32::NAN).is_nan());
        assert!((ln::<FUSED>(1e-40) / 1e-40f32.ln() - 1.0).abs() < 1e-6);
        assert_eq!(tanh::<FUSED>(50.0), 1.0);
        assert_eq!(tanh::<FUSED>(-50.0), -1.0);
        assert!(gelu::<FUSED>(f32::NAN).is_nan());
        assert_eq!(gelu::<FUSED>(f32::INFINITY), f32::INFINITY);
        assert!((-3e-38..=0.0).contains(&gelu::<FUSED>(f32::NEG_INFINITY)));
        assert!(gelu_tanh::<FUSED>(f32::NAN).is_nan());
        assert_eq!(gelu_tanh::<FUSED>(f32::INFINITY), f32::INFINITY);
        assert!((-2e-37..=0.0).contains(&gelu_tanh::<FUSED>(f32::NEG_INFINITY)));
        assert_eq!((gelu_tanh::<FUSED>(0.0), gelu_tanh::<FUSED>(-0.0)), (0.0, 0.0));
        assert_eq!((gelu::<FUSED>(0.0), gelu::<FUSED>(-0.0)), (0.0, 0.0));
        assert!(sigmoid::<FUSED>(-200.0) < 1e-37);
        assert_eq!(sigmoid::<FUSED>(200.0), 1.0);
        assert!(sigmoid::<FUSED>(f32::NAN).is_nan() && tanh::<FUSED>(f32::NAN).is_nan());
    }

    #[test]
    fn functions_agree_with_double_precision() {
        functions_agree::<false>();
        functions_agree::<true>();
    }

    #[test]
    fn edges_are_kept() {
        edges::<false>();
        edges::<true>();
    }

    /// As `as` makes them, of numbers in every binade and beside every bound.
    #[test]
    fn floats_become_integers_as_they_do_by_as() {
        let bounds = [
            0.0,
            127.0,
            128.0,
            255.0,
            256.0,
            32_767.0,
            32_768.0,
            65_535.0,
            65_536.0,
            2_147_483_648.0,
            f32::MAX,
            f32::INFINITY,
        ];
        let beside = bounds.iter().flat_map(|&x: &f32| [x.next_down(), x, x.next_up(), x + 0.5, x - 0.5]);
        let all = (0..=u16::MAX).map(|high| f32::from_bits(u32::from(high) << 16 | 0x1234)).chain(beside);
        for x in all.flat_map(|x| [x, -x]).chain([f32::NAN]) {
            assert_eq!((x.to_i8(), x.to_u8()), (x as i8, x as u8), "{x}");
            assert_eq!((x.to_i16(), x.to_u16(), x.to_i32()), (x as i16, x as u16, x as i32), "{x}");
        }
    }
}
