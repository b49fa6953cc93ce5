//! Discrete Fourier transforms of any length, many at a time.
//!
//! The length is cut into its prime factors; each pass joins as many transforms as a factor says (Stockham's order, so that
//! nothing is reordered). Lines are transformed [`LANES`] side by side: every number is a vector of them, and the passes
//! need no other vector code. A length with a large prime factor costs as much as a sum over that factor.

use crate::{
    isa::{Isa, per_level},
    pool::ThreadPool,
};
use std::{
    f64::consts::PI,
    sync::{Mutex, PoisonError},
};

/// Lines that are transformed together.
pub const LANES: usize = 16;

/// What follows a transform's lines: where their numbers are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// Lines of two kinds: so many outer ones, each with inner ones; where they begin in elements.
    pub count: [usize; 2],
    pub from: [usize; 2],
    pub to: [usize; 2],
    /// From one number of a line to the next; the imaginary part of a complex number lies behind the real one.
    pub from_step: usize,
    pub to_step: usize,
    /// Numbers given; what the length has more of is zero.
    pub given: usize,
    pub from_complex: bool,
    pub to_complex: bool,
    /// Numbers written.
    pub bins: usize,
    /// What is given is half of a spectrum, the other half its mirror image.
    pub mirrored: bool,
}

/// A transform of one length.
#[derive(Debug)]
pub struct Fourier {
    len: usize,
    factors: Vec<usize>,
    /// A turn in `len` parts.
    turns: Vec<[f32; 2]>,
    scale: f32,
    lines: Lines,
    needs: [usize; 2],
    idle: Mutex<Vec<Buffers>>,
}

type Lane = [f32; LANES];

/// Real and imaginary parts, twice.
#[derive(Debug, Default)]
struct Buffers([Vec<Lane>; 4]);

/// Longest transform.
const LEN_MAX: usize = 1 << 24;

impl Fourier {
    /// `None` when sizes overflow, or the length is 0 or too long.
    pub fn new(len: usize, inverse: bool, lines: Lines) -> Option<Self> {
        if !(1..=LEN_MAX).contains(&len) || lines.bins > len || lines.given > len && !lines.mirrored {
            return None;
        }
        if lines.mirrored && (lines.given <= len / 2 || !lines.from_complex) {
            return None;
        }
        let sign = if inverse { 2.0 } else { -2.0 };
        let turn = |at: usize| {
            let (sin, cos) = (sign * PI * at as f64 / len as f64).sin_cos();
            [cos as f32, sin as f32]
        };
        let mut factors = Vec::new();
        let mut rest = len;
        for factor in [4, 2, 3, 5] {
            while rest.is_multiple_of(factor) {
                factors.push(factor);
                rest /= factor;
            }
        }
        let mut factor = 7;
        while factor * factor <= rest {
            while rest.is_multiple_of(factor) {
                factors.push(factor);
                rest /= factor;
            }
            factor += 2;
        }
        if rest > 1 {
            factors.push(rest);
        }
        let end = |begins: [usize; 2], step: usize, numbers: usize, complex: bool| {
            let lines = (0..2).try_fold(0usize, |end, kind| {
                lines.count[kind].saturating_sub(1).checked_mul(begins[kind])?.checked_add(end)
            })?;
            let line = numbers.saturating_sub(1).checked_mul(step)?;
            let end = lines.checked_add(line)?.checked_add(if complex { 2 } else { 1 })?;
            Some(if numbers == 0 { 0 } else { end })
        };
        let given = if lines.mirrored { len / 2 + 1 } else { lines.given };
        let needs = [
            end(lines.from, lines.from_step, given, lines.from_complex)?,
            end(lines.to, lines.to_step, lines.bins, lines.to_complex)?,
        ];
        lines.count[0].checked_mul(lines.count[1])?;
        let scale = if inverse { 1.0 / len as f32 } else { 1.0 };
        let turns = (0..len).map(turn).collect();
        Some(Self { len, factors, turns, scale, lines, needs, idle: Mutex::default() })
    }

    /// Elements that input and output must have.
    pub fn needs(&self) -> [usize; 2] {
        self.needs
    }

    /// Transforms every line; `window`, where given, is one factor for each number.
    ///
    /// # Panics
    /// When a buffer is shorter than [`Self::needs`], or the window not as long as a transform.
    pub fn run(&self, isa: Isa, pool: &ThreadPool, window: Option<&[f32]>, from: &[f32], to: &mut [f32]) {
        assert!(from.len() >= self.needs[0] && to.len() >= self.needs[1], "lines leave their buffers");
        assert!(window.is_none_or(|window| window.len() == self.len), "the window is not as long as the transform");
        let lines = &self.lines;
        let count = lines.count[0] * lines.count[1];
        let groups = count.div_ceil(LANES);
        let done: Mutex<&mut [f32]> = Mutex::new(to);
        pool.run(groups, |group, _| {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut buffers = idle.unwrap_or_else(|| Buffers(std::array::from_fn(|_| vec![[0.0; LANES]; self.len])));
            let first = group * LANES;
            let here = LANES.min(count - first);
            let begin = |line: usize, begins: [usize; 2]| {
                let (outer, inner) = (line / lines.count[1], line % lines.count[1]);
                outer * begins[0] + inner * begins[1]
            };
            let starts: [usize; LANES] = std::array::from_fn(|lane| begin(first + lane.min(here - 1), lines.from));
            self.load(&mut buffers, &starts, window, from);
            let mut swapped = false;
            let mut joined = 1;
            for &factor in &self.factors {
                let [re, im, to_re, to_im] = &mut buffers.0;
                let (from, to) = if swapped { ([to_re, to_im], [re, im]) } else { ([re, im], [to_re, to_im]) };
                let [from_re, from_im] = from;
                let [to_re, to_im] = to;
                pass(isa, Pass { len: self.len, joined, factor }, &self.turns, [from_re, from_im], [to_re, to_im]);
                joined *= factor;
                swapped = !swapped;
            }
            let (re, im) = if swapped { (&buffers.0[2], &buffers.0[3]) } else { (&buffers.0[0], &buffers.0[1]) };
            {
                let mut to = done.lock().unwrap_or_else(PoisonError::into_inner);
                for lane in 0..here {
                    let begin = begin(first + lane, lines.to);
                    for bin in 0..lines.bins {
                        let at = begin + bin * lines.to_step;
                        to[at] = re[bin][lane] * self.scale;
                        if lines.to_complex {
                            to[at + 1] = im[bin][lane] * self.scale;
                        }
                    }
                }
            }
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
        });
    }

    fn load(&self, buffers: &mut Buffers, starts: &[usize; LANES], window: Option<&[f32]>, from: &[f32]) {
        let lines = &self.lines;
        let [re, im, ..] = &mut buffers.0;
        for (at, (re, im)) in re.iter_mut().zip(im.iter_mut()).enumerate() {
            // Beyond half of a real signal's spectrum its first half comes back, mirrored.
            let (place, turned) = match lines.mirrored && at > self.len / 2 {
                true => (self.len - at, -1.0),
                false => (at, 1.0),
            };
            if place >= lines.given {
                (*re, *im) = ([0.0; LANES], [0.0; LANES]);
                continue;
            }
            let weight = window.map_or(1.0, |window| window[at]);
            for (lane, start) in starts.iter().enumerate() {
                let place = start + place * lines.from_step;
                re[lane] = from[place] * weight;
                im[lane] = if lines.from_complex { turned * from[place + 1] * weight } else { 0.0 };
            }
        }
    }
}

/// One pass: `joined` transforms of each remainder become `joined * factor`.
#[derive(Clone, Copy)]
struct Pass {
    len: usize,
    joined: usize,
    factor: usize,
}

#[inline(always)]
fn lanes(f: impl Fn(usize) -> f32) -> Lane {
    std::array::from_fn(f)
}

/// `(a + ib) (c + is)`.
#[inline(always)]
fn turned((re, im): (&Lane, &Lane), [cos, sin]: [f32; 2]) -> (Lane, Lane) {
    (lanes(|at| re[at] * cos - im[at] * sin), lanes(|at| re[at] * sin + im[at] * cos))
}

per_level! {
    fn pass(
        of: Pass,
        turns: &[[f32; 2]],
        from: [&[Lane]; 2],
        to: [&mut [Lane]; 2],
    ) {
        let ([from_re, from_im], [to_re, to_im]) = (from, to);
        let Pass { len, joined, factor } = of;
        let rest = len / (joined * factor);
        // A turn of one result is so many of the table's parts.
        let (step, part) = (rest, len / factor);
        for j in 0..joined {
            for k in 0..rest {
                let first = j * rest * factor + k;
                let given = |q: usize| {
                    let at = first + rest * q;
                    turned((&from_re[at], &from_im[at]), turns[j * q * step])
                };
                match factor {
                    2 => {
                        let (a, b) = (given(0), given(1));
                        for at in 0..LANES {
                            let (low, high) = (j * rest + k, (j + joined) * rest + k);
                            to_re[low][at] = a.0[at] + b.0[at];
                            to_im[low][at] = a.1[at] + b.1[at];
                            to_re[high][at] = a.0[at] - b.0[at];
                            to_im[high][at] = a.1[at] - b.1[at];
                        }
                    }
                    4 => {
                        let (a, b, c, d) = (given(0), given(1), given(2), given(3));
                        // A quarter of a turn: -i forward, i back.
                        let quarter = turns[part][1];
                        let place = |s: usize| (j + joined * s) * rest + k;
                        let places = [place(0), place(1), place(2), place(3)];
                        for at in 0..LANES {
                            let (even_re, even_im) = (a.0[at] + c.0[at], a.1[at] + c.1[at]);
                            let (odd_re, odd_im) = (b.0[at] + d.0[at], b.1[at] + d.1[at]);
                            let (gap_re, gap_im) = (a.0[at] - c.0[at], a.1[at] - c.1[at]);
                            let (side_re, side_im) = ((d.1[at] - b.1[at]) * quarter, (b.0[at] - d.0[at]) * quarter);
                            to_re[places[0]][at] = even_re + odd_re;
                            to_im[places[0]][at] = even_im + odd_im;
                            to_re[places[1]][at] = gap_re + side_re;
                            to_im[places[1]][at] = gap_im + side_im;
                            to_re[places[2]][at] = even_re - odd_re;
                            to_im[places[2]][at] = even_im - odd_im;
                            to_re[places[3]][at] = gap_re - side_re;
                            to_im[places[3]][at] = gap_im - side_im;
                        }
                    }
                    _ => {
                        for s in 0..factor {
                            let (mut re, mut im) = ([0f32; LANES], [0f32; LANES]);
                            for q in 0..factor {
                                let at = first + rest * q;
                                let turn = (j * q * step + (q * s) % factor * part) % len;
                                let (x, y) = turned((&from_re[at], &from_im[at]), turns[turn]);
                                for at in 0..LANES {
                                    re[at] += x[at];
                                    im[at] += y[at];
                                }
                            }
                            let place = (j + joined * s) * rest + k;
                            (to_re[place], to_im[place]) = (re, im);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn transforms_agree_with_sums(len in 1usize..150, count in 1usize..40, inverse: bool, windowed: bool) {
            let lines = Lines {
                count: [count, 1], from: [2 * len, 0], to: [2 * len, 0], from_step: 2, to_step: 2, given: len,
                from_complex: true, to_complex: true, bins: len, mirrored: false,
            };
            let from: Vec<f32> = (0..2 * len * count).map(|i| (i * 41 % 97) as f32 / 48.0 - 1.0).collect();
            let window: Vec<f32> = (0..len).map(|i| 0.5 + (i % 7) as f32 / 8.0).collect();
            let window = windowed.then_some(&window[..]);
            let fourier = Fourier::new(len, inverse, lines).unwrap();
            for isa in Isa::available() {
                let mut to = vec![f32::NAN; from.len()];
                fourier.run(isa, &ThreadPool::new(2).unwrap(), window, &from, &mut to);
                for (from, to) in from.chunks(2 * len).zip(to.chunks(2 * len)) {
                    for bin in 0..len {
                        let sign = if inverse { 2.0 } else { -2.0 };
                        let (mut re, mut im) = (0f64, 0f64);
                        for at in 0..len {
                            let (sin, cos) = (sign * PI * (bin * at % len) as f64 / len as f64).sin_cos();
                            let weight = window.map_or(1.0, |window| f64::from(window[at]));
                            let (x, y) = (f64::from(from[2 * at]) * weight, f64::from(from[2 * at + 1]) * weight);
                            re += x * cos - y * sin;
                            im += x * sin + y * cos;
                        }
                        let scale = if inverse { 1.0 / len as f64 } else { 1.0 };
                        for (got, want) in [(to[2 * bin], re * scale), (to[2 * bin + 1], im * scale)] {
                            prop_assert!((f64::from(got) - want).abs() < 3e-6 * len as f64, "{got}, not {want}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn lines_that_leave_their_buffers_are_refused() {
        let lines = Lines {
            count: [2, 1],
            from: [4, 0],
            to: [6, 0],
            from_step: 1,
            to_step: 2,
            given: 4,
            from_complex: false,
            to_complex: true,
            bins: 3,
            mirrored: false,
        };
        let fourier = Fourier::new(4, false, lines).unwrap();
        assert_eq!(fourier.needs(), [8, 12]);
        assert!(Fourier::new(0, false, lines).is_none() && Fourier::new(2, false, lines).is_none());
        assert!(Fourier::new(4, false, Lines { from: [usize::MAX, 0], ..lines }).is_none());
        assert!(Fourier::new(4, false, Lines { to_step: usize::MAX, ..lines }).is_none());
        let (pool, isa) = (ThreadPool::new(1).unwrap(), Isa::best());
        let run = |window: Option<&[f32]>, from: &[f32], to: usize| {
            let run = || fourier.run(isa, &pool, window, from, &mut vec![0.0; to]);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_ok()
        };
        assert!(run(None, &[0.0; 8], 12));
        assert!(!run(None, &[0.0; 7], 12) && !run(None, &[0.0; 8], 11) && !run(Some(&[1.0; 3]), &[0.0; 8], 12));
    }
}
