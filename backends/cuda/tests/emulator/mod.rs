//! Generated kernels on a processor: their source is compiled by the host's C++ compiler against `cuda.h` beside this
//! file and run thread by thread, so that what they compute is known without a GPU.

pub mod host;

use planforge_cuda::{codegen::Generated, source::source_digest};
use std::{
    ffi::{CStr, c_char, c_uint, c_void},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
};

/// A range of addresses that a kernel may touch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub begin: usize,
    pub end: usize,
}

/// A compiler and where its output is kept.
#[derive(Debug)]
pub struct Emulator {
    compiler: String,
    folder: PathBuf,
}

/// As which architecture a source is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    Ampere,
    /// With clusters, and copies that are counted.
    Hopper,
}

type Launch = unsafe extern "C" fn(
    *const c_uint,
    *const c_uint,
    c_uint,
    *const *mut c_void,
    *const Range,
    c_uint,
) -> *const c_char;

impl Emulator {
    /// `None`, said loudly, where there is no C++ compiler and none has to be.
    pub fn new() -> Option<Self> {
        static FOUND: OnceLock<Option<String>> = OnceLock::new();
        let compiler = FOUND.get_or_init(|| {
            let given = std::env::var("CXX").ok();
            given.into_iter().chain(["c++".into(), "g++".into(), "clang++".into()]).find(|name| {
                let quiet = || Stdio::null();
                Command::new(name).arg("--version").stdout(quiet()).stderr(quiet()).status().is_ok_and(|s| s.success())
            })
        });
        let Some(compiler) = compiler.clone() else {
            assert!(std::env::var_os("CI").is_none(), "there is no C++ compiler");
            planforge_skipped::skipped("there is no C++ compiler to emulate kernels with");
            return None;
        };
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
        fs::create_dir_all(&folder).expect("the folder of compiled kernels is made");
        Some(Self { compiler, folder })
    }

    /// Runs a kernel on operands at these addresses, all of them inside of `ranges`.
    ///
    /// # Safety
    /// The ranges are alive, and nothing else uses them.
    pub unsafe fn run(
        &self,
        kernel: &Generated,
        as_: As,
        operands: &[*mut c_void],
        ranges: &[Range],
    ) -> Result<(), String> {
        // One launch at a time: what blocks share is static.
        static TURN: Mutex<()> = Mutex::new(());
        let library = self.library(kernel, as_, operands.len())?;
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the library was compiled for this, and neither it nor what it links does anything when it is loaded.
        let said = unsafe {
            let library = libloading::Library::new(&library).map_err(|error| error.to_string())?;
            let launch: libloading::Symbol<'_, Launch> = library.get(b"launch\0").map_err(|error| error.to_string())?;
            let cluster = if as_ == As::Hopper { kernel.grid[1] } else { 1 };
            let count = ranges.len() as c_uint;
            let said =
                launch(kernel.grid.as_ptr(), kernel.block.as_ptr(), cluster, operands.as_ptr(), ranges.as_ptr(), count);
            (!said.is_null()).then(|| CStr::from_ptr(said).to_string_lossy().into_owned())
        };
        said.map_or(Ok(()), Err)
    }

    fn library(&self, kernel: &Generated, as_: As, operands: usize) -> Result<PathBuf, String> {
        let text = on_host(&kernel.source.text, as_)?;
        let arguments: Vec<String> = (0..operands).map(|index| format!("operands[{index}]")).collect();
        let types = vec!["void*"; operands].join(", ");
        let name = &kernel.source.name;
        let text = format!(
            "{text}\nstatic void* const* operands;\n\
             static void body() {{ ((void (*)({types}))(void*)&{name})({}); }}\n\
             extern \"C\" const char* launch(const unsigned* grid, const unsigned* block, unsigned cluster, void* const* given, \
             host::Range* ranges, unsigned count) {{\n\
             operands = given;\nreturn host::launch(body, grid, block, cluster, ranges, count);\n}}\n",
            arguments.join(", ")
        );
        let digest = source_digest(&planforge_cuda::source::Source { name: name.clone(), text: text.clone() });
        let library = self.folder.join(format!("{digest}.so"));
        if library.exists() {
            return Ok(library);
        }
        let own = tempfile::tempdir_in(&self.folder).map_err(|error| error.to_string())?;
        let (source, made) = (own.path().join("kernel.cc"), own.path().join("kernel.so"));
        fs::write(&source, &text).map_err(|error| error.to_string())?;
        let flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-fno-strict-aliasing", "-ffp-contract=off", "-o"];
        let done = Command::new(&self.compiler).args(flags).arg(&made).arg(&source).output();
        let done = done.map_err(|error| format!("{}: {error}", self.compiler))?;
        if !done.status.success() {
            return Err(format!("{name} does not compile: {}", String::from_utf8_lossy(&done.stderr)));
        }
        fs::rename(&made, &library).map_err(|error| error.to_string())?;
        Ok(library)
    }
}

/// The source with everything that only a GPU's compiler understands replaced by what `cuda.h` and `tensor.h` have.
fn on_host(text: &str, as_: As) -> Result<String, String> {
    let mut text = text.to_owned();
    let early = "#define LET_OTHERS_BEGIN\n#define AFTER_OTHERS\n#define FRESH(pointer) (pointer)\n";
    between(&mut text, "#if __CUDA_ARCH__ >= 900\n#define LET_OTHERS_BEGIN", "#endif\n", early)?;
    between(
        &mut text,
        "__device__ __forceinline__ float to_f(half_t h)",
        "\n",
        "inline float to_f(half_t h) { return half_to_float(h.b); }\n",
    )?;
    between(
        &mut text,
        "__device__ __forceinline__ void put(half_t& d, float f)",
        "\n",
        "inline void put(half_t& d, float f) { d.b = float_to_half(f); }\n",
    )?;
    between(
        &mut text,
        "__device__ __forceinline__ float exp2_(float x)",
        "\n",
        "inline float exp2_(float x) { float f = exp2f(x); return f < 1.17549435e-38f ? 0.0f : f; }\n",
    )?;
    let vectors = "reinterpret_cast<const R*>(p)[i]";
    if !text.contains(vectors) {
        return Err("vectors are loaded in another way than the emulator knows".into());
    }
    text = text.replace(vectors, "host::element(reinterpret_cast<const R*>(p), i)");
    text = text.replace("reinterpret_cast<R*>(p)[i] = r", "host::element(reinterpret_cast<R*>(p), i) = r");
    text = text.replace(include_str!("../../src/codegen/tensor.cuh"), include_str!("tensor.h"));
    text = text.replace(include_str!("../../src/codegen/arrivals.cuh"), include_str!("arrivals.h"));
    text = text.replace(
        "extern __shared__ __align__(128) unsigned char pool[];",
        "unsigned char* pool = host::shared_of_block();",
    );
    text = text.replace(
        "__shared__ __align__(128) unsigned char pool[POOL_BYTES];",
        "unsigned char* pool = host::shared_of_block();",
    );
    let sync = "asm volatile(\"barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;\" ::: \"memory\")";
    text = text.replace(sync, "CLUSTER_SYNC");
    let map = "asm volatile(\"mapa.shared::cluster.u32 %0, %1, %2;\" : \"=r\"(there) : \"r\"(here), \"r\"(other));";
    text = text.replace(map, "there = here + (other - (int)host::self->rank) * (int)host::SHARED_BYTES;");
    let read = "asm volatile(\"ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\" : \"=f\"(q.x), \"=f\"(q.y), \"=f\"(q.z), \"=f\"(q.w) : \"r\"(there));";
    text = text.replace(read, "q = host::element(reinterpret_cast<float4*>(shared_from(there)), 0);");
    let arch = if as_ == As::Hopper { 900 } else { 800 };
    let text = format!("#define __CUDA_ARCH__ {arch}\n{}\n{text}", include_str!("cuda.h"));
    Ok(text)
}

/// Replaces the one place from `from` up to and with `to`.
fn between(text: &mut String, from: &str, to: &str, by: &str) -> Result<(), String> {
    let begin = text.find(from).ok_or_else(|| format!("the prelude has no '{from}' any more"))?;
    let end = begin + text[begin..].find(to).ok_or_else(|| format!("'{from}' does not end"))? + to.len();
    text.replace_range(begin..end, by);
    Ok(())
}
