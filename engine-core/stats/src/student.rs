//! Student's t for any number of degrees of freedom, whole or not.
//!
//! Source: the distribution as an incomplete beta function, that as a continued fraction (Abramowitz and Stegun, *Handbook
//! of Mathematical Functions*, 1964, 26.7.1 and 26.5.8), evaluated from its head (Lentz, *Generating Bessel Functions in
//! Mie Scattering Calculations Using Continued Fractions*, 1976).

/// Steps of a bisection over the powers of two from 2^-30 to 2^60: then neighbours differ in the tenth digit.
const BISECTIONS: u32 = 44;

/// Terms of the continued fraction at most; it takes about the square root of the larger argument.
const MAX_TERMS: u32 = 400;

const PRECISION: f64 = 1e-13;

/// What a t of `degrees_of_freedom` (above 0) stays within, either side, with `confidence` (0..1).
pub fn student_t(confidence: f64, degrees_of_freedom: f64) -> f64 {
    let tails = 1.0 - confidence;
    let (mut below, mut above) = (-30.0f64, 60.0f64);
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(below, above);
        match two_tails(middle.exp2(), degrees_of_freedom) > tails {
            true => below = middle,
            false => above = middle,
        }
    }
    f64::midpoint(below, above).exp2()
}

/// How probable it is that a t lies beyond `t`, either side.
fn two_tails(t: f64, degrees_of_freedom: f64) -> f64 {
    let x = degrees_of_freedom / (degrees_of_freedom + t * t);
    incomplete_beta(degrees_of_freedom / 2.0, 0.5, x)
}

/// The regularised incomplete beta function.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = (a * x.ln() + b * (-x).ln_1p() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b)).exp();
    // The fraction converges quickly on one side of the mean.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * fraction(a, b, x) / a
    } else {
        1.0 - front * fraction(b, a, 1.0 - x) / b
    }
}

fn fraction(a: f64, b: f64, x: f64) -> f64 {
    let kept = |value: f64| if value.abs() < f64::MIN_POSITIVE { f64::MIN_POSITIVE } else { value };
    let (mut numerator, mut denominator) = (1.0, 1.0 / kept(1.0 - (a + b) * x / (a + 1.0)));
    let mut value = denominator;
    for term in 1..=MAX_TERMS {
        let m = f64::from(term);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for part in [even, odd] {
            denominator = 1.0 / kept(1.0 + part * denominator);
            numerator = kept(1.0 + part / numerator);
            change = numerator * denominator;
            value *= change;
        }
        if (change - 1.0).abs() < PRECISION {
            break;
        }
    }
    value
}

/// Stirling's series, after moving the argument to where it is exact to the last digits.
fn ln_gamma(x: f64) -> f64 {
    let (mut moved, mut product) = (x, 1.0);
    while moved < 12.0 {
        product *= moved;
        moved += 1.0;
    }
    let inverse = 1.0 / (moved * moved);
    let series = (1.0 / 12.0 - inverse * (1.0 / 360.0 - inverse * (1.0 / 1260.0 - inverse / 1680.0))) / moved;
    (moved - 0.5) * moved.ln() - moved + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - product.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (confidence, degrees_of_freedom, told) in [
            (0.95, 1.0, 12.706),
            (0.95, 2.0, 4.303),
            (0.95, 4.0, 2.776),
            (0.95, 9.0, 2.262),
            (0.99, 9.0, 3.250),
            (0.999, 4.0, 8.610),
            (0.95, 30.0, 2.042),
            (0.95, 1e5, 1.960),
            (0.5, 1.0, 1.000),
        ] {
            let found = student_t(confidence, degrees_of_freedom);
            assert!((found - told).abs() < 1e-3, "{confidence} {degrees_of_freedom}: {found}, not {told}");
        }
    }

    #[test]
    fn between_whole_degrees_of_freedom_quantiles_lie_between_theirs() {
        let at = |degrees_of_freedom| student_t(0.95, degrees_of_freedom);
        assert!(at(0.6) > at(1.0) && at(1.0) > at(1.5) && at(1.5) > at(2.0) && at(2.4) < at(2.0));
        assert!(at(0.6).is_finite() && student_t(1.0 - 1e-6, 2.4).is_finite());
    }

    #[test]
    fn the_logarithm_of_gamma_is_that_of_factorials_and_of_the_half() {
        assert!((ln_gamma(5.0) - 24f64.ln()).abs() < 1e-12);
        assert!((ln_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-12);
    }
}
