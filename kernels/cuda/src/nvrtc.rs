//! CUDA C++ to a cubin for one exact architecture.
//!
//! No header of a toolkit is ever in reach: sources bring what they need. A cubin is kept under a digest of everything
//! that decides it (source, options, architecture, NVRTC version), so that a kernel is compiled once per host.

use super::{
    calls::nvrtc as calls,
    libraries::{self, Nvrtc},
};
use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult as Status};
use planforge_types::durable;
use sha2::{Digest as _, Sha256};
use std::{
    ffi::{CStr, CString, c_char, c_int},
    fmt, fs, io,
    path::{Path, PathBuf},
    ptr,
    str::FromStr,
};

/// Largest source that is compiled; generated kernels stay far below.
const MAX_SOURCE_BYTES: usize = 4 << 20;

/// The first NVRTC that knows `--minimal`.
const MINIMAL_SINCE: &str = "12.4";

/// A real architecture, `sm_90a`: cubins run on it alone (and later minors of it, without the letter).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arch {
    /// Compute capability without its dot: 75, 80, 90, 100.
    pub capability: u32,
    /// With the instructions that only this very architecture has: `a`.
    pub specific: bool,
}

impl Arch {
    /// The architecture of a device; from 9.0 on with what is specific to it.
    pub fn of_device(major: u32, minor: u32) -> Self {
        let capability = major * 10 + minor;
        Self { capability, specific: capability >= 90 }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.capability, if self.specific { "a" } else { "" })
    }
}

/// A text that names no architecture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no architecture; write for example sm_80 or sm_90a")]
pub struct ArchParseError(String);

impl FromStr for Arch {
    type Err = ArchParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ArchParseError(text.chars().take(40).collect());
        let rest = text.strip_prefix("sm_").ok_or_else(fail)?;
        let (digits, specific) = rest.strip_suffix('a').map_or((rest, false), |digits| (digits, true));
        let capability = digits.parse().map_err(|_| fail())?;
        Ok(Self { capability, specific })
    }
}

/// What compiling gave: machine code of one source for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    pub bytes: Vec<u8>,
    /// The compiler's words; warnings, or empty.
    pub log: String,
}

/// Why a source has no cubin.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    #[error(transparent)]
    Missing(#[from] super::libraries::Missing),
    #[error("kernel {name} has {bytes} bytes of source, more than the {MAX_SOURCE_BYTES} allowed")]
    TooLong { name: String, bytes: usize },
    #[error("kernel {name} or one of its options has a zero byte")]
    Zero { name: String },
    #[error("kernel {name} does not compile for {arch}: {log}")]
    Source { name: String, arch: Arch, log: String, text: String },
    #[error("NVRTC cannot {what} of kernel {name}: {reason}")]
    Library { name: String, what: &'static str, reason: String },
    #[error("a process was to compile kernel {name}: {reason}")]
    Process { name: String, reason: String },
}

/// What is compiled.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// For messages.
    pub name: &'a str,
    /// CUDA C++ whose kernels are `extern "C"`.
    pub text: &'a str,
    /// Beyond the architecture and the language's standard, `-DTILE=64`.
    pub options: &'a [String],
}

/// Compiles without any cache.
pub fn compile(source: Source<'_>, arch: Arch) -> Result<Compiled, CompileError> {
    let _token = Nvrtc::get()?;
    let name = source.name.to_owned();
    if source.text.len() > MAX_SOURCE_BYTES {
        return Err(CompileError::TooLong { name, bytes: source.text.len() });
    }
    let zero = |_| CompileError::Zero { name: source.name.into() };
    let text = CString::new(source.text).map_err(zero)?;
    let file = CString::new(format!("{}.cu", source.name)).map_err(zero)?;
    let options: Vec<CString> = all_options(source.options, arch, version())
        .into_iter()
        .map(CString::new)
        .collect::<Result<_, _>>()
        .map_err(zero)?;
    let library = |what| {
        let name = source.name.to_owned();
        move |status: Status| CompileError::Library { name, what, reason: format!("{status:?}") }
    };
    let program = Program::new(&text, &file).map_err(library("make a program"))?;
    let compiled = program.compile(&options);
    let log = program.log();
    match compiled {
        Ok(()) => {}
        Err(Status::NVRTC_ERROR_COMPILATION | Status::NVRTC_ERROR_INVALID_OPTION) => {
            return Err(CompileError::Source { name, arch, log, text: source.text.into() });
        }
        Err(other) => {
            let reason = format!("{other:?}: {log}");
            return Err(CompileError::Library { name, what: "compile the source", reason });
        }
    }
    let bytes = program.cubin().map_err(library("hand over the machine code"))?;
    Ok(Compiled { bytes, log })
}

/// The version of the NVRTC that compiles here; empty where there is none.
fn version() -> &'static str {
    libraries::nvrtc().as_ref().map_or("", |found| &found.version)
}

fn all_options(options: &[String], arch: Arch, version: &str) -> Vec<String> {
    let mut all = vec![format!("--gpu-architecture={arch}"), "--std=c++17".into(), "-default-device".into()];
    // Without declarations of textures and of the run-time's interface, which no kernel of ours uses: less to parse.
    if !libraries::older(version, MINIMAL_SINCE) {
        all.push("--minimal".into());
    }
    all.extend(options.iter().cloned());
    all
}

/// Turns a status into a result.
fn done(status: Status) -> Result<(), Status> {
    if status == Status::NVRTC_SUCCESS { Ok(()) } else { Err(status) }
}

/// Destroys its program at the end.
struct Program(nvrtcProgram);

impl Program {
    fn new(text: &CStr, file: &CStr) -> Result<Self, Status> {
        let mut program = ptr::null_mut();
        // SAFETY: the library copies both texts and writes the program; there are no headers.
        done(unsafe {
            calls::nvrtcCreateProgram(&mut program, text.as_ptr(), file.as_ptr(), 0, ptr::null(), ptr::null())
        })?;
        Ok(Self(program))
    }

    fn compile(&self, options: &[CString]) -> Result<(), Status> {
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive, and so are as many options as are told during the call.
        done(unsafe { calls::nvrtcCompileProgram(self.0, options.len() as c_int, options.as_ptr()) })
    }

    /// The compiler's words; empty when it has none to give.
    fn log(&self) -> String {
        // SAFETY: the program is alive; the second call writes exactly `size` characters.
        let log = unsafe {
            let mut size = 0;
            done(calls::nvrtcGetProgramLogSize(self.0, &mut size)).and_then(|()| {
                let mut log = vec![0u8; size];
                done(calls::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast())).map(|()| log)
            })
        };
        let bytes: Vec<u8> = log.unwrap_or_default().into_iter().take_while(|&c| c != 0).collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, Status> {
        let mut size = 0;
        // SAFETY: the program is alive and compiled; the second call writes exactly `size` bytes.
        unsafe {
            done(calls::nvrtcGetCUBINSize(self.0, &mut size))?;
            let mut bytes = vec![0u8; size];
            done(calls::nvrtcGetCUBIN(self.0, bytes.as_mut_ptr().cast()))?;
            Ok(bytes)
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `Program::new` and destroyed once.
        unsafe { calls::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// Architectures that the loaded NVRTC compiles for.
pub fn supported() -> Result<Vec<u32>, CompileError> {
    let _token = Nvrtc::get()?;
    let library = |status: Status| CompileError::Library {
        name: String::new(),
        what: "list the architectures",
        reason: format!("{status:?}"),
    };
    let mut count = 0;
    // SAFETY: both calls write what their argument points to, the second `count` ints.
    unsafe {
        done(calls::nvrtcGetNumSupportedArchs(&mut count)).map_err(library)?;
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        done(calls::nvrtcGetSupportedArchs(archs.as_mut_ptr())).map_err(library)?;
        Ok(archs.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect())
    }
}

/// Cubins kept in a folder; several processes may share it.
#[derive(Clone, Debug)]
pub struct CubinCache {
    folder: Option<PathBuf>,
}

impl CubinCache {
    /// Keeps cubins in `folder`, which is made when first needed; `None` keeps nothing.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    /// The kept cubin, else a fresh one, which is then kept. A folder that cannot be written only costs time.
    pub fn compile(&self, source: Source<'_>, arch: Arch) -> Result<Vec<u8>, CompileError> {
        self.compile_by(source, arch, compile)
    }

    /// The same; `compile` makes the fresh one.
    pub fn compile_by(
        &self,
        source: Source<'_>,
        arch: Arch,
        compile: impl FnOnce(Source<'_>, Arch) -> Result<Compiled, CompileError>,
    ) -> Result<Vec<u8>, CompileError> {
        let Some(folder) = &self.folder else { return Ok(compile(source, arch)?.bytes) };
        let file = folder.join(format!("{}.cubin", key(source, arch)));
        if let Ok(bytes) = fs::read(&file)
            && let Some(cubin) = unseal(&bytes)
        {
            return Ok(cubin.to_vec());
        }
        let cubin = compile(source, arch)?.bytes;
        if let Err(error) = keep(folder, &file, &cubin) {
            tracing::debug!(file = %file.display(), %error, "a cubin is not kept");
        }
        Ok(cubin)
    }
}

/// Digest of everything that decides a cubin.
fn key(source: Source<'_>, arch: Arch) -> String {
    let version = version();
    let mut hash = Sha256::new();
    let options = all_options(source.options, arch, version);
    for part in ["planforge-cubin-v1", version, source.text].into_iter().chain(options.iter().map(String::as_str)) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const SEAL_BYTES: usize = 32;

/// The cubin behind its own digest: a torn or foreign file is never loaded.
fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (seal, cubin) = bytes.split_at_checked(SEAL_BYTES)?;
    (Sha256::digest(cubin)[..] == *seal).then_some(cubin)
}

fn keep(folder: &Path, file: &Path, cubin: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut sealed = Sha256::digest(cubin).to_vec();
    sealed.extend_from_slice(cubin);
    durable::write_cache(file, &sealed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = r#"extern "C" __global__ void scale(float* x, float a, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] *= a;
    }"#;

    fn source(text: &str) -> Source<'_> {
        Source { name: "test", text, options: &[] }
    }

    #[test]
    fn architectures_read_and_write_alike() {
        for text in ["sm_75", "sm_80", "sm_90a", "sm_100a"] {
            assert_eq!(text.parse::<Arch>().unwrap().to_string(), text);
        }
        assert_eq!(Arch::of_device(9, 0).to_string(), "sm_90a");
        assert_eq!(Arch::of_device(8, 6).to_string(), "sm_86");
        for text in ["90", "sm_", "sm_9x", "sm_90aa"] {
            assert!(text.parse::<Arch>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_kept_cubin_is_used_only_while_it_is_whole() {
        let sealed = [&Sha256::digest(b"code")[..], b"code"].concat();
        assert_eq!(unseal(&sealed), Some(&b"code"[..]));
        assert_eq!(unseal(&sealed[..sealed.len() - 1]), None);
        assert_eq!(unseal(b"short"), None);
    }

    #[test]
    fn the_key_tells_everything_apart_that_decides_the_code() {
        let arch = |text: &str| text.parse::<Arch>().unwrap();
        let options = ["-DX=1".to_owned()];
        let keys = [
            key(source("a"), arch("sm_80")),
            key(source("b"), arch("sm_80")),
            key(source("a"), arch("sm_90a")),
            key(Source { options: &options, ..source("a") }, arch("sm_80")),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn only_what_the_compiler_knows_is_asked_of_it() {
        let minimal = |version| all_options(&[], Arch::of_device(8, 0), version).contains(&"--minimal".to_owned());
        assert_eq!(["", "11.8", "12.3", "12.4", "13.0"].map(minimal), [false, false, false, true, true]);
    }

    #[test]
    fn kernels_compile_where_nvrtc_is_found() {
        if let Err(missing) = Nvrtc::get() {
            return assert!(
                matches!(compile(source(KERNEL), Arch::of_device(8, 0)), Err(CompileError::Missing(_))),
                "{missing}"
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(Some(folder.path().join("cubins")));
        for arch in supported().unwrap() {
            let arch = Arch { capability: arch, specific: arch >= 90 };
            let cubin = cache.compile(source(KERNEL), arch).unwrap();
            assert!(cubin.starts_with(b"\x7fELF"), "{arch}");
            assert_eq!(cache.compile(source(KERNEL), arch).unwrap(), cubin);
        }
        let error =
            compile(source("extern \"C\" __global__ void f() { undeclared(); }"), Arch::of_device(8, 0)).unwrap_err();
        assert!(error.to_string().contains("undeclared"), "{error}");
    }
}
