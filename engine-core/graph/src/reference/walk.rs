//! Index arithmetic the operators share.

/// Row-major strides in elements.
pub fn strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1isize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as isize;
    }
    strides
}

/// Strides with which a tensor of `shape` is read as if it had the shape `to`: 0 along broadcast axes.
pub fn broadcast_strides(shape: &[usize], to: &[usize]) -> Vec<isize> {
    let missing = to.len() - shape.len();
    let own = strides(shape);
    (0..to.len())
        .map(|axis| match axis.checked_sub(missing) {
            Some(inner) if shape[inner] != 1 => own[inner],
            _ => 0,
        })
        .collect()
}

/// Visits every index of `shape` in row-major order, with the offset each set of strides gives it.
pub fn walk<const N: usize>(shape: &[usize], strides: [&[isize]; N], mut visit: impl FnMut([isize; N])) {
    walk_from(shape, strides, [0; N], &mut visit);
}

fn walk_from<const N: usize>(
    shape: &[usize],
    strides: [&[isize]; N],
    offsets: [isize; N],
    visit: &mut impl FnMut([isize; N]),
) {
    match shape.split_first() {
        None => visit(offsets),
        Some((&size, inner)) => {
            let mut offsets = offsets;
            for _ in 0..size {
                walk_from(inner, strides.map(|strides| &strides[1..]), offsets, visit);
                for (offset, strides) in offsets.iter_mut().zip(strides) {
                    *offset += strides[0];
                }
            }
        }
    }
}

/// A shape seen as (outer, size of `axis`, inner).
pub fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}
