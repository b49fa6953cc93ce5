//! What a spec asks of a session, and what of it is refused.

use crate::session::{Provider, Spinning};
use planforge_device::CpuLevel;
use planforge_types::{BackendError, BuildSpec, FailureClass, Precision, Sku};

/// Option of the build spec: the execution provider, `cpu` or `cuda`. It is the SKU's own by default.
pub const OPTION_PROVIDER: &str = "provider";

/// Option of the build spec: `off` for threads that never spin while they wait, `run` (the default) for threads that
/// spin within a run and stop at its end.
pub const OPTION_SPINNING: &str = "spinning";
/// All there are.
pub const OPTIONS: [&str; 2] = [OPTION_PROVIDER, OPTION_SPINNING];

pub(crate) fn refuse(message: impl Into<String>, hint: &str) -> BackendError {
    BackendError::new(FailureClass::Model, message).with_hint(hint)
}

/// What a SKU's plans run on.
pub(crate) fn provider_of(sku: &Sku) -> Provider {
    if sku.is_cpu() { Provider::Cpu } else { Provider::Cuda }
}

/// How threads wait under `spec`.
pub(crate) fn spinning(spec: &BuildSpec) -> Result<Spinning, BackendError> {
    match spec.options.get(OPTION_SPINNING).map(String::as_str) {
        None | Some("run") => Ok(Spinning::WhileRunning),
        Some("off") => Ok(Spinning::Never),
        Some(other) => Err(refuse(
            format!("option {OPTION_SPINNING} is '{other}'"),
            "say 'run' for threads that spin within a run only, or 'off'",
        )),
    }
}

/// How much the library optimises at a spec's level: 0 nothing, 1 what every provider understands, 2 fusions too, from
/// 3 on layouts as well.
pub(crate) fn optimization(spec: &BuildSpec) -> u8 {
    spec.optimization_level.0.min(3)
}

/// Refuses a CPU SKU that is not what the library would use here.
pub(crate) fn check_level(sku: &Sku) -> Result<(), BackendError> {
    if !sku.is_cpu() {
        return Ok(());
    }
    match CpuLevel::detect().last() {
        Some(best) if best.sku() == *sku => Ok(()),
        Some(best) => Err(refuse(
            format!("onnxruntime uses every instruction it finds, so on this machine it runs as {best}, not as {sku}"),
            &format!("ask for {best}, or for the native toolchain"),
        )),
        None => Err(refuse("this machine's processor has no known instruction-set level", "")),
    }
}

pub(crate) fn check_spec(spec: &BuildSpec, sku: &Sku) -> Result<(), BackendError> {
    let refusals = [
        (
            !matches!(spec.precision, Precision::Fp32 | Precision::Best),
            format!("precision {}: it computes in the model's own types", spec.precision),
        ),
        (spec.hardware_compatibility.is_some(), "hardware compatibility levels".into()),
        (spec.version_compatible, "version-compatible plans".into()),
        (spec.approximate_gelu, "an approximate GELU: only native engines for NVIDIA devices have one".into()),
        (spec.strict, "strictness about declared outputs: it warns of them in its log".into()),
        (spec.calibration.is_some(), "calibration: give it a model with QuantizeLinear and DequantizeLinear".into()),
        (!spec.plugins.is_empty(), "plugins".into()),
        (spec.workspace_mib.is_some(), "a bound on scratch memory".into()),
        (spec.threads == Some(0), "engines of no threads".into()),
    ];
    if let Some((_, what)) = refusals.iter().find(|(given, _)| *given) {
        return Err(refuse(format!("the onnxruntime backend does not support {what}"), "leave it out of the spec"));
    }
    if let Some(name) = spec.options.keys().find(|name| !OPTIONS.contains(&name.as_str())) {
        let known = OPTIONS.join(" and ");
        return Err(refuse(
            format!("the onnxruntime backend has no option {name}; it has {known}"),
            "leave the option out",
        ));
    }
    spinning(spec)?;
    let own = provider_of(sku);
    match spec.options.get(OPTION_PROVIDER) {
        Some(name) if Provider::of_name(name) != Some(own) => Err(refuse(
            format!("option {OPTION_PROVIDER} is '{name}', but plans for {sku} run on '{}'", own.name()),
            "leave the option out, or ask for another SKU",
        )),
        _ => Ok(()),
    }
}

/// Threads of a session: as asked, else as the spec says, else all.
pub(crate) fn threads(spec: &BuildSpec, asked: Option<u32>) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    asked.or(spec.threads).map_or_else(all, |threads| threads as usize)
}
