//! From exact sums to what is stored: integers rounded once, or floats.

use super::tile::COLUMNS_MAX;
use crate::isa::{Isa, per_level};

/// What exact sums become. Lists have one value, or one per column.
#[derive(Clone, Copy, Debug)]
pub enum Finish<'a> {
    /// Nothing else.
    Sums,
    /// `(sum + bias) * factor`, rounded half to even, plus zero, limited to `low..=high`: bytes.
    Integers { bias: Option<&'a [f64]>, factor: &'a [f64], zero: i32, low: i32, high: i32 },
    /// `(sum + bias) * factor` in double precision, rounded once to f32.
    Scaled { bias: Option<&'a [f64]>, factor: &'a [f64] },
    /// `f32(sum) * factor + bias`, every step in f32.
    Floats { bias: Option<&'a [f32]>, factor: &'a [f32] },
}

/// Where results go; which it has to be follows from [`Finish`].
#[derive(Debug)]
pub enum Output<'a> {
    Sums(&'a mut [i32]),
    Bytes(&'a mut [u8]),
    Floats(&'a mut [f32]),
}

impl Output<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Sums(to) => to.len(),
            Self::Bytes(to) => to.len(),
            Self::Floats(to) => to.len(),
        }
    }

    pub(super) fn shared(&mut self) -> SharedOutput {
        match self {
            Self::Sums(to) => SharedOutput::Sums(to.as_mut_ptr()),
            Self::Bytes(to) => SharedOutput::Bytes(to.as_mut_ptr()),
            Self::Floats(to) => SharedOutput::Floats(to.as_mut_ptr()),
        }
    }
}

/// An output between threads that write disjoint parts of it.
#[derive(Clone, Copy)]
pub(super) enum SharedOutput {
    Sums(*mut i32),
    Bytes(*mut u8),
    Floats(*mut f32),
}
// SAFETY: tasks write disjoint parts.
unsafe impl Send for SharedOutput {}
// SAFETY: as above.
unsafe impl Sync for SharedOutput {}

impl Finish<'_> {
    /// Checks that lists are as long as columns, and that results go where such results can.
    ///
    /// # Panics
    /// When not.
    pub(super) fn check(&self, columns: usize, to: &Output<'_>) {
        fn fits<T>(list: &[T], columns: usize) -> bool {
            list.len() == 1 || list.len() == columns
        }
        let (lists, target) = match (self, to) {
            (Self::Sums, Output::Sums(_)) => (true, true),
            (Self::Integers { bias, factor, .. }, Output::Bytes(_))
            | (Self::Scaled { bias, factor }, Output::Floats(_)) => {
                (fits(factor, columns) && bias.is_none_or(|bias| fits(bias, columns)), true)
            }
            (Self::Floats { bias, factor }, Output::Floats(_)) => {
                (fits(factor, columns) && bias.is_none_or(|bias| fits(bias, columns)), true)
            }
            _ => (true, false),
        };
        assert!(lists && target, "what follows the sums does not fit them or their place");
    }
}

/// What a panel of columns needs at its end, worked out once for all of its rows.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    /// Added to the sums: what zero points make of the columns' sums.
    pub moved: [i32; COLUMNS_MAX],
    bias: [f64; COLUMNS_MAX],
    factor: [f64; COLUMNS_MAX],
    bias_f32: [f32; COLUMNS_MAX],
    factor_f32: [f32; COLUMNS_MAX],
    pub columns: usize,
}

fn spread<T: Copy>(list: &[T], first: usize, to: &mut [T]) {
    match list {
        [one] => to.fill(*one),
        all => to.copy_from_slice(&all[first..first + to.len()]),
    }
}

impl Panel {
    /// Of the columns `first..first + columns`; what is added to their sums is still nothing.
    pub fn new(finish: &Finish<'_>, first: usize, columns: usize) -> Self {
        let mut panel = Self {
            moved: [0; COLUMNS_MAX],
            bias: [0.0; COLUMNS_MAX],
            factor: [0.0; COLUMNS_MAX],
            bias_f32: [0.0; COLUMNS_MAX],
            factor_f32: [0.0; COLUMNS_MAX],
            columns,
        };
        match finish {
            Finish::Sums => {}
            Finish::Integers { bias, factor, .. } | Finish::Scaled { bias, factor } => {
                spread(factor, first, &mut panel.factor[..columns]);
                if let Some(bias) = bias {
                    spread(bias, first, &mut panel.bias[..columns]);
                }
            }
            Finish::Floats { bias, factor } => {
                spread(factor, first, &mut panel.factor_f32[..columns]);
                if let Some(bias) = bias {
                    spread(bias, first, &mut panel.bias_f32[..columns]);
                }
            }
        }
        panel
    }
}

/// Added to a double below 2^51, it leaves the nearest whole number, ties to even, in the lowest bits.
const ROUND: f64 = 6_755_399_441_055_744.0;

per_level! {
    fn bytes_of(sums: &[i32], panel: &Panel, limits: [i32; 3], to: &mut [u8]) {
        let [zero, low, high] = limits;
        // Limits before the zero point is added, so that all in between is small.
        let (low, high) = (f64::from(low) - f64::from(zero), f64::from(high) - f64::from(zero));
        let columns = to.len();
        let (sums, moved) = (&sums[..columns], &panel.moved[..columns]);
        let (bias, factor) = (&panel.bias[..columns], &panel.factor[..columns]);
        for at in 0..columns {
            let value = (f64::from(sums[at].wrapping_add(moved[at])) + bias[at]) * factor[at];
            // What is no number becomes the lower limit.
            let value = if value > low { value } else { low };
            let value = if value < high { value } else { high };
            to[at] = ((value + ROUND).to_bits() as i32).wrapping_add(zero) as u8;
        }
    }
}

per_level! {
    fn scaled_of(sums: &[i32], panel: &Panel, to: &mut [f32]) {
        let columns = to.len();
        let (sums, moved) = (&sums[..columns], &panel.moved[..columns]);
        let (bias, factor) = (&panel.bias[..columns], &panel.factor[..columns]);
        for at in 0..columns {
            to[at] = ((f64::from(sums[at].wrapping_add(moved[at])) + bias[at]) * factor[at]) as f32;
        }
    }
}

per_level! {
    fn floats_of(sums: &[i32], panel: &Panel, biased: bool, to: &mut [f32]) {
        let columns = to.len();
        let (sums, moved) = (&sums[..columns], &panel.moved[..columns]);
        let (bias, factor) = (&panel.bias_f32[..columns], &panel.factor_f32[..columns]);
        for at in 0..columns {
            let value = sums[at].wrapping_add(moved[at]) as f32 * factor[at];
            // Minus zero stays as it is where nothing is added.
            to[at] = if biased { value + bias[at] } else { value };
        }
    }
}

per_level! {
    fn sums_of(sums: &[i32], panel: &Panel, to: &mut [i32]) {
        let columns = to.len();
        for (to, (sum, moved)) in to.iter_mut().zip(sums[..columns].iter().zip(&panel.moved[..columns])) {
            *to = sum.wrapping_add(*moved);
        }
    }
}

impl Finish<'_> {
    /// Stores one row of a panel from element `at` on.
    ///
    /// # Safety
    /// `to` is of the kind that [`Self::check`] passed and holds `panel.columns` elements from `at` on, which nobody else
    /// uses meanwhile.
    pub(super) unsafe fn store(&self, isa: Isa, sums: &[i32], panel: &Panel, to: SharedOutput, at: usize) {
        let columns = panel.columns;
        // SAFETY: the caller's promise, for each of the kinds.
        unsafe {
            match (self, to) {
                (Self::Sums, SharedOutput::Sums(to)) => {
                    sums_of(isa, sums, panel, std::slice::from_raw_parts_mut(to.add(at), columns));
                }
                (Self::Integers { zero, low, high, .. }, SharedOutput::Bytes(to)) => {
                    let to = std::slice::from_raw_parts_mut(to.add(at), columns);
                    bytes_of(isa, sums, panel, [*zero, *low, *high], to);
                }
                (Self::Scaled { .. }, SharedOutput::Floats(to)) => {
                    scaled_of(isa, sums, panel, std::slice::from_raw_parts_mut(to.add(at), columns));
                }
                (Self::Floats { bias, .. }, SharedOutput::Floats(to)) => {
                    let to = std::slice::from_raw_parts_mut(to.add(at), columns);
                    floats_of(isa, sums, panel, bias.is_some(), to);
                }
                _ => {}
            }
        }
    }
}
