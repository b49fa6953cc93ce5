//! The seeded numbers: a fixed algorithm on integers, so that bytes are the same on every machine.

use half::f16;
use std::io::{self, Write};

/// Largest int8 of a symmetric quantisation.
pub const INT8_MAX: f32 = 127.0;

/// How the elements of a weight are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Bell-shaped (the sum of four uniform numbers) around zero, with this standard deviation.
    Bell { std: f64 },
    /// Like `Bell`, and the weights of each output add up to zero, so that what all inputs have in common (activations
    /// are mostly positive) is not amplified from layer to layer until nothing else is left.
    Centred { std: f64, outputs: Outputs },
    /// Bell-shaped with this standard deviation; then each run of `length` elements is shifted to add up to `sum`.
    Summing { std: f64, length: usize, sum: f64 },
    /// Uniform between the two.
    Uniform { low: f64, high: f64 },
}

/// Which elements of a weight belong to one output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outputs {
    /// The weight is `[outputs, ...]`: runs of this many elements.
    Rows { length: usize },
    /// The weight is `[inputs, outputs]`: every so many-th element.
    Columns { count: usize },
}

/// A tensor of the file that is drawn when it is written.
#[derive(Clone, Debug)]
pub struct Draw {
    pub init: Init,
    /// Names the stream of random numbers: that of the weight, whatever its form.
    pub stream: String,
    /// Elements of the weight.
    pub count: u64,
    pub form: Form,
}

/// What of a drawn weight is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    Single,
    Half,
    /// Multiples of the scale of each output.
    Int8 {
        outputs: Outputs,
    },
    /// The scales that belong to [`Form::Int8`].
    Scales {
        outputs: Outputs,
    },
}

impl Draw {
    /// Writes the stored form, little-endian.
    pub fn write(&self, out: &mut dyn Write, seed: u64) -> io::Result<()> {
        let draw = |out: &mut dyn Write| write_f32(out, self.init, self.count, seed, &self.stream);
        let outputs = match self.form {
            Form::Single => return draw(out),
            Form::Half => return draw(&mut Halving(out)),
            Form::Int8 { outputs } | Form::Scales { outputs } => outputs,
        };
        let mut bytes = Vec::with_capacity(self.count as usize * 4);
        draw(&mut bytes)?;
        let values: Vec<f32> = singles(&bytes).collect();
        let output_of = |index: usize| match outputs {
            Outputs::Rows { length } => index / length,
            Outputs::Columns { count } => index % count,
        };
        let mut scales = vec![f32::MIN_POSITIVE; values.len().checked_sub(1).map_or(0, |last| output_of(last) + 1)];
        for (index, value) in values.iter().enumerate() {
            let scale = &mut scales[output_of(index)];
            *scale = scale.max(value.abs() / INT8_MAX);
        }
        match self.form {
            Form::Scales { .. } => scales.iter().try_for_each(|scale| out.write_all(&scale.to_le_bytes())),
            _ => {
                let whole = |(index, value): (usize, &f32)| (value / scales[output_of(index)]).round_ties_even() as i8;
                out.write_all(&values.iter().enumerate().map(|each| whole(each).to_le_bytes()[0]).collect::<Vec<u8>>())
            }
        }
    }
}

fn singles(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

/// Writes half-precision numbers where single-precision ones are written to it, whole ones at a time.
struct Halving<'a>(&'a mut dyn Write);

impl Write for Halving<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let halves: Vec<u8> = singles(bytes).flat_map(|value| f16::from_f32(value).to_le_bytes()).collect();
        self.0.write_all(&halves)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Elements made before they are written.
const CHUNK_ELEMENTS: usize = 16 * 1024;

/// Writes `count` little-endian `f32` drawn by `init`. `name` makes each weight's stream its own, whatever the order.
pub fn write_f32(out: &mut dyn Write, init: Init, count: u64, seed: u64, name: &str) -> io::Result<()> {
    let mut random = Random::new(seed, name);
    match init {
        Init::Bell { std } => {
            let scale = bell_scale(std);
            write_each(out, count, || random.bell() as f32 * scale)
        }
        Init::Uniform { low, high } => {
            // 24 bits are what a float holds exactly.
            let step = (high - low) / f64::from(1 << 24);
            write_each(out, count, || (low + (random.next() >> 40) as f64 * step) as f32)
        }
        Init::Centred { std, outputs } => {
            let mut drawn: Vec<i32> = (0..count).map(|_| random.bell()).collect();
            centre(&mut drawn, outputs);
            let scale = bell_scale(std);
            let mut drawn = drawn.into_iter();
            write_each(out, count, || drawn.next().unwrap_or(0) as f32 * scale)
        }
        Init::Summing { std, length, sum } => {
            let mut drawn: Vec<i32> = (0..count).map(|_| random.bell()).collect();
            centre(&mut drawn, Outputs::Rows { length });
            let (scale, shift) = (bell_scale(std), (sum / length as f64) as f32);
            let mut drawn = drawn.into_iter();
            write_each(out, count, || drawn.next().unwrap_or(0) as f32 * scale + shift)
        }
    }
}

/// What a number of [`Random::bell`] is multiplied by: its standard deviation is 65536/sqrt(3).
fn bell_scale(std: f64) -> f32 {
    (std * 3f64.sqrt() / 65536.0) as f32
}

/// Takes from every element the (integer) mean of its output's.
fn centre(drawn: &mut [i32], outputs: Outputs) {
    match outputs {
        Outputs::Rows { length } => drawn.chunks_mut(length).for_each(|row| {
            let mean = mean(row.iter().map(|value| i64::from(*value)).sum(), row.len());
            row.iter_mut().for_each(|value| *value -= mean);
        }),
        Outputs::Columns { count } => {
            let mut sums = vec![0i64; count];
            for row in drawn.chunks(count) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += i64::from(*value));
            }
            let rows = drawn.len() / count;
            for row in drawn.chunks_mut(count) {
                row.iter_mut().zip(&sums).for_each(|(value, sum)| *value -= mean(*sum, rows));
            }
        }
    }
}

/// Rounded towards zero; exact numbers keep this the same everywhere.
fn mean(sum: i64, count: usize) -> i32 {
    (sum / count as i64) as i32
}

fn write_each(out: &mut dyn Write, count: u64, mut draw: impl FnMut() -> f32) -> io::Result<()> {
    let mut chunk = Vec::with_capacity(CHUNK_ELEMENTS * 4);
    let mut left = count;
    while left > 0 {
        let now = left.min(CHUNK_ELEMENTS as u64);
        chunk.clear();
        (0..now).for_each(|_| chunk.extend_from_slice(&draw().to_le_bytes()));
        out.write_all(&chunk)?;
        left -= now;
    }
    Ok(())
}

/// xoshiro256++, its state filled by splitmix64 from a seed and a name.
struct Random {
    state: [u64; 4],
}

impl Random {
    fn new(seed: u64, name: &str) -> Self {
        // FNV-1a spreads names over the seeds.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        let mut split = seed ^ hash;
        let state = [(); 4].map(|()| {
            split = split.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = split;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        });
        Self { state }
    }

    /// The sum of four numbers in 0..=65535, less the mean of such sums.
    fn bell(&mut self) -> i32 {
        let bits = self.next();
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        sum as i32 - 131_070
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(init: Init, count: u64, seed: u64, name: &str) -> Vec<f32> {
        let mut bytes = Vec::new();
        write_f32(&mut bytes, init, count, seed, name).unwrap();
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    }

    fn moments(values: &[f32]) -> (f64, f64) {
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt())
    }

    #[test]
    fn draws_what_was_asked_for() {
        let (mean, std) = moments(&draw(Init::Bell { std: 0.5 }, 100_000, 0, "w"));
        assert!(mean.abs() < 0.01 && (std - 0.5).abs() < 0.01, "{mean} {std}");
        let uniform = draw(Init::Uniform { low: 0.8, high: 1.2 }, 100_000, 0, "w");
        let (mean, std) = moments(&uniform);
        assert!((mean - 1.0).abs() < 0.01 && (std - 0.4 / 12f64.sqrt()).abs() < 0.01, "{mean} {std}");
        assert!(uniform.iter().all(|value| (0.8..1.2).contains(value)));
    }

    #[test]
    fn centred_weights_add_up_to_nothing_for_each_output() {
        let rows = draw(Init::Centred { std: 1.0, outputs: Outputs::Rows { length: 50 } }, 5000, 0, "w");
        let (_, std) = moments(&rows);
        assert!((std - 1.0).abs() < 0.05, "{std}");
        rows.chunks(50).for_each(|row| assert!(row.iter().sum::<f32>().abs() < 0.01));
        let columns = draw(Init::Centred { std: 1.0, outputs: Outputs::Columns { count: 100 } }, 5000, 0, "w");
        for output in 0..100 {
            assert!(columns.iter().skip(output).step_by(100).sum::<f32>().abs() < 0.01);
        }
    }

    #[test]
    fn seed_and_name_choose_the_stream() {
        let init = Init::Bell { std: 1.0 };
        assert_eq!(draw(init, 100, 7, "a"), draw(init, 100, 7, "a"));
        assert_ne!(draw(init, 100, 7, "a"), draw(init, 100, 8, "a"));
        assert_ne!(draw(init, 100, 7, "a"), draw(init, 100, 7, "b"));
    }
}
