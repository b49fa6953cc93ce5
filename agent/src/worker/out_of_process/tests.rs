//! The worker's side of a build in another process, with shell scripts for that process.

use super::*;
use planforge_types::{
    BuildSpec, Digest,
    fingerprint::{DeviceFingerprint, DeviceKind, HostFacts},
};

/// Never builds here.
struct Elsewhere;

impl Compiler for Elsewhere {
    fn backend(&self) -> &'static str {
        "native"
    }

    fn toolchains(&self, _: &DiscoveredDevice) -> Vec<Toolchain> {
        Vec::new()
    }

    fn check(&self, _: &CompileRequest) -> Result<(), BackendError> {
        Ok(())
    }

    fn compile(&self, _: &CompileRequest, _: &dyn Events, _: &Cancel) -> Result<CompiledPlan, BackendError> {
        panic!("built in the process that measures");
    }

    fn builds_out_of_process(&self, request: &CompileRequest) -> bool {
        request.calibration.is_none()
    }

    fn recognises(&self, _: &[u8]) -> bool {
        false
    }

    fn load(&self, _: &Path, _: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
        Err(BackendError::infrastructure("no plan is loaded here"))
    }
}

#[derive(Default)]
struct Recorded(Mutex<Vec<String>>);

impl Events for Recorded {
    fn progress(&self, phase: &str, fraction: f32, detail: &str) {
        self.0.lock().unwrap().push(format!("{phase} {fraction} {detail}"));
    }

    fn log(&self, line: &str) {
        self.0.lock().unwrap().push(line.into());
    }
}

fn request() -> CompileRequest {
    CompileRequest {
        model: "model.onnx".into(),
        model_digest: Digest::of(b"model"),
        sku: "h200-sxm".parse().unwrap(),
        device: DeviceFingerprint {
            kind: DeviceKind::Gpu,
            name: "a GPU".into(),
            memory_mib: 1,
            gpu: None,
            cpu: None,
            host: HostFacts { os: "Linux".into(), kernel: "6".into() },
        },
        toolchain: Toolchain { backend: "native".into(), version: "1".into(), components: Default::default() },
        spec: BuildSpec::default(),
        scratch: "scratch".into(),
        cache: None,
        calibration: None,
        plugins: Vec::new(),
    }
}

/// What comes of a build whose process is this script, which has read its order into `$order`.
fn build(script: &str, cancel: &Cancel) -> (Result<CompiledPlan, BackendError>, Vec<String>) {
    let script = format!("read -r order\n{script}");
    let compiler =
        OutOfProcess { inner: Box::new(Elsewhere), command: ["/bin/sh", "-c", &script].map(OsString::from).to_vec() };
    let recorded = Recorded::default();
    let result = compiler.compile(&request(), &recorded, cancel);
    (result, recorded.0.into_inner().unwrap())
}

#[test]
fn a_build_elsewhere_is_told_as_if_it_were_here() {
    let script = r#"
        case "$order" in 'compile {"backend":"native","request":{'*'"model":"model.onnx"'*) ;; *) exit 9 ;; esac
        echo '{"event":"progress","phase":"tune","fraction":0.5,"detail":"conv"}'
        echo 'a library prints'
        echo '{"event":"log","line":"3 steps timed"}'
        echo '{"event":"compiled","plan":{"path":"scratch/engine.plan","facts":{"steps":3},"findings":[]}}'
        kill -SEGV $$"#;
    let (result, recorded) = build(script, &Cancel::default());
    let plan = result.expect("it was complete before its process died");
    assert_eq!((plan.path.to_str(), &plan.facts["steps"]), (Some("scratch/engine.plan"), &3.into()));
    assert_eq!(recorded, ["tune 0.5 conv", "a library prints", "3 steps timed"]);
}

#[test]
fn its_refusal_and_its_death_keep_their_class() {
    let refused =
        r#"echo '{"event":"refused","error":{"class":"model","message":"no such operator","hint":"leave it out"}}'"#;
    let error = build(refused, &Cancel::default()).0.unwrap_err();
    assert_eq!(
        (error.class, error.message.as_str(), error.hint.as_str()),
        (FailureClass::Model, "no such operator", "leave it out")
    );
    for (script, class, said) in [
        ("kill -SEGV $$", FailureClass::Infrastructure, "the build's process died with signal SIGSEGV"),
        ("kill -KILL $$", FailureClass::Infrastructure, "the build's process died with signal SIGKILL"),
        ("kill -XFSZ $$", FailureClass::Resource, "the build wrote a larger file than the agent allows"),
        ("exit 3", FailureClass::Infrastructure, "the build's process ended without a result (exit code 3)"),
    ] {
        let error = build(script, &Cancel::default()).0.unwrap_err();
        assert_eq!((error.class, error.message.as_str()), (class, said), "{script}");
    }
    let lost = OutOfProcess { inner: Box::new(Elsewhere), command: vec!["/no/such/program".into()] };
    let error = lost.compile(&request(), &Recorded::default(), &Cancel::default()).unwrap_err();
    assert!(error.message.starts_with("cannot start the build's process"), "{error}");
}

/// The process is told by the end of its input, and killed when that does not end it.
#[test]
fn a_cancelled_build_ends() {
    let cancel = Cancel::default();
    cancel.cancel();
    let listens = r#"cat >/dev/null; echo '{"event":"refused","error":{"class":"infrastructure","message":"cancelled, as told","hint":""}}'"#;
    assert_eq!(build(listens, &cancel).0.unwrap_err().message, "cancelled, as told");
    for deaf in ["while :; do sleep 0.05; done", "while echo talks; do sleep 0.01; done"] {
        let error = build(deaf, &cancel).0.unwrap_err();
        assert!(error.message.contains("did not stop by itself"), "{deaf}: {error}");
    }
}

#[test]
#[should_panic(expected = "built in the process that measures")]
fn what_needs_no_process_of_its_own_is_built_here() {
    let compiler = OutOfProcess { inner: Box::new(Elsewhere), command: vec!["/no/such/program".into()] };
    let request = CompileRequest { calibration: Some("a.cache".into()), ..request() };
    let _ = compiler.compile(&request, &Recorded::default(), &Cancel::default());
}
