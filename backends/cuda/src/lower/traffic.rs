//! Bytes that a step reads and writes: what it needs, each element once, whatever its views repeat or skip.
//!
//! Caches are not modelled: an element that is loaded again from device memory counts once, one that an earlier step
//! left in the L2 cache counts too.

use crate::{
    codegen::expr::Load,
    program::{ConvWork, Work},
    view::View,
};

/// Of a step whose views say everything.
pub(super) fn of_work(work: &Work) -> u64 {
    match work {
        Work::Conv(conv) => of_conv(conv),
        _ => {
            let (read, written) = work.views();
            distinct_bytes(read.into_iter().chain([written]))
        }
    }
}

/// Of an element-wise kernel: tables by the rows that are looked up, at most.
pub(super) fn of_loads(loads: &[&Load], out: &View) -> u64 {
    let mut seen: Vec<&Load> = Vec::new();
    for load in loads {
        if !seen.contains(load) {
            seen.push(load);
        }
    }
    let tables: u64 = seen.iter().filter(|load| load.index.is_some()).map(|load| of_lookup(load)).sum();
    let plain = seen.iter().filter(|load| load.index.is_none()).map(|load| &load.view);
    let indices = seen.iter().filter_map(|load| load.index.as_ref()).map(|index| &index.view);
    tables + distinct_bytes(plain.chain(indices).chain([out]))
}

/// What windows of `kernel` at distances of `strides` leave in an image of `x`'s size, as bytes of `x`.
pub(super) fn of_windows(x: &View, y: &View, kernel: [u64; 2], strides: [u64; 2]) -> u64 {
    let covered = |axis: usize| match strides[axis - 2] > kernel[axis - 2] {
        true => x.dims[axis].min(y.dims[axis] * kernel[axis - 2]),
        false => x.dims[axis],
    };
    x.dims[0] * x.dims[1] * covered(2) * covered(3) * x.kind.bytes()
}

fn of_conv(conv: &ConvWork) -> u64 {
    // Of the two arrangements of a depthwise convolution's weights a tactic reads one.
    let rest = [Some(&conv.w), conv.bias.as_ref(), conv.residual.as_ref(), Some(&conv.y)];
    let kernel = [conv.w.dims[2], conv.w.dims[3]];
    of_windows(&conv.x, &conv.y, kernel, conv.strides) + distinct_bytes(rest.into_iter().flatten())
}

/// Elements of a table: one for each index and position in its row, at most the whole table.
fn of_lookup(load: &Load) -> u64 {
    let Some(index) = &load.index else { return 0 };
    let moves = load.view.strides.iter().zip(&index.view.strides).map(|(table, index)| *table > 0 || *index > 0);
    let looked_up: u64 = load.view.dims.iter().zip(moves).filter(|(_, moves)| *moves).map(|(dim, _)| dim).product();
    let whole = load.view.distinct_elements() * index.rows;
    looked_up.min(whole) * load.view.kind.bytes()
}

fn distinct_bytes<'a>(views: impl Iterator<Item = &'a View>) -> u64 {
    let mut seen: Vec<&View> = Vec::new();
    for view in views {
        if !seen.contains(&view) {
            seen.push(view);
        }
    }
    seen.iter().map(|view| view.distinct_elements() * view.kind.bytes()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        codegen::expr::Index,
        view::{BufferId, Kind},
    };

    fn rows(buffer: u32, kind: Kind, dims: &[u64]) -> View {
        View::rows(BufferId(buffer), kind, dims)
    }

    /// `table[30522][768]` looked up by `ids[8][128]`, whose view repeats rows where `repeats` says.
    fn embedding(repeats: bool) -> (Load, View) {
        let out = rows(2, Kind::F16, &[8, 128, 768]);
        let index_strides = vec![if repeats { 0 } else { 128 }, 1, 0];
        let ids = View { dims: out.dims.clone(), strides: index_strides, ..rows(1, Kind::I64, &[8, 128]) };
        let table = View { dims: out.dims.clone(), strides: vec![0, 0, 1], ..rows(0, Kind::F16, &[30522, 768]) };
        (Load { view: table, index: Some(Box::new(Index { view: ids, stride: 768, rows: 30522 })) }, out)
    }

    #[test]
    fn of_a_table_the_rows_that_are_looked_up_count() {
        let (load, out) = embedding(false);
        let row_bytes = 768 * 2;
        let written = 8 * 128 * row_bytes;
        assert_eq!(of_loads(&[&load], &out), 8 * 128 * row_bytes + 8 * 128 * 8 + written);
        assert_eq!(of_loads(&[&load, &load], &out), of_loads(&[&load], &out), "the same load again");
        let (load, out) = embedding(true);
        assert_eq!(of_loads(&[&load], &out), 128 * row_bytes + 128 * 8 + written, "the same rows for every batch");
    }

    #[test]
    fn a_small_table_counts_once() {
        let (mut load, out) = embedding(false);
        load.index.as_mut().unwrap().rows = 2;
        assert_eq!(of_loads(&[&load], &out), 2 * 768 * 2 + 8 * 128 * 8 + 8 * 128 * 768 * 2);
    }

    #[test]
    fn what_is_repeated_counts_once() {
        let out = rows(1, Kind::F16, &[4, 64]);
        let bias = rows(0, Kind::F16, &[64]).broadcast(&[4, 64]).unwrap();
        let load = |view: &View| Load { view: view.clone(), index: None };
        assert_eq!(of_loads(&[&load(&bias)], &out), 64 * 2 + 4 * 64 * 2);
        // A nearest resize reads each pixel for several.
        let small = View { dims: vec![8, 2, 8, 2], strides: vec![8, 0, 1, 0], ..rows(0, Kind::F16, &[8, 8]) };
        let large = rows(1, Kind::F16, &[16, 16]);
        assert_eq!(of_loads(&[&load(&small)], &large), 8 * 8 * 2 + 16 * 16 * 2);
        // Windows that overlap read no element that is not there.
        let windows = View { dims: vec![6, 3], strides: vec![1, 1], ..rows(0, Kind::F16, &[8]) };
        assert_eq!(windows.distinct_elements(), 8);
    }

    #[test]
    fn windows_that_jump_leave_pixels_out() {
        let x = View::channels_last(BufferId(0), Kind::F16, &[2, 64, 56, 56]);
        let y = View::channels_last(BufferId(1), Kind::F16, &[2, 64, 28, 28]);
        assert_eq!(of_windows(&x, &y, [1, 1], [2, 2]), 2 * 64 * 28 * 28 * 2);
        assert_eq!(of_windows(&x, &y, [3, 3], [2, 2]), 2 * 64 * 56 * 56 * 2);
    }
}
