//! What went wrong, in the classes that decide about a retry.

use crate::{lower::LowerError, plan::PlanError, runtime::RuntimeError, versions::Versions};
use planforge_kernels_cuda::{
    blaslt::BlasError, device::DeviceError, dnn::DnnError, libraries::Missing, nvrtc::CompileError,
};
use planforge_types::{BackendError, FailureClass, Reason};

/// Most lines of a compiler's log that a message repeats; all of it goes to the attempt's log.
const MESSAGE_LINES: usize = 3;

pub(crate) fn model(message: impl Into<String>, hint: &str) -> BackendError {
    BackendError::new(FailureClass::Model, message).with_hint(hint)
}

fn infrastructure(message: impl Into<String>, hint: &str) -> BackendError {
    BackendError::new(FailureClass::Infrastructure, message).with_hint(hint)
}

fn resource(message: impl Into<String>) -> BackendError {
    BackendError::new(FailureClass::Resource, message).with_hint(
        "end what else runs on the device (`planforge doctor` names it), build for smaller shapes, or take a device with more memory",
    )
}

fn of_missing(missing: &Missing) -> BackendError {
    infrastructure(missing.to_string(), "`planforge doctor` says what is missing and where it was looked for")
}

fn of_device(error: &DeviceError) -> BackendError {
    match error {
        DeviceError::Missing(missing) => of_missing(missing),
        DeviceError::OutOfMemory { .. } | DeviceError::Exhausted { .. } => resource(error.to_string()),
        DeviceError::NoSuchDevice { .. } => {
            infrastructure(error.to_string(), "compare `nvidia-smi -L` with CUDA_VISIBLE_DEVICES")
        }
        DeviceError::Fault { .. } => infrastructure(
            error.to_string(),
            "the worker ends and with it the broken context; the kernel is in the attempt's log: report it if it happens again",
        ),
        DeviceError::Driver { .. } => {
            infrastructure(error.to_string(), "see `planforge doctor`, then the kernel's log")
        }
        DeviceError::Code(_) | DeviceError::Arguments { .. } => {
            model(error.to_string(), "fetch or build the plan again")
        }
    }
}

/// A library's own words for having no memory left.
fn says_no_memory(reason: &str) -> bool {
    reason.contains("ALLOC_FAILED") || reason.contains("OUT_OF_MEMORY")
}

fn of_library(message: String, reason: &str) -> BackendError {
    match says_no_memory(reason) {
        true => resource(format!("out of device memory: {message}")),
        false => infrastructure(message, "the attempt's log says at which step; report it if it happens again"),
    }
}

impl From<RuntimeError> for BackendError {
    fn from(error: RuntimeError) -> Self {
        let message = error.to_string();
        match &error {
            RuntimeError::Device(device)
            | RuntimeError::Dnn(DnnError::Device(device))
            | RuntimeError::Blas(BlasError::Device(device)) => of_device(device),
            RuntimeError::Dnn(DnnError::Missing(missing))
            | RuntimeError::Blas(BlasError::Missing(missing))
            | RuntimeError::Compile(CompileError::Missing(missing)) => of_missing(missing),
            RuntimeError::Dnn(DnnError::Library { reason, .. })
            | RuntimeError::Blas(BlasError::Library { reason, .. }) => of_library(message, reason),
            RuntimeError::Dnn(DnnError::Unsupported { .. }) => {
                model(message, "this version of cuDNN cannot compute it on this device: try a newer one")
                    .because(Reason::Unsupported)
            }
            RuntimeError::Compile(error) => of_compiler(error),
            RuntimeError::Program(_) => {
                model(message, "this is a fault of the compiler: report it with the model's structure")
            }
            RuntimeError::Tactic { .. } => model(message, "build the plan again on this device"),
            RuntimeError::NoTactic { .. } => model(
                format!("{message}{}", missing_libraries(&Versions::here())),
                "install what is missing, or report it with the model's structure",
            )
            .because(Reason::Unsupported),
            RuntimeError::HostMemory { .. } => resource(message),
            RuntimeError::NotBound => model(message, "bind inputs first"),
            RuntimeError::Cancelled => BackendError::cancelled(message),
        }
    }
}

fn of_compiler(error: &CompileError) -> BackendError {
    match error {
        CompileError::Source { name, arch, log, .. } => {
            let told: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).take(MESSAGE_LINES).collect();
            model(
                format!("kernel {name} does not compile for {arch}: {}", told.join(" / ")),
                "the attempt's log holds its source and all the compiler said: report both",
            )
        }
        CompileError::Library { reason, .. } => of_library(error.to_string(), reason),
        CompileError::Missing(missing) => of_missing(missing),
        CompileError::Process { .. } => {
            infrastructure(error.to_string(), "see in the host's log whether something ends processes there")
        }
        CompileError::TooLong { .. } | CompileError::Zero { .. } => {
            model(error.to_string(), "this is a fault of the compiler: report it with the model's structure")
        }
    }
}

/// What is not there, for steps that found nothing to compute them.
fn missing_libraries(versions: &Versions) -> String {
    let missing: Vec<&str> = [("cuDNN", &versions.cudnn), ("cuBLASLt", &versions.cublaslt)]
        .into_iter()
        .filter(|(_, version)| version.is_empty())
        .map(|(name, _)| name)
        .collect();
    if missing.is_empty() { String::new() } else { format!("; not here: {}", missing.join(", ")) }
}

/// A kernel that does not compile, line by line for a log: all the compiler said, then the source.
pub(crate) fn log_lines(error: &RuntimeError) -> Vec<String> {
    let RuntimeError::Compile(CompileError::Source { name, arch, log, text }) = error else { return Vec::new() };
    let mut lines = vec![format!("NVRTC refuses kernel {name} for {arch}:")];
    lines.extend(log.lines().map(|line| format!("  {line}")));
    lines.push(format!("source of kernel {name}:"));
    lines.extend(text.lines().enumerate().map(|(index, line)| format!("{:5} {line}", index + 1)));
    lines
}

impl From<PlanError> for BackendError {
    fn from(error: PlanError) -> Self {
        let hint =
            if matches!(error, PlanError::Open { .. }) { "check the path" } else { "fetch or build the plan again" };
        model(error.to_string(), hint)
    }
}

impl From<LowerError> for BackendError {
    fn from(error: LowerError) -> Self {
        model(
            error.to_string(),
            "build it with another backend (`planforge devices` lists the toolchains), or change the model",
        )
        .because(Reason::Unsupported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_kernels_cuda::nvrtc::Arch;

    #[test]
    fn every_failure_has_the_class_that_decides_rightly() {
        let class = |error: RuntimeError| {
            let error = BackendError::from(error);
            assert!(!error.message.is_empty());
            error.class
        };
        let memory = DeviceError::OutOfMemory { wanted_mib: 4096, free_mib: 12 };
        assert!(
            BackendError::from(RuntimeError::Device(memory.clone()))
                .message
                .contains("4096 MiB asked for, 12 MiB free")
        );
        assert_eq!(class(RuntimeError::Device(memory)), FailureClass::Resource);
        assert_eq!(class(DeviceError::Exhausted { what: "load a kernel".into() }.into()), FailureClass::Resource);
        let fault = DeviceError::Fault { what: "wait for the stream".into(), reason: "an illegal address".into() };
        assert_eq!(class(fault.clone().into()), FailureClass::Infrastructure);
        assert_eq!(class(RuntimeError::Dnn(DnnError::Device(fault))), FailureClass::Infrastructure);
        let library = |reason: &str| BlasError::Library { what: "run a product", reason: reason.into() };
        assert_eq!(class(library("CUBLAS_STATUS_ALLOC_FAILED").into()), FailureClass::Resource);
        assert_eq!(class(library("CUBLAS_STATUS_EXECUTION_FAILED").into()), FailureClass::Infrastructure);
        let stub = Missing::Symbol { path: "/opt/libcudnn.so.9".into(), symbol: "cudnnCreate" };
        let stub = BackendError::from(RuntimeError::Dnn(DnnError::Missing(stub)));
        assert_eq!(stub.class, FailureClass::Infrastructure);
        assert!(stub.message.contains("cudnnCreate") && stub.message.contains("stub"), "{}", stub.message);
        assert_eq!(class(RuntimeError::Cancelled), FailureClass::Infrastructure);
        assert_eq!(class(RuntimeError::NoTactic { step: "conv".into() }), FailureClass::Model);
    }

    #[test]
    fn a_kernel_that_does_not_compile_is_told_in_short_and_kept_in_full() {
        let error = RuntimeError::Compile(CompileError::Source {
            name: "pool".into(),
            arch: Arch::of_device(9, 0),
            log: "pool.cu(3): error: one\n\npool.cu(4): error: two\n3\n4".into(),
            text: "void f() {\n}".into(),
        });
        let lines = log_lines(&error);
        assert!(lines.iter().any(|line| line.contains("4")) && lines.last().unwrap().ends_with("2 }"), "{lines:?}");
        let told = BackendError::from(error);
        assert_eq!(told.class, FailureClass::Model);
        assert!(told.message.ends_with("pool.cu(3): error: one / pool.cu(4): error: two / 3"), "{}", told.message);
    }

    #[test]
    fn what_is_missing_is_named_where_it_would_have_helped() {
        let none = Versions::default();
        assert_eq!(missing_libraries(&none), "; not here: cuDNN, cuBLASLt");
        let all = Versions { cudnn: "9.1".into(), cublaslt: "13.0".into(), ..none };
        assert_eq!(missing_libraries(&all), "");
    }
}
