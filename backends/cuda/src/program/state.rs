//! What an engine keeps from run to run: an input and the output that takes its place, in one memory.

use super::{Place, Program, ProgramError};
use serde::{Deserialize, Serialize};

/// An input that is changed in place, and the output which that is. Numbers count the program's inputs and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    pub input: u32,
    pub output: u32,
    /// Places that the cache has, where a run writes one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<u64>,
    /// The axis along which the output has one place more than the input, behind all others; the input is what lies before
    /// it in the same memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grows: Option<u32>,
}

impl State {
    /// What the output has in the place of an input of this shape; `None` where the axis is none of it.
    fn output_shape(&self, input: &[u64]) -> Option<Vec<u64>> {
        let mut shape = input.to_vec();
        if let Some(axis) = self.grows {
            let places = shape.get_mut(axis as usize)?;
            *places = places.checked_add(1)?;
        }
        Some(shape)
    }
}

/// How places lie in the memory of a cache that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Rows of places, one behind the other.
    pub rows: usize,
    /// Places of a row of the input; the output has one more.
    pub before: usize,
    pub place_bytes: usize,
}

impl Places {
    /// An input as it lies: zeros where the new place of each row comes.
    pub fn spread(self, bytes: &[u8]) -> Vec<u8> {
        let (row, whole) = (self.before * self.place_bytes, (self.before + 1) * self.place_bytes);
        let mut spread = vec![0; self.rows * whole];
        // Without places there is nothing to put.
        for (to, from) in spread.chunks_exact_mut(whole.max(1)).zip(bytes.chunks_exact(row.max(1))) {
            to[..row].copy_from_slice(from);
        }
        spread
    }
}

impl Program {
    /// The state that an output is.
    pub fn state_of_output(&self, output: usize) -> Option<State> {
        self.states.iter().copied().find(|state| state.output as usize == output)
    }

    /// The state that an input is.
    pub fn state_of_input(&self, input: usize) -> Option<State> {
        self.states.iter().copied().find(|state| state.input as usize == input)
    }

    /// How an input lies in memory that is longer by a place in every row; `None` where it is all of its memory.
    pub fn places_of_input(&self, input: usize) -> Option<Places> {
        let axis = self.state_of_input(input)?.grows? as usize;
        let edge = self.inputs.get(input)?;
        let size = |dims: &[u64]| dims.iter().product::<u64>() as usize;
        Some(Places {
            rows: size(&edge.shape[..axis]),
            before: edge.shape[axis] as usize,
            place_bytes: size(&edge.shape[axis + 1..]) * edge.element.bytes(),
        })
    }

    /// Names of inputs that are changed in place, each with its output's; those that grow, or the others.
    pub fn state_names(&self, grow: bool) -> impl Iterator<Item = (String, String)> {
        self.states.iter().filter(move |state| state.grows.is_some() == grow).filter_map(|state| {
            let input = self.inputs.get(state.input as usize)?;
            let output = self.outputs.get(state.output as usize)?;
            Some((input.name.clone(), output.name.clone()))
        })
    }

    /// Names of inputs that are changed in place, each with how many runs it has places for.
    pub fn state_places(&self) -> impl Iterator<Item = (&str, u64)> {
        self.states
            .iter()
            .filter_map(|state| Some((self.inputs.get(state.input as usize)?.name.as_str(), state.places?)))
    }

    /// Each state is one input and one output alike in one memory; every other output has memory of its own.
    pub(super) fn check_states(&self) -> Result<(), ProgramError> {
        for (number, state) in self.states.iter().enumerate() {
            let wrong = |why| Err(ProgramError::State { input: state.input, output: state.output, why });
            let input = self.inputs.get(state.input as usize);
            let output = self.outputs.get(state.output as usize);
            let (Some(input), Some(output)) = (input, output) else { return wrong("there is no such edge") };
            let Some(shape) = state.output_shape(&input.shape) else { return wrong("it has no such axis") };
            if (input.element, &shape, input.buffer) != (output.element, &output.shape, output.buffer) {
                return wrong("the two are not alike");
            }
            let meets = |other: &State| other.input == state.input || other.output == state.output;
            if self.states[..number].iter().any(meets) {
                return wrong("one of them is another's");
            }
        }
        for (number, output) in self.outputs.iter().enumerate() {
            let place = self.buffers.get(output.buffer.0 as usize).map(|buffer| buffer.place);
            let in_input = matches!(place, Some(Place::Input(_)));
            if in_input && self.state_of_output(number).is_none() {
                return Err(ProgramError::Edge { edge: output.name.clone() });
            }
        }
        Ok(())
    }
}
