//! Libraries that engines are built or run with: where they are, which version, and what keeps others from loading.

use super::Check;
use planforge_kernels_cuda::libraries::{Found, Missing, libraries};
use planforge_onnxruntime::{Library, Search};

const AREA: &str = "libraries";

/// Checks the NVIDIA libraries and ONNX Runtime. Without a GPU nothing of NVIDIA's is missed.
pub fn checks(has_gpu: bool) -> Vec<Check> {
    let found = libraries();
    vec![
        nvidia("cuda driver", &found.driver, has_gpu, "no engine can run on a GPU"),
        nvidia("nvrtc", &found.nvrtc, has_gpu, "own kernels cannot be compiled here"),
        nvidia("cublaslt", &found.blaslt, has_gpu, "own kernels compute matrix products, mostly slower"),
        nvidia("cudnn", &found.dnn, has_gpu, "own kernels compute convolutions, mostly slower"),
        onnx_runtime(Search::of_environment().find()),
    ]
}

fn nvidia(name: &str, slot: &Result<Found, Missing>, has_gpu: bool, loss: &str) -> Check {
    match slot {
        Ok(found) => Check::ok(AREA, name, format!("{} {}", found.version, found.path.display())),
        Err(missing) => {
            let check = Check::ok(AREA, name, missing.to_string());
            let broken = !matches!(missing, Missing::NotFound { .. });
            match (has_gpu, name) {
                (true, "cuda driver") => check.problem(loss, "install the NVIDIA driver, or let the container have it"),
                (true, _) => check.warning(loss, "install it, or name its folder in PLANFORGE_CUDA_LIBS"),
                (false, _) if broken => check.warning("it is of no use as it is", "repair or remove it"),
                (false, _) => check.meaning("not missed: there is no GPU here"),
            }
        }
    }
}

fn onnx_runtime(found: Result<Option<Library>, String>) -> Check {
    match found {
        Ok(Some(library)) => {
            let cuda = library.cuda.map(|cuda| format!(", with a provider for CUDA {cuda}")).unwrap_or_default();
            Check::ok(AREA, "onnxruntime", format!("{} {}{cuda}", library.version, library.path.display()))
        }
        Ok(None) => Check::ok(AREA, "onnxruntime", "none")
            .meaning("no baseline and no fast oracle: the reference operators check outputs"),
        Err(reason) => Check::ok(AREA, "onnxruntime", reason)
            .problem("the one that PLANFORGE_ONNXRUNTIME names cannot be used", "correct or unset the variable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn nothing_is_missed_without_a_gpu() {
        let missing = Err(Missing::NotFound { name: "x" });
        assert_eq!(nvidia("cuda driver", &missing, false, "").state, State::Ok);
        assert_eq!(nvidia("cuda driver", &missing, true, "").state, State::Problem);
        assert_eq!(nvidia("cudnn", &missing, true, "").state, State::Warning);
        let broken = Err(Missing::Broken { path: "/x".into(), reason: "y".into() });
        assert_eq!(nvidia("cudnn", &broken, false, "").state, State::Warning);
        assert_eq!(onnx_runtime(Ok(None)).state, State::Ok);
        assert_eq!(onnx_runtime(Err("x".into())).state, State::Problem);
    }
}
