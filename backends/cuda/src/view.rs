//! How a tensor lies in device memory: logical dimensions, strides in elements, and where it begins.

use planforge_graph::ir::ElementType;
use serde::{Deserialize, Serialize};

/// What an element is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    F32,
    F16,
    Bf16,
    F64,
    I32,
    I64,
    I8,
    I16,
    U8,
    U16,
    U32,
    U64,
    Bool,
}

impl Kind {
    pub fn bytes(self) -> u64 {
        match self {
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "fp32",
            Self::F16 => "fp16",
            Self::Bf16 => "bf16",
            Self::F64 => "fp64",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::Bool => "bool",
        }
    }

    /// Whether engines choose how it is stored, and compute it in f32; what has 64 bits stays as it is.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// The storage that keeps every value of `element`.
    pub fn of(element: ElementType) -> Self {
        match element {
            ElementType::F32 => Self::F32,
            ElementType::F16 => Self::F16,
            ElementType::Bf16 => Self::Bf16,
            ElementType::F64 => Self::F64,
            ElementType::I32 => Self::I32,
            ElementType::I64 => Self::I64,
            ElementType::I8 => Self::I8,
            ElementType::I16 => Self::I16,
            ElementType::U8 => Self::U8,
            ElementType::U16 => Self::U16,
            ElementType::U32 => Self::U32,
            ElementType::U64 => Self::U64,
            ElementType::Bool => Self::Bool,
        }
    }

    pub fn element(self) -> ElementType {
        match self {
            Self::F32 => ElementType::F32,
            Self::F16 => ElementType::F16,
            Self::Bf16 => ElementType::Bf16,
            Self::F64 => ElementType::F64,
            Self::I32 => ElementType::I32,
            Self::I64 => ElementType::I64,
            Self::I8 => ElementType::I8,
            Self::I16 => ElementType::I16,
            Self::U8 => ElementType::U8,
            Self::U16 => ElementType::U16,
            Self::U32 => ElementType::U32,
            Self::U64 => ElementType::U64,
            Self::Bool => ElementType::Bool,
        }
    }
}

/// Index of a buffer of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BufferId(pub u32);

/// A tensor, or a part of one, in a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct View {
    pub buffer: BufferId,
    /// First element, counted in elements of `kind`.
    pub offset: u64,
    pub kind: Kind,
    pub dims: Vec<u64>,
    /// Elements between neighbours along each dimension; 0 repeats one.
    pub strides: Vec<u64>,
}

/// Strides of a dense tensor whose last dimension is the fastest.
pub fn row_strides(dims: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis].max(1);
    }
    strides
}

/// Strides of a dense tensor whose dimensions are nested in `order`, slowest first.
pub fn strides_in(dims: &[u64], order: &[usize]) -> Vec<u64> {
    let mut strides = vec![0; dims.len()];
    let mut next = 1;
    for &axis in order.iter().rev() {
        strides[axis] = next;
        next *= dims[axis].max(1);
    }
    strides
}

/// Slowest to fastest: the order of an image's dimensions when channels are last.
pub const CHANNELS_LAST: [usize; 4] = [0, 2, 3, 1];

impl View {
    /// Dense, last dimension fastest.
    pub fn rows(buffer: BufferId, kind: Kind, dims: &[u64]) -> Self {
        Self { buffer, offset: 0, kind, dims: dims.to_vec(), strides: row_strides(dims) }
    }

    /// Dense image with its channels fastest.
    pub fn channels_last(buffer: BufferId, kind: Kind, dims: &[u64]) -> Self {
        Self { buffer, offset: 0, kind, dims: dims.to_vec(), strides: strides_in(dims, &CHANNELS_LAST) }
    }

    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Elements of the buffer that it has, each once: what it repeats, or reaches again by windows that overlap, is
    /// one.
    pub(crate) fn distinct_elements(&self) -> u64 {
        if self.elements() == 0 {
            return 0;
        }
        let axes = || self.dims.iter().zip(&self.strides);
        let places: u64 = axes().filter(|(_, stride)| **stride > 0).map(|(dim, _)| dim).product();
        let span = axes().map(|(dim, stride)| (dim - 1) * stride).sum::<u64>() + 1;
        places.min(span)
    }

    /// One past the last element it touches, counted from the buffer's begin, in bytes.
    pub fn end_bytes(&self) -> Option<u64> {
        if self.elements() == 0 {
            return self.offset.checked_mul(self.kind.bytes());
        }
        let mut last = self.offset;
        for (dim, stride) in self.dims.iter().zip(&self.strides) {
            last = last.checked_add((dim - 1).checked_mul(*stride)?)?;
        }
        last.checked_add(1)?.checked_mul(self.kind.bytes())
    }

    /// Dense in the order of its dimensions, sizes of 1 apart.
    pub fn is_rows(&self) -> bool {
        self.has_strides(&row_strides(&self.dims))
    }

    /// Whether its strides are these wherever they matter.
    pub fn has_strides(&self, strides: &[u64]) -> bool {
        let mut axes = self.dims.iter().zip(self.strides.iter().zip(strides));
        axes.all(|(dim, (have, want))| *dim == 1 || have == want)
    }

    /// Whether the two are the same elements in the same order: strides along sizes of 1 say nothing.
    pub fn is_same(&self, other: &Self) -> bool {
        let place = |view: &Self| (view.buffer, view.offset, view.kind);
        place(self) == place(other) && self.dims == other.dims && self.has_strides(&other.strides)
    }

    /// The dimensions in the order given.
    pub fn permuted(&self, perm: &[usize]) -> Self {
        let pick = |from: &[u64]| perm.iter().map(|&axis| from[axis]).collect();
        Self { dims: pick(&self.dims), strides: pick(&self.strides), ..self.clone() }
    }

    /// Broadcast to `dims`, as numpy does; `None` where the shapes do not fit.
    pub fn broadcast(&self, dims: &[u64]) -> Option<Self> {
        let lead = dims.len().checked_sub(self.rank())?;
        let mut strides = vec![0; lead];
        for (axis, (&dim, &stride)) in self.dims.iter().zip(&self.strides).enumerate() {
            match dims[lead + axis] {
                want if want == dim => strides.push(if dim == 1 { 0 } else { stride }),
                _ if dim == 1 => strides.push(0),
                _ => return None,
            }
        }
        Some(Self { dims: dims.to_vec(), strides, ..self.clone() })
    }

    /// A part along `axis`.
    pub fn slice(&self, axis: usize, start: u64, length: u64) -> Self {
        let mut part = self.clone();
        part.offset += start * self.strides[axis];
        part.dims[axis] = length;
        part
    }

    /// The same elements under other dimensions without moving any; `None` where that is impossible.
    ///
    /// Both shapes are cut into groups of equal products; a group of the old one must lie evenly spaced.
    pub fn reshaped(&self, dims: &[u64]) -> Option<Self> {
        if self.elements() != dims.iter().product::<u64>() {
            return None;
        }
        let old: Vec<(u64, u64)> =
            self.dims.iter().copied().zip(self.strides.iter().copied()).filter(|(dim, _)| *dim != 1).collect();
        let mut strides = vec![0; dims.len()];
        let (mut at, mut axis) = (0, 0);
        while axis < dims.len() {
            if dims[axis] == 1 {
                axis += 1;
                continue;
            }
            // The smallest groups of equal products.
            let (first_old, first_new) = (at, axis);
            let (mut old_product, mut new_product) = (old.get(at)?.0, dims[axis]);
            at += 1;
            axis += 1;
            while old_product != new_product {
                if old_product < new_product {
                    old_product *= old.get(at)?.0;
                    at += 1;
                } else {
                    new_product *= *dims.get(axis)?;
                    axis += 1;
                }
            }
            for pair in old[first_old..at].windows(2) {
                if pair[0].1 != pair[1].1 * pair[1].0 {
                    return None;
                }
            }
            let mut stride = old[at - 1].1;
            for new in (first_new..axis).rev() {
                strides[new] = stride;
                stride *= dims[new];
            }
        }
        Some(Self { dims: dims.to_vec(), strides, ..self.clone() })
    }

    /// Order of its dimensions in memory, slowest first; sizes of 1 keep their place in the logical order.
    pub fn memory_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.rank()).collect();
        order.sort_by_key(|&axis| (std::cmp::Reverse(if self.dims[axis] == 1 { 0 } else { self.strides[axis] }), axis));
        order
    }

    /// Whether the channels (dimension 1) of an image lie next to each other and the rest follows densely, apart from
    /// a pixel pitch that may be wider: what the libraries call NHWC, or a channel slice of it.
    pub fn is_channels_last(&self) -> bool {
        if self.rank() != 4 {
            return false;
        }
        let [n, c, h, w] = [0, 1, 2, 3].map(|axis| self.dims[axis]);
        let pitch = if w > 1 {
            self.strides[3]
        } else if h > 1 {
            self.strides[2]
        } else if n > 1 {
            self.strides[0]
        } else {
            c
        };
        let row = w.checked_mul(pitch);
        let whole = row.and_then(|row| h.checked_mul(row));
        matches!((whole, row), (Some(whole), Some(row)) if pitch >= c && self.has_strides(&[whole, 1, row, pitch]))
    }

    /// Elements from one pixel to the next, of a view that [`View::is_channels_last`].
    pub fn pixel_pitch(&self) -> u64 {
        let axis = [3, 2, 0].into_iter().find(|&axis| self.dims[axis] > 1);
        let shift = |axis: usize| match axis {
            3 => 1,
            2 => self.dims[3],
            _ => self.dims[2] * self.dims[3],
        };
        axis.map_or(self.dims[1], |axis| self.strides[axis] / shift(axis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(dims: &[u64]) -> View {
        View::rows(BufferId(0), Kind::F16, dims)
    }

    #[test]
    fn reshapes_move_nothing_or_are_refused() {
        let view = rows(&[2, 3, 4]);
        assert_eq!(view.reshaped(&[6, 4]).unwrap().strides, [4, 1]);
        assert_eq!(view.reshaped(&[2, 1, 12]).unwrap().strides, [12, 0, 1]);
        assert_eq!(view.reshaped(&[5, 5]), None);
        let swapped = view.permuted(&[1, 0, 2]);
        assert_eq!(swapped.reshaped(&[6, 4]), None);
        assert_eq!(swapped.reshaped(&[3, 2, 2, 2]).unwrap().strides, [4, 12, 2, 1]);
        let image = View::channels_last(BufferId(0), Kind::F16, &[2, 8, 1, 1]);
        assert_eq!(image.reshaped(&[2, 8]).unwrap().strides, [8, 1]);
        let image = View::channels_last(BufferId(0), Kind::F16, &[2, 8, 3, 3]);
        assert_eq!(image.reshaped(&[2, 72]), None);
        assert_eq!(image.reshaped(&[2, 8, 9]).unwrap().strides, [72, 1, 8]);
    }

    #[test]
    fn channel_slices_are_channels_last_with_a_wider_pitch() {
        let image = View::channels_last(BufferId(0), Kind::F16, &[2, 8, 5, 7]);
        assert!(image.is_channels_last());
        assert_eq!(image.pixel_pitch(), 8);
        let part = image.slice(1, 2, 4);
        assert!(part.is_channels_last());
        assert_eq!((part.pixel_pitch(), part.offset), (8, 2));
        assert_eq!(part.end_bytes(), Some((2 * 5 * 7 * 8 - 2) * 2));
        assert!(!rows(&[2, 8, 5, 7]).is_channels_last());
        let pixel = View::channels_last(BufferId(0), Kind::F16, &[3, 8, 1, 1]).slice(1, 0, 4);
        assert!(pixel.is_channels_last());
        assert_eq!(pixel.pixel_pitch(), 8);
    }

    #[test]
    fn a_stride_along_one_element_tells_no_views_apart() {
        let view = rows(&[1, 3, 4]);
        let same = View { strides: vec![0, 4, 1], ..view.clone() };
        assert!(view.is_same(&same) && view != same);
        assert!(!view.is_same(&View { strides: vec![12, 1, 3], ..view.clone() }));
        assert!(!view.is_same(&View { offset: 1, ..view.clone() }));
    }

    #[test]
    fn broadcasting_repeats_by_a_stride_of_zero() {
        let bias = rows(&[3, 1]);
        assert_eq!(bias.broadcast(&[2, 3, 4]).unwrap().strides, [0, 1, 0]);
        assert_eq!(bias.broadcast(&[2, 4]), None);
    }
}
