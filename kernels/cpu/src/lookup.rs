//! Elements found by indices: taken, or put; and the first of lines in order.

use crate::pool::{ThreadPool, for_parts};
use std::cmp::Ordering;

/// Where runs of elements lie: for each index over `sizes` at its strides, and further by as many given indices as there
/// are `limits`, each within its limit and at its stride.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    sizes: Vec<usize>,
    strides: Vec<usize>,
    /// Size and stride of what each given index counts.
    limits: Vec<(usize, usize)>,
    /// Elements that follow each other.
    run: usize,
    count: usize,
    needs: usize,
}

/// Why a place could not be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("index {index} is outside of {size}")]
pub struct OutOfRange {
    pub index: i64,
    pub size: usize,
}

/// Indices as they are given.
#[derive(Clone, Copy, Debug)]
pub enum Indices<'a> {
    Narrow(&'a [i32]),
    Wide(&'a [i64]),
}

impl Indices<'_> {
    fn len(self) -> usize {
        match self {
            Self::Narrow(all) => all.len(),
            Self::Wide(all) => all.len(),
        }
    }

    fn get(self, at: usize) -> i64 {
        match self {
            Self::Narrow(all) => i64::from(all[at]),
            Self::Wide(all) => all[at],
        }
    }
}

impl Lookup {
    /// `None` when sizes overflow.
    pub fn new(sizes: &[usize], strides: &[usize], limits: &[(usize, usize)], run: usize) -> Option<Self> {
        if sizes.len() != strides.len() {
            return None;
        }
        let count = sizes.iter().try_fold(1usize, |count, &size| count.checked_mul(size))?;
        count.checked_mul(limits.len().max(1))?.checked_mul(run.max(1))?.checked_mul(8)?;
        let both = sizes.iter().copied().zip(strides.iter().copied()).chain(limits.iter().copied());
        let last = both
            .into_iter()
            .try_fold(0usize, |last, (size, stride)| size.saturating_sub(1).checked_mul(stride)?.checked_add(last))?;
        let needs = if count == 0 { 0 } else { last.checked_add(run)? };
        needs.checked_mul(8)?;
        let (sizes, strides, limits) = (sizes.to_vec(), strides.to_vec(), limits.to_vec());
        Some(Self { sizes, strides, limits, run, count, needs })
    }

    /// Runs.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Elements of a run.
    pub fn run_len(&self) -> usize {
        self.run
    }

    /// How many indices are given.
    pub fn indices(&self) -> usize {
        self.count * self.limits.len()
    }

    /// Elements that there must be.
    pub fn needs(&self) -> usize {
        self.needs
    }

    /// Where run `at` begins.
    fn place(&self, mut at: usize, indices: Indices<'_>) -> Result<usize, OutOfRange> {
        let mut place = 0;
        for (given, &(size, stride)) in self.limits.iter().enumerate() {
            let index = indices.get(at * self.limits.len() + given);
            let resolved = if index < 0 { index.checked_add(size as i64) } else { Some(index) };
            let resolved = resolved.and_then(|index| usize::try_from(index).ok()).filter(|&index| index < size);
            place += resolved.ok_or(OutOfRange { index, size })? * stride;
        }
        for (&size, &stride) in self.sizes.iter().zip(&self.strides).rev() {
            place += at % size * stride;
            at /= size;
        }
        Ok(place)
    }

    fn check(&self, elements: usize, indices: Indices<'_>, runs: usize) {
        assert!(elements >= self.needs, "there are fewer elements than places");
        assert!(
            indices.len() >= self.indices() && runs >= self.count * self.run,
            "there are fewer indices or runs than places"
        );
    }

    /// Copies every run to the next place of `to`; all of them are `bytes` for each element.
    ///
    /// # Panics
    /// When a buffer is shorter than the lookup says.
    pub fn take(&self, bytes: usize, from: &[u8], indices: Indices<'_>, to: &mut [u8]) -> Result<(), OutOfRange> {
        assert!(bytes > 0);
        self.check(from.len() / bytes, indices, to.len() / bytes);
        let run = self.run * bytes;
        if run == 0 {
            return Ok(());
        }
        for (at, to) in to.chunks_exact_mut(run).take(self.count).enumerate() {
            let place = self.place(at, indices)? * bytes;
            to.copy_from_slice(&from[place..place + run]);
        }
        Ok(())
    }

    /// Brings every run of `updates` together with what is at its place, in order.
    ///
    /// # Panics
    /// When a buffer is shorter than the lookup says.
    pub fn put<T: Copy>(
        &self,
        updates: &[T],
        indices: Indices<'_>,
        to: &mut [T],
        meet: impl Fn(T, T) -> T,
    ) -> Result<(), OutOfRange> {
        self.check(to.len(), indices, updates.len());
        if self.run == 0 {
            return Ok(());
        }
        for (at, updates) in updates.chunks_exact(self.run).take(self.count).enumerate() {
            let place = self.place(at, indices)?;
            for (to, update) in to[place..place + self.run].iter_mut().zip(updates) {
                *to = meet(*to, *update);
            }
        }
        Ok(())
    }
}

/// The first `k` of each line of `[outer][size][inner]` in the order of `compare`, of equal ones the earlier; and their
/// places.
///
/// # Panics
/// When a buffer is not as long as the sizes say, or lines are shorter than `k`.
pub fn first_in_order<T: Copy + Send + Sync>(
    pool: &ThreadPool,
    [outer, size, inner]: [usize; 3],
    k: usize,
    compare: impl Fn(&T, &T) -> Ordering + Sync,
    from: &[T],
    values: &mut [T],
    places: &mut [i64],
) {
    let lens = [size, k].map(|along| outer.checked_mul(along).and_then(|len| len.checked_mul(inner)));
    assert!(k <= size && u32::try_from(size).is_ok(), "lines are shorter than what is taken of them, or too long");
    assert!(lens == [Some(from.len()), Some(values.len())] && places.len() == values.len(), "the lines are not whole");
    if values.is_empty() {
        return;
    }
    let image = k * inner;
    let order_of = |image: usize, line: usize| {
        let at = |step: u32| &from[(image * size + step as usize) * inner + line];
        let by = |a: &u32, b: &u32| compare(at(*a), at(*b)).then(a.cmp(b));
        let mut order: Vec<u32> = (0..size as u32).collect();
        if k < size {
            order.select_nth_unstable_by(k, by);
            order.truncate(k);
        }
        order.sort_unstable_by(by);
        order
    };
    for_parts(pool, places, image, |task, places| {
        for line in 0..inner {
            for (rank, step) in order_of(task, line).into_iter().enumerate() {
                places[rank * inner + line] = i64::from(step);
            }
        }
    });
    for (task, (values, places)) in values.chunks_exact_mut(image).zip(places.chunks_exact(image)).enumerate() {
        for (at, (value, &place)) in values.iter_mut().zip(places).enumerate() {
            *value = from[(task * size + place as usize) * inner + at % inner];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_taken_and_put_where_indices_say() {
        // Rows of a matrix of 4 by 3.
        let rows = Lookup::new(&[2], &[0], &[(4, 3)], 3).unwrap();
        let from: Vec<u8> = (0..12).collect();
        let mut to = [0u8; 6];
        assert_eq!(rows.take(1, &from, Indices::Wide(&[-1, 1]), &mut to), Ok(()));
        assert_eq!(to, [9, 10, 11, 3, 4, 5]);
        assert_eq!(rows.take(1, &from, Indices::Narrow(&[4, 0]), &mut to), Err(OutOfRange { index: 4, size: 4 }));
        assert_eq!(
            rows.take(1, &from, Indices::Wide(&[0, i64::MIN]), &mut to),
            Err(OutOfRange { index: i64::MIN, size: 4 })
        );
        // Elements along the columns.
        let columns = Lookup::new(&[2, 2], &[3, 0], &[(3, 1)], 1).unwrap();
        let mut sums = [0i32; 6];
        assert_eq!(columns.put(&[1, 2, 3, 4], Indices::Wide(&[2, 2, 0, -1]), &mut sums, |a, b| a + b), Ok(()));
        assert_eq!(sums, [0, 0, 3, 3, 0, 4]);
        assert_eq!(Lookup::new(&[usize::MAX, 2], &[1, 1], &[], 1), None);
        assert_eq!(Lookup::new(&[2], &[usize::MAX], &[(3, 1)], 1), None);
    }

    #[test]
    fn the_first_come_in_order_and_equal_ones_as_they_stand() {
        let from = [3.0f32, 1.0, 2.0, 5.0, 3.0, f32::NEG_INFINITY];
        let (mut values, mut places) = ([0.0; 4], [0; 4]);
        let pool = ThreadPool::new(2).unwrap();
        first_in_order(&pool, [1, 3, 2], 2, |a, b| b.total_cmp(a), &from, &mut values, &mut places);
        assert_eq!((values, places), ([3.0, 5.0, 3.0, 1.0], [0, 1, 2, 0]));
    }
}
