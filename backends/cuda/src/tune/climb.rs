//! Which candidates are quickest together where what they add to the whole is no sum: one group after the other gets
//! another candidate, and keeps it where that gains.

/// What counts as quicker.
pub const GAIN: f64 = 0.997;

/// A choice of one candidate for each group, and what the whole takes with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reached {
    pub choice: Vec<usize>,
    pub ms: f64,
}

/// Exchanges candidates of `begin`, of which the groups have so many, until none gains or `go_on` says no. `ms_of` measures;
/// what seems to gain is measured once more beside what it would take the place of, for clocks wander.
pub fn climb<E>(
    begin: Vec<usize>,
    candidates: &[usize],
    ms_of: &mut dyn FnMut(&[usize]) -> Result<f64, E>,
    go_on: &dyn Fn() -> bool,
) -> Result<Reached, E> {
    let mut now = Reached { ms: ms_of(&begin)?, choice: begin };
    let mut gains = true;
    while gains {
        gains = false;
        for (at, &count) in candidates.iter().enumerate() {
            for candidate in 0..count {
                if !go_on() {
                    return Ok(now);
                }
                let mut choice = now.choice.clone();
                choice[at] = candidate;
                if choice == now.choice || ms_of(&choice)? >= now.ms * GAIN {
                    continue;
                }
                now.ms = ms_of(&now.choice)?;
                let ms = ms_of(&choice)?;
                if ms < now.ms * GAIN {
                    now = Reached { choice, ms };
                    gains = true;
                }
            }
        }
    }
    Ok(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, convert::Infallible};

    /// Kernels that ask for one of three sizes: two that follow each other are slow unless both fit.
    fn ms(choice: &[usize]) -> f64 {
        let alone: f64 = choice.iter().map(|size| [1.0, 0.98, 1.0][*size]).sum();
        let apart = choice.windows(2).filter(|pair| pair[0] != pair[1]).count();
        alone + 0.2 * apart as f64 - if choice.iter().all(|size| *size == 2) { 1.0 } else { 0.0 }
    }

    fn climbed(begin: [usize; 4], measured: impl Fn(&[usize], u32) -> f64, most: u32) -> (Reached, u32) {
        let count = Cell::new(0);
        let mut ms_of = |choice: &[usize]| {
            count.set(count.get() + 1);
            Ok::<f64, Infallible>(measured(choice, count.get()))
        };
        let Ok(reached) = climb(begin.to_vec(), &[3; 4], &mut ms_of, &|| count.get() < most);
        (reached, count.get())
    }

    #[test]
    fn it_ends_where_no_single_exchange_gains() {
        let (reached, _) = climbed([0, 1, 1, 0], |choice, _| ms(choice), u32::MAX);
        assert_eq!(reached, Reached { choice: vec![1; 4], ms: ms(&[1; 4]) });
        // What is best of all is reached from beginnings near it.
        let (reached, _) = climbed([2, 2, 2, 0], |choice, _| ms(choice), u32::MAX);
        assert_eq!(reached.choice, [2; 4]);
    }

    #[test]
    fn noise_alone_exchanges_nothing_and_what_does_not_run_is_not_taken() {
        // Every fifth time looks quicker by a tenth, and the last candidate does not run.
        let noisy = |choice: &[usize], count: u32| match choice.contains(&2) {
            true => f64::INFINITY,
            false => 4.0 * if count.is_multiple_of(5) { 0.9 } else { 1.0 },
        };
        let (reached, _) = climbed([0; 4], noisy, u32::MAX);
        assert_eq!(reached.choice, [0; 4]);
    }

    #[test]
    fn it_stops_when_it_is_told_to() {
        let (reached, count) = climbed([0, 1, 1, 0], |choice, _| ms(choice), 1);
        assert_eq!((reached.choice, count), (vec![0, 1, 1, 0], 1));
        let (reached, count) = climbed([0, 1, 1, 0], |choice, _| ms(choice), 2);
        assert_eq!((reached.choice, count), (vec![1, 1, 1, 0], 4), "what it has begun it ends");
    }
}
