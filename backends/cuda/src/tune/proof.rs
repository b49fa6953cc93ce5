//! Whether something is quicker than what it would take the place of, where both are uncertain: measured in turns, for
//! clocks wander, and more than once, for of many that seem quicker some only seem so.

/// What has to be shown.
#[derive(Clone, Copy, Debug)]
pub struct Proof {
    /// What counts as quicker: less than this share.
    pub gain: f64,
    /// How often both are measured; it has to be quicker each time.
    pub turns: usize,
}

/// What was measured last of both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InTurns {
    pub now_ms: f64,
    pub other_ms: f64,
    pub is_quicker: bool,
}

impl Proof {
    /// Measures `now` and `other` in turns until `other` was not quicker, or was often enough.
    pub fn in_turns<T: ?Sized, E>(
        self,
        now: &T,
        other: &T,
        ms_of: &mut dyn FnMut(&T) -> Result<f64, E>,
    ) -> Result<InTurns, E> {
        let mut measured = InTurns { now_ms: f64::INFINITY, other_ms: f64::INFINITY, is_quicker: false };
        for _ in 0..self.turns {
            let (now_ms, other_ms) = (ms_of(now)?, ms_of(other)?);
            measured = InTurns { now_ms, other_ms, is_quicker: other_ms < now_ms * self.gain };
            if !measured.is_quicker {
                break;
            }
        }
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn it_is_quicker_each_time_or_not_at_all() {
        let proof = Proof { gain: 0.99, turns: 3 };
        let after = |mut times: Vec<f64>| {
            times.reverse();
            let mut ms_of = |_: &u32| Ok::<f64, Infallible>(times.pop().expect("it asks for no more"));
            let Ok(measured) = proof.in_turns(&1, &2, &mut ms_of);
            (measured, times.len())
        };
        let quicker = InTurns { now_ms: 1.2, other_ms: 1.0, is_quicker: true };
        assert_eq!(after(vec![1.0, 0.9, 1.1, 0.9, 1.2, 1.0]), (quicker, 0));
        let not = InTurns { now_ms: 1.0, other_ms: 0.995, is_quicker: false };
        assert_eq!(after(vec![1.0, 0.9, 1.0, 0.995, 1.0, 0.9]), (not, 2), "what was refuted is measured no more");
        let neither = InTurns { now_ms: f64::INFINITY, other_ms: f64::INFINITY, is_quicker: false };
        assert_eq!(after(vec![f64::INFINITY; 2]), (neither, 0), "neither runs");
    }
}
