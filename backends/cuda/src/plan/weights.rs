//! Constants of several programs in one section: equal ones lie there once.

use crate::{
    lower::Lowered,
    program::{ALIGNMENT, Place, Program},
};
use planforge_types::Digest;
use std::collections::{BTreeMap, BTreeSet};

/// Where constants lie, by what they are.
pub type Places = BTreeMap<Digest, u64>;

/// Where the constants of programs lie in `bytes`, which all of them share.
pub fn places<'a>(programs: impl IntoIterator<Item = &'a Program>, bytes: &[u8]) -> Places {
    let mut places = Places::new();
    // Programs share constants: each is looked at once.
    let mut seen = BTreeSet::new();
    for buffer in programs.into_iter().flat_map(|program| &program.buffers) {
        if let Place::Weights(at) = buffer.place
            && seen.insert((at, buffer.bytes))
        {
            places.entry(Digest::of(&bytes[at as usize..][..buffer.bytes as usize])).or_insert(at);
        }
    }
    places
}

/// Constants by what they are.
#[derive(Debug, Default)]
pub struct Pool {
    /// What lies before `bytes`, and is held by others.
    known_bytes: u64,
    bytes: Vec<u8>,
    places: Places,
}

impl Pool {
    /// Behind `known_bytes` of constants that lie somewhere already, in these places.
    pub fn behind(known_bytes: u64, places: Places) -> Self {
        Self { known_bytes, bytes: Vec::new(), places }
    }

    /// Moves a program's constants here; its offsets then mean this pool.
    pub fn add(&mut self, lowered: Lowered) -> Program {
        let Lowered { mut program, weights } = lowered;
        for buffer in &mut program.buffers {
            let Place::Weights(at) = &mut buffer.place else { continue };
            let content = &weights[*at as usize..][..buffer.bytes as usize];
            let digest = Digest::of(content);
            *at = *self.places.entry(digest).or_insert_with(|| {
                let place = self.known_bytes + self.bytes.len() as u64;
                self.bytes.extend(content);
                let end = (self.bytes.len() as u64).next_multiple_of(ALIGNMENT);
                self.bytes.resize(usize::try_from(end).expect("weights fit in memory"), 0);
                place
            });
        }
        program
    }

    /// The constants that lie nowhere else. Programs that were added say how long all are through
    /// [`Program::weight_bytes`].
    pub fn into_bytes(self, programs: &mut [Program]) -> Vec<u8> {
        for program in programs {
            program.weight_bytes = self.len_bytes();
        }
        self.bytes
    }

    /// With those that others hold.
    pub fn len_bytes(&self) -> u64 {
        self.known_bytes + self.bytes.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Buffer;

    fn lowered(constants: &[&[u8]]) -> Lowered {
        let mut lowered = Lowered { program: Program::default(), weights: Vec::new() };
        for constant in constants {
            let at = lowered.weights.len() as u64;
            lowered.weights.extend_from_slice(constant);
            lowered.weights.resize(lowered.weights.len().next_multiple_of(ALIGNMENT as usize), 0);
            let (name, bytes) = (String::new(), constant.len() as u64);
            lowered.program.buffers.push(Buffer { name, bytes, place: Place::Weights(at) });
        }
        lowered
    }

    #[test]
    fn equal_constants_lie_there_once() {
        let mut pool = Pool::default();
        let one = pool.add(lowered(&[b"one", b"two", b"one"]));
        let two = pool.add(lowered(&[b"two", b"three"]));
        let places = |program: &Program| program.buffers.iter().map(|buffer| buffer.place).collect::<Vec<_>>();
        assert_eq!(places(&one), [0, 256, 0].map(Place::Weights));
        assert_eq!(places(&two), [256, 512].map(Place::Weights));
        let mut programs = [one, two];
        let bytes = pool.into_bytes(&mut programs);
        assert_eq!((bytes.len(), &bytes[512..517]), (768, &b"three"[..]));
        assert!(programs.iter().all(|program| program.weight_bytes == 768));
        let mut again = Pool::behind(bytes.len() as u64, super::places(&programs, &bytes));
        let mut three = [again.add(lowered(&[b"one", b"three", b"four"]))];
        assert_eq!(places(&three[0]), [0, 512, 768].map(Place::Weights));
        let more = again.into_bytes(&mut three);
        assert_eq!((&more[..4], more.len(), three[0].weight_bytes), (&b"four"[..], 256, 1024));
    }
}
