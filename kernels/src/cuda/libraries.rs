//! Where the NVIDIA libraries are, and what is missing.
//!
//! Looked for in this order (of cuDNN the newest counts, wherever it is): folders that `PLANFORGE_CUDA_LIBS` names, the loader's own path, `CUDA_HOME` and the usual
//! toolkit folders, and the layouts of NVIDIA's Python packages. A library is opened once, by absolute path and for the
//! whole process, so that libraries which look each other up by name find these and no others. One that lacks a symbol
//! used here counts as unusable: calls into it could otherwise end the process.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW, Symbol};
use std::{
    env,
    ffi::{c_int, c_void},
    fmt, fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Entries of a folder that are looked at; site-packages of large installations hold some thousands.
const MAX_ENTRIES: usize = 20_000;

/// A library that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Absolute path, or the bare name where the loader knew it.
    pub path: PathBuf,
    /// As the library itself says: driver and NVRTC `13.0`, cuDNN `9.19.0`, cuBLASLt `13.1.0`.
    pub version: String,
}

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    #[error("{name} was not found on the loader's path, under CUDA_HOME or in NVIDIA's Python packages")]
    NotFound { name: &'static str },
    #[error("{} does not load: {reason}", path.display())]
    Broken { path: PathBuf, reason: String },
    #[error("{} lacks the function {symbol}: a stub, or a version this program does not know", path.display())]
    Symbol { path: PathBuf, symbol: &'static str },
    #[error("{} has version {found}; at least {least} is needed", path.display())]
    TooOld { path: PathBuf, found: String, least: &'static str },
}

type Slot = Result<Found, Missing>;

/// What this process can call.
#[derive(Clone, Debug)]
pub struct Libraries {
    /// `libcuda`: without it there is no device.
    pub driver: Slot,
    /// Compiles kernels; without it only cubins that a cache or a plan holds run.
    pub nvrtc: Slot,
    /// Matrix products; without it own kernels compute them.
    pub blaslt: Slot,
    /// Convolutions and attention; without it own kernels compute them.
    pub dnn: Slot,
}

/// Proof that a library is loaded and complete; only [`Libraries`] makes one.
macro_rules! token {
    ($(#[$doc:meta])* $name:ident, $slot:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name(());

        impl $name {
            /// The token, when the library can be used.
            pub fn get() -> Result<Self, Missing> {
                libraries().$slot.clone().map(|_| Self(()))
            }
        }
    };
}

token!(
    /// The CUDA driver can be called.
    Driver,
    driver
);
token!(
    /// NVRTC can be called.
    Nvrtc,
    nvrtc
);
token!(
    /// cuBLASLt can be called.
    BlasLt,
    blaslt
);
token!(
    /// cuDNN can be called.
    Dnn,
    dnn
);

/// The libraries of this process, opened at the first call.
pub fn libraries() -> &'static Libraries {
    static LIBRARIES: OnceLock<Libraries> = OnceLock::new();
    LIBRARIES.get_or_init(|| Search::of_this_host().open_all())
}

/// What is known of one library.
struct Wanted {
    name: &'static str,
    /// File names, best first; a trailing `*` stands for any rest.
    files: &'static [&'static str],
    /// Opened before it, from the same folder, where present.
    before: &'static [&'static str],
    symbols: &'static [&'static str],
    version: fn(&Library) -> Option<String>,
    least: &'static str,
    /// Open every candidate and keep the newest: for a library of which hosts often carry several.
    newest: bool,
}

const DRIVER: Wanted = Wanted {
    name: "the CUDA driver (libcuda.so.1)",
    files: &["libcuda.so.1"],
    before: &[],
    symbols: &[
        "cuInit",
        "cuDevicePrimaryCtxRetain",
        "cuModuleLoadData",
        "cuLaunchKernel",
        "cuGraphInstantiateWithFlags",
    ],
    version: |library| {
        let mut number = 0;
        // SAFETY: `cuDriverGetVersion` writes one int and may be called before `cuInit`.
        unsafe {
            let ask: Symbol<unsafe extern "C" fn(*mut c_int) -> c_int> = library.get(b"cuDriverGetVersion").ok()?;
            (ask(&mut number) == 0).then(|| format!("{}.{}", number / 1000, number % 1000 / 10))
        }
    },
    least: "11.4",
    newest: false,
};

const NVRTC: Wanted = Wanted {
    name: "NVRTC (libnvrtc.so)",
    files: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"],
    // Without them every compilation fails: NVRTC asks the loader for them by name.
    before: &["libnvrtc-builtins.so*"],
    symbols: &[
        "nvrtcCreateProgram",
        "nvrtcCompileProgram",
        "nvrtcGetCUBIN",
        "nvrtcGetCUBINSize",
        "nvrtcGetSupportedArchs",
    ],
    version: |library| {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: `nvrtcVersion` writes two ints.
        unsafe {
            let ask: Symbol<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int> =
                library.get(b"nvrtcVersion").ok()?;
            (ask(&mut major, &mut minor) == 0).then(|| format!("{major}.{minor}"))
        }
    },
    least: "11.2",
    newest: false,
};

const BLASLT: Wanted = Wanted {
    name: "cuBLASLt (libcublasLt.so)",
    files: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"],
    before: &["libcudart.so*"],
    symbols: &["cublasLtCreate", "cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic"],
    version: |library| {
        // SAFETY: `cublasLtGetVersion` takes nothing and returns a number.
        let number = unsafe {
            let ask: Symbol<unsafe extern "C" fn() -> usize> = library.get(b"cublasLtGetVersion").ok()?;
            ask()
        };
        // 11 and 12 count major.minor.patch as 5 or 6 digits, like 120805 and 130100.
        Some(digits(number))
    },
    least: "11.6",
    newest: false,
};

const DNN: Wanted = Wanted {
    name: "cuDNN (libcudnn.so.9)",
    files: &["libcudnn.so.9"],
    // Its parts look for these two by name.
    before: &["libcublasLt.so.1*", "libcublas.so.1*"],
    symbols: &["cudnnCreate", "cudnnBackendCreateDescriptor", "cudnnBackendExecute", "cudnnGetLastErrorString"],
    version: |library| {
        // SAFETY: `cudnnGetVersion` takes nothing and returns a number.
        let number = unsafe {
            let ask: Symbol<unsafe extern "C" fn() -> usize> = library.get(b"cudnnGetVersion").ok()?;
            ask()
        };
        Some(digits(number))
    },
    least: "9.0",
    newest: true,
};

/// Folders in which libraries are looked for, besides the loader's own path.
#[derive(Debug)]
struct Search {
    /// Come before the loader's path.
    named: Vec<PathBuf>,
    /// Come after it.
    usual: Vec<PathBuf>,
}

impl Search {
    fn of_this_host() -> Self {
        let named = env::var_os("PLANFORGE_CUDA_LIBS").iter().flat_map(env::split_paths).collect();
        let mut usual = Vec::new();
        let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(PathBuf::from);
        for home in homes.chain([PathBuf::from("/usr/local/cuda")]) {
            usual.extend(
                ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"].map(|sub| home.join(sub)),
            );
        }
        // Where container run-times mount the driver.
        usual.extend(["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib"].map(PathBuf::from));
        for packages in site_packages() {
            usual.extend(package_folders(&packages));
        }
        Self { named, usual }
    }

    fn open_all(&self) -> Libraries {
        let driver = self.open(&DRIVER);
        let nvrtc = self.open(&NVRTC).map(|found| as_called(found, "libnvrtc.so", called::nvrtc));
        let blaslt = self.open(&BLASLT).map(|found| as_called(found, "libcublasLt.so", called::blaslt));
        let dnn = self.open(&DNN).map(|found| as_called(found, "libcudnn.so", called::dnn));
        Libraries { driver, nvrtc, blaslt, dnn }
    }

    /// Opens the first candidate that is complete; otherwise says what was wrong with the first one that exists.
    fn open(&self, wanted: &Wanted) -> Slot {
        let mut first_problem = None;
        let in_folders = |folders: &[PathBuf]| -> Vec<PathBuf> {
            folders.iter().flat_map(|folder| wanted.files.iter().map(|file| folder.join(file))).collect()
        };
        let present = |paths: Vec<PathBuf>| paths.into_iter().filter(|path| path.exists());
        let by_name = wanted.files.iter().map(PathBuf::from);
        let candidates = present(in_folders(&self.named)).chain(by_name).chain(present(in_folders(&self.usual)));
        let mut candidates = candidates.collect::<Vec<_>>();
        if wanted.newest {
            candidates.sort_by_cached_key(|path| std::cmp::Reverse(probed_version(path, wanted)));
        }
        for path in candidates {
            if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                self.open_helpers(folder, wanted.before);
            }
            match open_one(&path, wanted) {
                Ok(found) => return Ok(found),
                // The loader not knowing a bare name only means that this is not where it is.
                Err(Missing::Broken { .. }) if path.components().count() == 1 => {}
                Err(problem) => first_problem = first_problem.or(Some(problem)),
            }
        }
        Err(first_problem.unwrap_or(Missing::NotFound { name: wanted.name }))
    }

    /// Opens what a library will look for by name; in its own folder, else in any other.
    fn open_helpers(&self, folder: &Path, patterns: &[&str]) {
        for pattern in patterns {
            let mut folders = [folder].into_iter().chain(self.usual.iter().map(PathBuf::as_path));
            if let Some(helper) = folders.find_map(|folder| matching(folder, pattern)) {
                // One that does not load is told by the library that needs it.
                let _ = open_for_good(&helper);
            }
        }
    }
}

/// What is really called: the bindings ask the loader for the name without a version first, and where that is another
/// library (a developer's link), no library opened before takes its place.
fn as_called(found: Found, name: &str, version: fn() -> Option<String>) -> Found {
    match version() {
        Some(version) if version != found.version => {
            tracing::warn!(
                library = name,
                found = %found.path.display(),
                found_version = found.version,
                version,
                "the loader's own library is called instead of the one that was found: put the wanted one first in LD_LIBRARY_PATH"
            );
            Found { path: name.into(), version }
        }
        _ => found,
    }
}

/// Versions as the bindings' own libraries tell them.
mod called {
    use cudarc::{cublaslt, cudnn, nvrtc};

    pub fn nvrtc() -> Option<String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library was opened and writes two ints.
        let asked = unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
        (asked == nvrtc::sys::nvrtcResult::NVRTC_SUCCESS).then(|| format!("{major}.{minor}"))
    }

    pub fn blaslt() -> Option<String> {
        // SAFETY: the library was opened; the function takes nothing and returns a number.
        Some(super::digits(unsafe { cublaslt::sys::cublasLtGetVersion() }))
    }

    pub fn dnn() -> Option<String> {
        // SAFETY: as above.
        Some(super::digits(unsafe { cudnn::sys::cudnnGetVersion() }))
    }
}

/// major.minor.patch of a number such as 91900 or 130100.
fn digits(number: usize) -> String {
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

fn open_one(path: &Path, wanted: &Wanted) -> Slot {
    let library = open_for_good(path).map_err(|reason| Missing::Broken { path: path.to_owned(), reason })?;
    for symbol in wanted.symbols {
        // SAFETY: the symbol is only looked up, never called or read.
        let present = unsafe { library.get::<*const c_void>(symbol.as_bytes()) }.is_ok();
        if !present {
            return Err(Missing::Symbol { path: path.to_owned(), symbol });
        }
    }
    let version = (wanted.version)(library).unwrap_or_default();
    if older(&version, wanted.least) {
        return Err(Missing::TooOld { path: path.to_owned(), found: version, least: wanted.least });
    }
    Ok(Found { path: path.to_owned(), version })
}

/// The version of a library that is opened only to ask for it.
fn probed_version(path: &Path, wanted: &Wanted) -> Vec<u64> {
    // SAFETY: as in `open_for_good`; nothing of it is kept.
    let library = unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) };
    let version = library.ok().and_then(|library| (wanted.version)(&library));
    version_parts(&version.unwrap_or_default())
}

/// Opens a library for the whole process and for ever: its functions are called through static pointers.
fn open_for_good(path: &Path) -> Result<&'static Library, String> {
    // SAFETY: the initialisers of NVIDIA's libraries have no requirement on the caller.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    library.map(|library| &*Box::leak(Box::new(library))).map_err(|error| error.to_string())
}

/// Whether a dotted version is below another, by number.
fn older(version: &str, least: &str) -> bool {
    version_parts(version) < version_parts(least)
}

fn version_parts(text: &str) -> Vec<u64> {
    text.split('.').map_while(|part| part.parse().ok()).collect()
}

/// The file of `folder` that fits `pattern`, the last by name when several do.
fn matching(folder: &Path, pattern: &str) -> Option<PathBuf> {
    let prefix = pattern.trim_end_matches('*');
    let entries = fs::read_dir(folder).ok()?.take(MAX_ENTRIES).flatten();
    let fits =
        |name: &str| name.starts_with(prefix) && !name.contains(".alt.") && (pattern.ends_with('*') || name == prefix);
    entries.map(|entry| entry.path()).filter(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(fits)).max()
}

/// Folders of Python packages that this user's interpreters would look in.
fn site_packages() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = Vec::new();
    prefixes.extend(env::var_os("VIRTUAL_ENV").map(PathBuf::from));
    let on_path = env::var_os("PATH").iter().flat_map(env::split_paths).collect::<Vec<_>>();
    // An environment that is on the path without being activated; its `python3` is a link, so its folder counts.
    prefixes
        .extend(on_path.iter().filter(|bin| bin.join("python3").exists()).filter_map(|bin| Some(bin.parent()?.into())));
    prefixes.extend(env::var_os("HOME").map(|home| PathBuf::from(home).join(".local")));
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    let mut found = Vec::new();
    for lib in prefixes.iter().map(|prefix| prefix.join("lib")) {
        let Ok(entries) = fs::read_dir(&lib) else { continue };
        let versions = entries.take(MAX_ENTRIES).flatten().map(|entry| entry.path());
        let mut versions = versions.filter(|path| is_python(path)).collect::<Vec<_>>();
        versions.sort_unstable();
        for version in versions.into_iter().rev() {
            found.extend(
                ["site-packages", "dist-packages"].map(|sub| version.join(sub)).into_iter().filter(|p| p.is_dir()),
            );
        }
    }
    found.dedup();
    found
}

fn is_python(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("python3"))
}

/// The library folders of NVIDIA's packages: `nvidia/cu13/lib`, `nvidia/cudnn/lib`, `nvidia/cublas/lib`, ...
fn package_folders(packages: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(packages.join("nvidia")) else { return Vec::new() };
    let mut folders = entries
        .take(MAX_ENTRIES)
        .flatten()
        .map(|entry| entry.path().join("lib"))
        .filter(|p| p.is_dir())
        .collect::<Vec<_>>();
    folders.sort_unstable();
    folders
}

impl fmt::Display for Libraries {
    /// One line a library.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots =
            [("driver", &self.driver), ("nvrtc", &self.nvrtc), ("cublaslt", &self.blaslt), ("cudnn", &self.dnn)];
        for (name, slot) in slots {
            match slot {
                Ok(found) => writeln!(f, "{name} {} ({})", found.version, found.path.display())?,
                Err(missing) => writeln!(f, "{name}: {missing}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Wanted = Wanted {
        name: "a library of the test",
        files: &["libplanforge-test.so.1"],
        before: &[],
        symbols: &["planforge_nothing_has_this"],
        version: |_| Some("1.0".into()),
        least: "1.0",
        newest: false,
    };

    #[test]
    fn what_is_missing_is_said_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let search = Search { named: vec![folder.path().to_owned()], usual: Vec::new() };
        assert_eq!(search.open(&ANY), Err(Missing::NotFound { name: ANY.name }));
        let file = folder.path().join("libplanforge-test.so.1");
        fs::write(&file, b"no library").unwrap();
        assert!(matches!(search.open(&ANY), Err(Missing::Broken { path, .. }) if path == file));
    }

    #[test]
    fn a_stub_without_the_functions_is_unusable() {
        let libc = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6", "/lib64/libm.so.6"];
        let Some(libm) = libc.iter().map(Path::new).find(|path| path.exists()) else { return };
        let folder = tempfile::tempdir().unwrap();
        let stub = folder.path().join("libplanforge-test.so.1");
        std::os::unix::fs::symlink(libm, &stub).unwrap();
        let search = Search { named: vec![folder.path().to_owned()], usual: Vec::new() };
        let refused = search.open(&ANY).unwrap_err();
        assert_eq!(refused, Missing::Symbol { path: stub, symbol: "planforge_nothing_has_this" });
        let old = Wanted { symbols: &["cos"], least: "2.1", ..ANY };
        assert!(matches!(search.open(&old), Err(Missing::TooOld { .. })));
        assert_eq!(search.open(&Wanted { symbols: &["cos"], ..ANY }).unwrap().version, "1.0");
    }

    #[test]
    fn python_packages_are_looked_through() {
        let folder = tempfile::tempdir().unwrap();
        let lib = folder.path().join("nvidia/cu13/lib");
        fs::create_dir_all(&lib).unwrap();
        assert_eq!(package_folders(folder.path()), std::slice::from_ref(&lib));
        for name in ["libnvrtc-builtins.so.12.9", "libnvrtc-builtins.so.13.0", "libnvrtc-builtins.alt.so.13.0"] {
            fs::write(lib.join(name), b"").unwrap();
        }
        assert_eq!(matching(&lib, "libnvrtc-builtins.so*"), Some(lib.join("libnvrtc-builtins.so.13.0")));
        assert_eq!(matching(&lib, "libcudart.so*"), None);
    }

    #[test]
    fn versions_compare_by_number() {
        assert!(older("9.9", "9.10"));
        assert!(!older("13.0", "11.4"));
        assert!(older("", "1.0"));
    }
}
