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

/// Rows of sums, `stride` numbers apart.
#[derive(Clone, Copy)]
pub(super) struct Sums<'a> {
    pub of: &'a [i32],
    pub stride: usize,
    pub rows: usize,
}

/// Where the rows of a panel go: those places belong to whoever holds it.
struct Target<T> {
    to: *mut T,
    stride: usize,
    rows: usize,
    columns: usize,
}

impl<T: Copy> Target<T> {
    /// `rows` rows of `columns` elements, `stride` elements apart.
    ///
    /// # Safety
    /// They exist, and nobody else uses them meanwhile.
    unsafe fn new(to: *mut T, stride: usize, rows: usize, columns: usize) -> Self {
        Self { to, stride, rows, columns }
    }

    /// Writes the first of `results` to row `row` from column `first` on, as many as there are columns.
    #[inline(always)]
    fn put<const N: usize>(&mut self, row: usize, first: usize, results: [T; N]) {
        assert!(row < self.rows && first < self.columns, "a result lies beyond its target");
        // SAFETY: the row is one of the target's, and no more columns of it are written than there are.
        unsafe {
            let to = self.to.add(row * self.stride + first);
            if self.columns - first >= N {
                to.cast::<[T; N]>().write_unaligned(results);
            } else {
                std::ptr::copy_nonoverlapping(results.as_ptr(), to, self.columns - first);
            }
        }
    }
}

/// What `N` sums of a row become.
trait Become {
    type To: Copy;
    fn of<const N: usize>(&self, sums: &[i32; N], panel: &Panel, first: usize) -> [Self::To; N];
}

/// The `N` numbers of a list from `first` on.
#[inline(always)]
fn some<T, const N: usize>(list: &[T], first: usize) -> &[T; N] {
    let Some(some) = list[first..].first_chunk() else { panic!("a list of sums or factors is too short") };
    some
}

struct ToBytes {
    zero: i32,
    /// Limits before the zero point is added, so that all in between is small.
    low: f64,
    high: f64,
}
impl Become for ToBytes {
    type To = u8;
    #[inline(always)]
    fn of<const N: usize>(&self, sums: &[i32; N], panel: &Panel, first: usize) -> [u8; N] {
        let (moved, bias) = (some::<_, N>(&panel.moved, first), some::<_, N>(&panel.bias, first));
        let factor = some::<_, N>(&panel.factor, first);
        let mut to = [0; N];
        for at in 0..N {
            let value = (f64::from(sums[at].wrapping_add(moved[at])) + bias[at]) * factor[at];
            // What is no number becomes the lower limit.
            let value = if value > self.low { value } else { self.low };
            let value = if value < self.high { value } else { self.high };
            to[at] = ((value + ROUND).to_bits() as i32).wrapping_add(self.zero) as u8;
        }
        to
    }
}

struct ToScaled;
impl Become for ToScaled {
    type To = f32;
    #[inline(always)]
    fn of<const N: usize>(&self, sums: &[i32; N], panel: &Panel, first: usize) -> [f32; N] {
        let (moved, bias) = (some::<_, N>(&panel.moved, first), some::<_, N>(&panel.bias, first));
        let factor = some::<_, N>(&panel.factor, first);
        let mut to = [0.0; N];
        for at in 0..N {
            to[at] = ((f64::from(sums[at].wrapping_add(moved[at])) + bias[at]) * factor[at]) as f32;
        }
        to
    }
}

struct ToFloats {
    biased: bool,
}
impl Become for ToFloats {
    type To = f32;
    #[inline(always)]
    fn of<const N: usize>(&self, sums: &[i32; N], panel: &Panel, first: usize) -> [f32; N] {
        let (moved, bias) = (some::<_, N>(&panel.moved, first), some::<_, N>(&panel.bias_f32, first));
        let factor = some::<_, N>(&panel.factor_f32, first);
        let mut to = [0.0; N];
        for at in 0..N {
            let value = sums[at].wrapping_add(moved[at]) as f32 * factor[at];
            // Minus zero stays as it is where nothing is added.
            to[at] = if self.biased { value + bias[at] } else { value };
        }
        to
    }
}

struct ToSums;
impl Become for ToSums {
    type To = i32;
    #[inline(always)]
    fn of<const N: usize>(&self, sums: &[i32; N], panel: &Panel, first: usize) -> [i32; N] {
        let moved = some::<_, N>(&panel.moved, first);
        std::array::from_fn(|at| sums[at].wrapping_add(moved[at]))
    }
}

/// Sums that are finished together: those of a register of doubles twice, and of one.
const WIDE: usize = 16;
const NARROW: usize = 8;
const _: () = assert!(COLUMNS_MAX.is_multiple_of(WIDE));

/// Columns from `first` on, `N` of them, in every row: what belongs to columns is read once.
#[inline(always)]
fn columns_of<B: Become, const N: usize>(
    becomes: &B,
    sums: Sums<'_>,
    panel: &Panel,
    first: usize,
    to: &mut Target<B::To>,
) {
    for row in 0..sums.rows {
        to.put(row, first, becomes.of::<N>(some(sums.of, row * sums.stride + first), panel, first));
    }
}

/// Rows of sums, each a multiple of [`NARROW`] long, as what they become.
#[inline(always)]
fn finished<B: Become>(becomes: &B, sums: Sums<'_>, panel: &Panel, to: &mut Target<B::To>) {
    let mut first = 0;
    while first < panel.columns {
        if panel.columns - first > NARROW && sums.stride - first >= WIDE {
            columns_of::<B, WIDE>(becomes, sums, panel, first, to);
            first += WIDE;
        } else {
            columns_of::<B, NARROW>(becomes, sums, panel, first, to);
            first += NARROW;
        }
    }
}

macro_rules! finished_at_levels {
    ($($name:ident: $becomes:ty),*) => {$(
        per_level! {
            fn $name(becomes: &$becomes, sums: Sums<'_>, panel: &Panel, to: &mut Target<<$becomes as Become>::To>) {
                finished(becomes, sums, panel, to);
            }
        }
    )*};
}
finished_at_levels!(bytes_of: ToBytes, scaled_of: ToScaled, floats_of: ToFloats, sums_of: ToSums);

impl Finish<'_> {
    /// Stores rows of a panel from element `at` on, `stride` elements apart. Rows of sums are a multiple of 8 long.
    ///
    /// # Safety
    /// `to` is of the kind that [`Self::check`] passed and holds `panel.columns` elements for each row, which nobody else
    /// uses meanwhile.
    pub(super) unsafe fn store(
        &self,
        isa: Isa,
        sums: Sums<'_>,
        panel: &Panel,
        to: SharedOutput,
        [at, stride]: [usize; 2],
    ) {
        let (rows, columns) = (sums.rows, panel.columns);
        // SAFETY: the caller's promise, for each of the kinds.
        unsafe {
            match (self, to) {
                (Self::Sums, SharedOutput::Sums(to)) => {
                    sums_of(isa, &ToSums, sums, panel, &mut Target::new(to.add(at), stride, rows, columns));
                }
                (Self::Integers { zero, low, high, .. }, SharedOutput::Bytes(to)) => {
                    let limit = |limit: i32| f64::from(limit) - f64::from(*zero);
                    let becomes = ToBytes { zero: *zero, low: limit(*low), high: limit(*high) };
                    bytes_of(isa, &becomes, sums, panel, &mut Target::new(to.add(at), stride, rows, columns));
                }
                (Self::Scaled { .. }, SharedOutput::Floats(to)) => {
                    scaled_of(isa, &ToScaled, sums, panel, &mut Target::new(to.add(at), stride, rows, columns));
                }
                (Self::Floats { bias, .. }, SharedOutput::Floats(to)) => {
                    let becomes = ToFloats { biased: bias.is_some() };
                    floats_of(isa, &becomes, sums, panel, &mut Target::new(to.add(at), stride, rows, columns));
                }
                _ => {}
            }
        }
    }
}
