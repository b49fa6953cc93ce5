//! The reference held against an independent runtime, once for a model.

use super::*;
use planforge_backend::Oracle;
use planforge_report::Agreement;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// Reads the model by itself, as it may well be wrong, and counts how often it is asked.
#[derive(Clone, Default)]
struct Runtime {
    /// By how much of itself the third of its first output's values is off.
    off_by: f64,
    /// It says nothing.
    silent: bool,
    asked: Arc<AtomicU32>,
}

impl Oracle for Runtime {
    fn name(&self) -> String {
        "other 7".into()
    }

    fn outputs(
        &self,
        model: &Path,
        inputs: &NamedTensors,
        _: Duration,
        _: &Cancel,
    ) -> Result<NamedTensors, BackendError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.silent {
            return Err(BackendError::new(FailureClass::Model, "no Foo here"));
        }
        let graph = planforge_import::import(&planforge_onnx::Model::open(model).unwrap(), None).unwrap();
        let tensors = inputs.iter().map(|(name, t)| (name.clone(), Tensor::try_from(t.clone()).unwrap())).collect();
        let mut outputs = interpreter::execute(&graph, &tensors).unwrap();
        let first = outputs.values_mut().next().unwrap();
        let mut values = first.values::<f32>().unwrap().into_owned();
        values[2] *= 1.0 + self.off_by as f32;
        *first = Tensor::from_vec(first.shape().to_vec(), values).unwrap();
        Ok(outputs.iter().map(|(name, tensor)| (name.clone(), HostTensor::from(tensor))).collect())
    }
}

/// A backend that only knows what is right.
struct Other(Runtime);

impl Compiler for Other {
    fn backend(&self) -> &'static str {
        "other"
    }
    fn toolchains(&self, _: &DiscoveredDevice) -> Vec<Toolchain> {
        Vec::new()
    }
    fn check(&self, _: &CompileRequest) -> Result<(), BackendError> {
        unreachable!("nothing is built with it")
    }
    fn compile(&self, _: &CompileRequest, _: &dyn Events, _: &Cancel) -> Result<CompiledPlan, BackendError> {
        unreachable!("nothing is built with it")
    }
    fn recognises(&self, _: &[u8]) -> bool {
        false
    }
    fn load(&self, _: &Path, _: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
        unreachable!("nothing is built with it")
    }
    fn oracle(&self) -> Option<Box<dyn Oracle>> {
        Some(Box::new(self.0.clone()))
    }
}

impl Fixture {
    /// On a host where this runtime is present.
    fn run_beside(&mut self, runtime: &Runtime, fault: Fault) -> RunEnd {
        self.order.oracles = Some(self.order.scratch.join("oracles"));
        let compilers: Vec<Box<dyn Compiler>> = vec![Box::new(TestCompiler(fault)), Box::new(Other(runtime.clone()))];
        let mut events = Vec::new();
        let mut hear = |event| events.push(event);
        let end = run(&self.order, &compilers, &telemetry::for_device, &mut hear, &mut || Ok(()), &Cancel::default());
        self.events = events;
        end
    }

    fn agreement(&self) -> Agreement {
        self.report().numerics.unwrap().independent.unwrap()
    }
}

#[test]
fn the_reference_is_held_against_another_runtime_once_for_a_model() {
    let runtime = Runtime::default();
    let mut job = Fixture::new();
    let mut seen = Vec::new();
    for _ in 0..3 {
        assert_eq!(job.run_beside(&runtime, Fault::None), RunEnd::Succeeded, "{:?}", job.events.last());
        seen.push(job.agreement());
    }
    assert_eq!((runtime.asked.load(Ordering::Relaxed), seen[0].agrees), (1, Some(true)));
    assert!(seen[0].compared_unix_ms.is_some() && seen.iter().all(|agreement| *agreement == seen[0]));
    assert_eq!(seen[0].words(), "the reference agrees with other 7");
    // An engine that is wrong is wrong whoever agrees.
    assert_eq!(job.run_beside(&runtime, Fault::Offset(0.5)), RunEnd::Failed);
    // Other inputs are another comparison.
    let mut given = job.given("image", &[1, 1, 8, 8], 0.25);
    assert_eq!(given.run_beside(&runtime, Fault::None), RunEnd::Succeeded);
    assert_eq!(runtime.asked.load(Ordering::Relaxed), 2);
}

#[test]
fn where_they_disagree_no_engine_is_called_accurate_and_the_place_is_named() {
    let runtime = Runtime { off_by: 0.7, ..Runtime::default() };
    let mut job = Fixture::new();
    for _ in 0..2 {
        assert_eq!(job.run_beside(&runtime, Fault::None), RunEnd::Failed);
        let (class, message, hint) = job.failure();
        assert_eq!(class, FailureClass::Model);
        let head =
            "nobody knows whether the engine's outputs are right: the reference DISAGREES with other 7: output '";
        assert!(
            message.starts_with(head) && message.contains(" at [0, 2] by the reference operators and "),
            "{message}"
        );
        assert!(hint.contains("--allow-inaccurate"), "{hint}");
    }
    assert_eq!(runtime.asked.load(Ordering::Relaxed), 1, "it is remembered that they disagree");
    job.order.allow_inaccurate = true;
    assert_eq!(job.run_beside(&runtime, Fault::None), RunEnd::Succeeded);
    let report = job.report();
    assert!(!report.accurate && report.numerics.as_ref().unwrap().passed);
    assert!(report.findings.iter().any(|finding| finding.code == "oracles-disagree"), "{:?}", report.findings);
    assert!(job.agreement().max_error > 1e-2, "{:?}", job.agreement());
}

#[test]
fn what_single_precision_explains_is_no_disagreement() {
    let mut job = Fixture::new();
    assert_eq!(job.run_beside(&Runtime { off_by: 1e-6, ..Runtime::default() }, Fault::None), RunEnd::Succeeded);
    assert_eq!(job.agreement().agrees, Some(true));
}

#[test]
fn where_nobody_is_there_to_ask_or_says_nothing_the_report_says_so() {
    let mut alone = Fixture::new();
    assert_eq!(alone.run(Fault::None), RunEnd::Succeeded);
    let words = alone.agreement().words();
    assert_eq!(words, "not compared with an independent runtime: none is present here");
    let runtime = Runtime { silent: true, ..Runtime::default() };
    let mut job = Fixture::new();
    for _ in 0..2 {
        assert_eq!(job.run_beside(&runtime, Fault::None), RunEnd::Succeeded);
        assert!(job.report().accurate);
        let words = job.agreement().words();
        assert_eq!(words, "not compared with an independent runtime: it did not say: no Foo here");
    }
    assert_eq!(runtime.asked.load(Ordering::Relaxed), 1);
}
