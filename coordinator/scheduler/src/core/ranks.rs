//! A line of waiting jobs that knows at which place each of them stands.
//!
//! Sorted pieces of bounded length: to insert, to remove and to tell a place each take one piece and the lengths of those
//! before it, a few hundred steps for a hundred thousand jobs.

use super::model::JobId;

/// Serves smaller ranks first.
pub(super) type Rank = (i64, JobId);

/// Ranks in one piece; a longer one is split in two.
const PIECE_MAX: usize = 512;

#[derive(Debug, Default)]
pub(super) struct Ranks {
    /// None is empty.
    pieces: Vec<Vec<Rank>>,
    count: usize,
}

impl Ranks {
    /// The piece that has the rank, or in which it would stand.
    fn piece_of(&self, rank: &Rank) -> usize {
        let at = self.pieces.partition_point(|piece| piece.last().is_some_and(|last| last < rank));
        at.min(self.pieces.len().saturating_sub(1))
    }

    pub fn insert(&mut self, rank: Rank) {
        if self.pieces.is_empty() {
            self.pieces.push(Vec::new());
        }
        let at = self.piece_of(&rank);
        let Some(piece) = self.pieces.get_mut(at) else { return };
        let Err(place) = piece.binary_search(&rank) else { return };
        piece.insert(place, rank);
        self.count += 1;
        if piece.len() > PIECE_MAX {
            let rest = piece.split_off(PIECE_MAX / 2);
            self.pieces.insert(at + 1, rest);
        }
    }

    pub fn remove(&mut self, rank: &Rank) {
        let at = self.piece_of(rank);
        let Some(piece) = self.pieces.get_mut(at) else { return };
        let Ok(place) = piece.binary_search(rank) else { return };
        piece.remove(place);
        self.count -= 1;
        if piece.is_empty() {
            self.pieces.remove(at);
        }
    }

    /// How many stand before this rank, whether or not it is among them.
    pub fn before(&self, rank: &Rank) -> usize {
        let at = self.piece_of(rank);
        let whole: usize = self.pieces.iter().take(at).map(Vec::len).sum();
        whole + self.pieces.get(at).map_or(0, |piece| piece.partition_point(|other| other < rank))
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = &Rank> {
        self.pieces.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn rank(number: u16) -> Rank {
        (i64::from(number / 4), format!("j{}", number % 4).as_str().into())
    }

    proptest! {
        #[test]
        fn places_are_those_of_a_sorted_set(
            steps in proptest::collection::vec((any::<bool>(), 0..6_000_u16), 0..4_000),
            asked in proptest::collection::vec(0..6_000_u16, 20),
        ) {
            let (mut ranks, mut set) = (Ranks::default(), BTreeSet::new());
            for (insert, number) in steps {
                if insert {
                    ranks.insert(rank(number));
                    set.insert(rank(number));
                } else {
                    ranks.remove(&rank(number));
                    set.remove(&rank(number));
                }
            }
            prop_assert_eq!((ranks.len(), ranks.is_empty()), (set.len(), set.is_empty()));
            prop_assert!(ranks.iter().eq(set.iter()));
            for number in asked {
                prop_assert_eq!(ranks.before(&rank(number)), set.range(..rank(number)).count());
            }
        }
    }

    #[test]
    fn many_that_come_in_order_are_split_into_pieces() {
        let mut ranks = Ranks::default();
        (0..10_000).for_each(|number| ranks.insert((number, "j".into())));
        assert!(ranks.pieces.iter().all(|piece| piece.len() <= PIECE_MAX) && ranks.pieces.len() > 10);
        assert_eq!(ranks.before(&(7_777, "j".into())), 7_777);
        (0..10_000).for_each(|number| ranks.remove(&(number, "j".into())));
        assert!(ranks.is_empty() && ranks.pieces.is_empty());
    }
}
