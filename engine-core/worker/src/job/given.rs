//! Inputs that the order gives: looked at before anything is built, kept once they fit the engine, told in the report.

use super::run::Job;
use crate::verify::given;
use planforge_backend::Meter;
use planforge_report::GivenInputs;
use planforge_types::{BackendError, NamedTensors, Port};

impl Job<'_> {
    /// Refuses inputs that do not fit the model before anything else is done.
    pub(super) fn check_given(&self) -> Result<(), BackendError> {
        let order = self.order;
        let Some(path) = order.inputs.as_deref().filter(|_| order.model.is_file()) else { return Ok(()) };
        Ok(given::check(path, &order.model, order.spec.profiles.first())?)
    }

    /// The order's inputs as the engine takes them; `None` where it gives none.
    pub(super) fn given(&self, meter: &dyn Meter) -> Result<Option<&NamedTensors>, BackendError> {
        let Some(path) = &self.order.inputs else { return Ok(None) };
        if self.given.get().is_none() {
            let read = given::read(path, &meter.inputs(), self.order.spec.profiles.first())?;
            let _ = self.given.set(read);
        }
        Ok(self.given.get())
    }

    /// As the report tells them, once they were read.
    pub(super) fn given_inputs(&self) -> Option<GivenInputs> {
        let (digest, given) = (self.order.measure.inputs?, self.given.get()?);
        let port = |(name, tensor): (&String, &planforge_types::HostTensor)| Port {
            name: name.clone(),
            element: tensor.element,
            shape: tensor.shape.iter().map(|size| Some(*size as u64)).collect(),
        };
        Some(GivenInputs { digest, arrays: given.iter().map(port).collect(), timed: self.order.measure.time_inputs })
    }

    /// Made inputs with the given single numbers among them.
    pub(super) fn with_controls(&self, made: NamedTensors) -> NamedTensors {
        match self.given.get() {
            Some(given) => with_controls(made, given),
            None => made,
        }
    }

    /// Whether the headline is timed on given inputs: then nothing else stands for what made ones take.
    pub(super) fn times_given(&self) -> bool {
        self.order.measure.time_inputs && self.order.inputs.is_some()
    }
}

/// A single number, as a sampling rate, says what the model is to do, at whatever shapes: given ones take the place of
/// made ones.
fn with_controls(mut made: NamedTensors, given: &NamedTensors) -> NamedTensors {
    for (name, given) in given {
        let single = given.shape.iter().product::<usize>() == 1;
        if let Some(made) = made.get_mut(name).filter(|made| single && made.shape == given.shape) {
            made.clone_from(given);
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::{ElementType, HostTensor};

    #[test]
    fn given_single_numbers_stand_at_other_shapes_too() {
        let array = |element, shape: &[usize], value: f64| {
            HostTensor::of_values(element, shape.to_vec(), &vec![value; shape.iter().product()])
        };
        let signal = |size: usize, value: f64| ("signal".to_owned(), array(ElementType::F32, &[1, size], value));
        let rate = |value: f64| ("sr".to_owned(), array(ElementType::I64, &[], value));
        let made = NamedTensors::from([signal(512, 0.5), rate(16_000.0)]);
        let found = with_controls(made.clone(), &[signal(256, 0.25), rate(8_000.0)].into());
        assert_eq!(found, [signal(512, 0.5), rate(8_000.0)].into());
        // What holds a signal is none, also where it happens to be as long.
        assert_eq!(with_controls(made.clone(), &[signal(512, 0.25)].into())["signal"], made["signal"]);
    }
}
