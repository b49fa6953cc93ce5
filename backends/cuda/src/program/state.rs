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
}

impl Program {
    /// The state that an output is.
    pub fn state_of_output(&self, output: usize) -> Option<State> {
        self.states.iter().copied().find(|state| state.output as usize == output)
    }

    /// Names of every input that is changed in place, each with its output's.
    pub fn state_names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.states.iter().filter_map(|state| {
            let input = self.inputs.get(state.input as usize)?;
            let output = self.outputs.get(state.output as usize)?;
            Some((input.name.as_str(), output.name.as_str()))
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
            if (input.element, &input.shape, input.buffer) != (output.element, &output.shape, output.buffer) {
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
