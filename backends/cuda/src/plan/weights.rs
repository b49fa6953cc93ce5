//! Constants of several programs in one section: equal ones lie there once.

use crate::{
    lower::Lowered,
    program::{ALIGNMENT, Place, Program},
};
use planforge_types::Digest;
use std::collections::BTreeMap;

/// Constants by what they are.
#[derive(Debug, Default)]
pub struct Pool {
    bytes: Vec<u8>,
    places: BTreeMap<Digest, u64>,
}

impl Pool {
    /// Of constants that lie somewhere already, as `program` names them.
    pub fn of(program: &Program, bytes: Vec<u8>) -> Self {
        let mut places = BTreeMap::new();
        for buffer in &program.buffers {
            if let Place::Weights(at) = buffer.place {
                places.entry(Digest::of(&bytes[at as usize..][..buffer.bytes as usize])).or_insert(at);
            }
        }
        Self { bytes, places }
    }

    /// Moves a program's constants here; its offsets then mean this pool.
    pub fn add(&mut self, lowered: Lowered) -> Program {
        let Lowered { mut program, weights } = lowered;
        for buffer in &mut program.buffers {
            let Place::Weights(at) = &mut buffer.place else { continue };
            let content = &weights[*at as usize..][..buffer.bytes as usize];
            let digest = Digest::of(content);
            *at = *self.places.entry(digest).or_insert_with(|| {
                let place = self.bytes.len() as u64;
                self.bytes.extend(content);
                let end = (self.bytes.len() as u64).next_multiple_of(ALIGNMENT);
                self.bytes.resize(usize::try_from(end).expect("weights fit in memory"), 0);
                place
            });
        }
        program
    }

    /// All constants. Programs that were added say how long they are through [`Program::weight_bytes`].
    pub fn into_bytes(self, programs: &mut [Program]) -> Vec<u8> {
        for program in programs {
            program.weight_bytes = self.bytes.len() as u64;
        }
        self.bytes
    }

    pub fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// What lies behind the first `known` bytes: what was added to a pool that others hold already.
    pub fn tail(&self, known: u64) -> &[u8] {
        &self.bytes[known as usize..]
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
        let mut again = Pool::of(&programs[1], bytes);
        let known = again.len_bytes();
        let three = again.add(lowered(&[b"three", b"four"]));
        assert_eq!(places(&three), [512, 768].map(Place::Weights));
        assert_eq!(&again.tail(known)[..4], b"four");
    }
}
