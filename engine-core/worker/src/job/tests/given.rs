//! Inputs that an order gives.

use super::*;
use planforge_types::ElementType;

/// What stands in an array of given inputs throughout.
const GIVEN: f64 = 0.25;

impl Fixture {
    /// With given inputs, an array of this name and shape.
    pub(super) fn given(mut self, name: &str, shape: &[usize], value: f64) -> Self {
        let path = self.order.scratch.join("inputs.npz");
        let values = vec![value; shape.iter().product()];
        let array = HostTensor::of_values(ElementType::F64, shape.to_vec(), &values);
        planforge_identity::npz::write(&path, &[(name.to_owned(), array)].into()).unwrap();
        self.order.measure.inputs = Some(Digest::of(&fs::read(&path).unwrap()));
        self.order.inputs = Some(path);
        self
    }
}

#[test]
fn given_inputs_are_compared_on_always_and_timed_where_asked() {
    let mut usual = Fixture::new();
    assert_eq!(usual.run(Fault::None), RunEnd::Succeeded);
    let usual = usual.report();
    assert!(usual.given_inputs.is_none());
    assert!(TIMED.get() != GIVEN as f32);
    for time_inputs in [false, true] {
        let mut job = Fixture::new().given("image", &[1, 1, 8, 8], GIVEN);
        job.order.measure.time_inputs = time_inputs;
        assert_eq!(job.run(Fault::None), RunEnd::Succeeded, "{:?}", job.events.last());
        assert_eq!(TIMED.get() == GIVEN as f32, time_inputs);
        let report = job.report();
        let scale = |report: &Report| report.numerics.as_ref().unwrap().outputs[0].scale;
        assert!(report.numerics.as_ref().unwrap().passed && scale(&report) != scale(&usual));
        let given = report.given_inputs.as_ref().unwrap();
        assert_eq!((Some(given.digest), given.timed), (job.order.measure.inputs, time_inputs));
        let finding = report.findings.iter().find(|finding| finding.code == "given-inputs").unwrap();
        let how = if time_inputs { "compared and timed" } else { "compared" };
        let short = given.digest.short();
        let words = format!("outputs were {how} on given inputs sha256:{short}: image f32 [1, 1, 8, 8]");
        assert_eq!(finding.message, words);
    }
    let mut wrong = Fixture::new().given("image", &[1, 1, 8, 8], GIVEN);
    assert_eq!(wrong.run(Fault::Offset(0.5)), RunEnd::Failed);
}

#[test]
fn given_inputs_that_do_not_fit_are_refused_before_anything_is_built() {
    for (name, shape, value, message) in [
        ("image", &[1, 8, 8][..], 0.0, "input 'image' takes f32 [1, 1, 8, 8], but the given array is f64 [1, 8, 8]"),
        ("image", &[9, 1, 8, 8], 0.0, "input 'image' takes f32 [1, 1, 8, 8], but the given array is f64 [9, 1, 8, 8]"),
        ("picture", &[1, 1, 8, 8], 0.0, "array 'picture' of the given inputs is no input; the inputs are image"),
        ("image", &[1, 1, 8, 8], f64::NAN, "the given array of input 'image' is NaN at [0, 0, 0, 0]"),
    ] {
        let mut job = Fixture::new().given(name, shape, value);
        // A compiler that is reached would end it otherwise.
        assert_eq!(job.run(Fault::Panic), RunEnd::Failed);
        let (class, said, hint) = job.failure();
        assert_eq!((class, &*said), (FailureClass::Resource, message));
        assert!(!hint.is_empty());
    }
}
