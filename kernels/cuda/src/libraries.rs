//! Where the NVIDIA libraries are, and what is missing.
//!
//! Looked for in this order (of cuDNN the newest counts, wherever it is): folders that `PLANFORGE_CUDA_LIBS` names, the
//! loader's own path, `CUDA_HOME` and the usual toolkit folders, and the layouts of NVIDIA's Python packages. A library
//! is opened once, by absolute path and for the whole process, so that libraries which look each other up by name find
//! these and no others; what is called are the functions of that very file (`calls`). One that lacks a function used
//! here counts as unusable: calls into it could otherwise end the process.

use super::calls;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW, Symbol};
use std::{
    env,
    ffi::{CStr, CString, OsStr, c_int, c_void},
    fmt, fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    ptr,
    sync::OnceLock,
};

/// Entries of a folder that are looked at; site-packages of large installations hold some thousands.
const MAX_ENTRIES: usize = 20_000;

/// Candidates whose versions are asked for: the loader has sixteen namespaces.
const MAX_PROBED: usize = 8;

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
    #[error(
        "{} is not what the loader opens as libcuda.so: that is {}, often a toolkit's stub; take its folder out of \
         LD_LIBRARY_PATH",
        path.display(),
        by.display()
    )]
    Shadowed { path: PathBuf, by: PathBuf },
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

/// Proof that a library is loaded and complete; only this module makes one.
macro_rules! token {
    ($(#[$doc:meta])* $name:ident, $slot:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name(());

        impl $name {
            /// The token, when the library can be used.
            pub fn get() -> Result<Self, Missing> {
                $slot.clone().map(|_| Self(()))
            }
        }
    };
}

token!(
    /// The CUDA driver can be called.
    Driver,
    libraries().driver
);
token!(
    /// NVRTC can be called.
    Nvrtc,
    nvrtc()
);
token!(
    /// cuBLASLt can be called.
    BlasLt,
    libraries().blaslt
);
token!(
    /// cuDNN can be called.
    Dnn,
    libraries().dnn
);

/// The libraries of this process, opened at the first call.
pub fn libraries() -> &'static Libraries {
    static LIBRARIES: OnceLock<Libraries> = OnceLock::new();
    LIBRARIES.get_or_init(|| Search::of_this_host().open_all())
}

/// NVRTC of this process, opened at the first call, by whatever asks for it: what only compiles opens no other library.
pub fn nvrtc() -> &'static Result<Found, Missing> {
    static SLOT: OnceLock<Slot> = OnceLock::new();
    SLOT.get_or_init(|| Search::of_this_host().open_into(&NVRTC, calls::nvrtc::open))
}

/// What is known of one library.
struct Wanted {
    name: &'static str,
    /// File names, best first; a trailing `*` stands for any rest.
    files: &'static [&'static str],
    /// Opened before it, from the same folder, where present.
    before: &'static [&'static str],
    /// What it opens by name once it is called, the ones that others need first; must be of its own folder.
    parts: &'static [&'static str],
    symbols: &'static [&'static str],
    version: fn(&Library) -> Option<String>,
    least: &'static str,
    /// Of several candidates the newest is opened: for a library of which hosts often carry several.
    newest: bool,
}

const DRIVER: Wanted = Wanted {
    name: "the CUDA driver (libcuda.so.1)",
    files: &["libcuda.so.1"],
    before: &[],
    parts: &[],
    symbols: calls::driver::NAMES,
    version: |library| {
        let mut number = 0;
        // SAFETY: `cuDriverGetVersion` writes one int and may be called before `cuInit`.
        unsafe {
            let ask: Symbol<unsafe extern "C" fn(*mut c_int) -> c_int> = library.get(b"cuDriverGetVersion").ok()?;
            (ask(&mut number) == 0).then(|| format!("{}.{}", number / 1000, number % 1000 / 10))
        }
    },
    least: "11.8",
    newest: false,
};

const NVRTC: Wanted = Wanted {
    name: "NVRTC (libnvrtc.so)",
    files: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"],
    // Without them every compilation fails: NVRTC asks the loader for them by name.
    before: &["libnvrtc-builtins.so*"],
    parts: &[],
    symbols: calls::nvrtc::NAMES,
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
    parts: &[],
    symbols: calls::blaslt::NAMES,
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
    parts: &[
        "libcudnn_graph.so.9",
        "libcudnn_ops.so.9",
        "libcudnn_heuristic.so.9",
        "libcudnn_engines_precompiled.so.9",
        "libcudnn_engines_runtime_compiled.so.9",
        "libcudnn_engines_tensor_ir.so.9",
        "libcudnn_ext.so.9",
    ],
    symbols: calls::dnn::NAMES,
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
        Libraries {
            driver: self.open_driver(),
            nvrtc: nvrtc().clone(),
            blaslt: self.open_into(&BLASLT, calls::blaslt::open),
            dnn: self.open_into(&DNN, calls::dnn::open),
        }
    }

    /// Opens a library whose functions `into` takes.
    fn open_into(&self, wanted: &Wanted, into: fn(&'static Library) -> Result<(), &'static str>) -> Slot {
        let (found, library) = self.open(wanted)?;
        into(library).map_err(|symbol| Missing::Symbol { path: found.path.clone(), symbol })?;
        Ok(found)
    }

    /// The driver is called through bindings that open it once more, by the name without a version.
    fn open_driver(&self) -> Slot {
        let (found, library) = self.open(&DRIVER)?;
        calls::driver::open(library).map_err(|symbol| Missing::Symbol { path: found.path.clone(), symbol })?;
        match called_instead(library, Path::new("libcuda.so"), "cuInit") {
            Some(by) => Err(Missing::Shadowed { path: found.path, by }),
            None => Ok(found),
        }
    }

    /// Opens the first candidate that is complete; otherwise says what was wrong with the first one that exists.
    fn open(&self, wanted: &Wanted) -> Result<(Found, &'static Library), Missing> {
        let mut first_problem = None;
        let in_folders = |folders: &[PathBuf]| -> Vec<PathBuf> {
            folders.iter().flat_map(|folder| wanted.files.iter().map(|file| folder.join(file))).collect()
        };
        let present = |paths: Vec<PathBuf>| paths.into_iter().filter(|path| path.exists());
        let by_name = wanted.files.iter().map(PathBuf::from);
        let candidates = present(in_folders(&self.named)).chain(by_name).chain(present(in_folders(&self.usual)));
        let mut candidates = candidates.collect::<Vec<_>>();
        if wanted.newest && candidates.len() > 1 {
            candidates.truncate(MAX_PROBED);
            candidates.sort_by_cached_key(|path| std::cmp::Reverse(probed_version(path, wanted)));
        }
        for path in candidates {
            if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                self.open_helpers(folder, wanted.before);
                open_parts(folder, wanted.parts);
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
            let mut folders = [folder].into_iter().chain(self.named.iter().chain(&self.usual).map(PathBuf::as_path));
            if let Some(helper) = folders.find_map(|folder| matching(folder, pattern)) {
                // One that does not load is told by the library that needs it.
                let _ = open_for_good(&helper);
            }
        }
    }
}

/// major.minor.patch of a number such as 91900 or 130100.
fn digits(number: usize) -> String {
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

/// The file that answers for `symbol` where the library is opened as `name`, if that is another than `library`.
fn called_instead(library: &Library, name: &Path, symbol: &str) -> Option<PathBuf> {
    // SAFETY: as in `open_for_good`; the symbol is only looked up.
    let (other, own, reached) = unsafe {
        let other = Library::open(Some(name), RTLD_LAZY | RTLD_LOCAL).ok()?;
        let own = library.get::<*const c_void>(symbol.as_bytes()).ok()?.into_raw();
        let reached = other.get::<*const c_void>(symbol.as_bytes()).ok()?.into_raw();
        (other, own, reached)
    };
    if own == reached {
        return None;
    }
    // SAFETY: an all-zero answer is one that names nothing; the loader writes it, and the name it points to lives as long
    // as `other` is open.
    let path = unsafe {
        let mut answer: libc::Dl_info = std::mem::zeroed();
        let known = libc::dladdr(reached, &mut answer) != 0 && !answer.dli_fname.is_null();
        known.then(|| PathBuf::from(OsStr::from_bytes(CStr::from_ptr(answer.dli_fname).to_bytes())))
    };
    drop(other);
    Some(path.unwrap_or_else(|| name.to_owned()))
}

/// Opens what a library will look for by name from its own folder, where the loader would look elsewhere first.
fn open_parts(folder: &Path, parts: &[&str]) {
    if env::var_os("LD_LIBRARY_PATH").is_none_or(|paths| paths.is_empty()) {
        return;
    }
    for part in parts.iter().map(|part| folder.join(part)).filter(|part| part.exists()) {
        // SAFETY: as in `open_for_good`. A part that does not load is told by the library that needs it.
        if let Ok(library) = unsafe { Library::open(Some(part), RTLD_LAZY | RTLD_GLOBAL) } {
            std::mem::forget(library);
        }
    }
}

fn open_one(path: &Path, wanted: &Wanted) -> Result<(Found, &'static Library), Missing> {
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
    Ok((Found { path: path.to_owned(), version }, library))
}

/// The version of a library that is opened only to ask for it, in a namespace of its own: the parts that it opens to
/// answer stay loaded, under names that versions share, and would be taken for those of the next one.
fn probed_version(path: &Path, wanted: &Wanted) -> Vec<u64> {
    let first = wanted.parts.first().and_then(|part| Some(path.parent()?.join(part)));
    let first = first.filter(|part| part.is_absolute() && part.exists());
    let version = open_apart(path, first.as_deref()).and_then(|library| (wanted.version)(&library));
    version_parts(&version.unwrap_or_default())
}

/// Opens a library in a new namespace of the loader, after `first`, which it then finds by name.
fn open_apart(path: &Path, first: Option<&Path>) -> Option<Library> {
    let open = |space, path: &Path| {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: the path ends with a zero; initialisers have no requirement on the caller.
        let handle = unsafe { libc::dlmopen(space, path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        (!handle.is_null()).then_some(handle)
    };
    let mut space = libc::LM_ID_NEWLM;
    if let Some(handle) = first.and_then(|first| open(space, first)) {
        // SAFETY: the handle is open; the loader writes the namespace's number.
        if unsafe { libc::dlinfo(handle, libc::RTLD_DI_LMID, ptr::from_mut(&mut space).cast()) } != 0 {
            return None;
        }
    }
    // SAFETY: the handle is open and owned by nobody else.
    open(space, path).map(|handle| unsafe { Library::from_raw(handle) })
}

/// Opens a library for the whole process and for ever: its functions are called through static pointers.
fn open_for_good(path: &Path) -> Result<&'static Library, String> {
    // SAFETY: the initialisers of NVIDIA's libraries have no requirement on the caller.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    library.map(|library| &*Box::leak(Box::new(library))).map_err(|error| error.to_string())
}

/// Whether a dotted version is below another, by number.
pub(super) fn older(version: &str, least: &str) -> bool {
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
        parts: &[],
        symbols: &["planforge_nothing_has_this"],
        version: |_| Some("1.0".into()),
        least: "1.0",
        newest: false,
    };

    #[test]
    fn what_is_missing_is_said_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let search = Search { named: vec![folder.path().to_owned()], usual: Vec::new() };
        assert_eq!(search.open(&ANY).unwrap_err(), Missing::NotFound { name: ANY.name });
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
        assert_eq!(search.open(&Wanted { symbols: &["cos"], ..ANY }).unwrap().0.version, "1.0");
    }

    /// A library that asks a part for its version, and finds it by a name without one, as cuDNN does.
    fn versioned(folder: &Path, version: u32) -> bool {
        fs::create_dir_all(folder).unwrap();
        let sources = [
            ("libplanforge-part.so.1", format!("int part_version(void) {{ return {version}; }}")),
            (
                "libplanforge-test.so.1",
                "#include <dlfcn.h>\nint version(void) {\n\
                 int (*ask)(void) = (int (*)(void))dlsym(dlopen(\"libplanforge-part.so.1\", RTLD_LAZY), \"part_version\");\n\
                 return ask ? ask() : 0; }"
                    .into(),
            ),
        ];
        sources.iter().all(|(name, source)| {
            fs::write(folder.join("source.c"), source).unwrap();
            let mut compiler = std::process::Command::new("cc");
            compiler.args(["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN", &format!("-Wl,-soname,{name}"), "-o", name]);
            compiler.args(["source.c", "-ldl"]).current_dir(folder);
            compiler.status().is_ok_and(|status| status.success())
        })
    }

    #[test]
    fn of_several_versions_the_newest_is_called_with_its_own_parts() {
        const VERSIONED: Wanted = Wanted {
            parts: &["libplanforge-part.so.1"],
            symbols: &["version"],
            version: |library| {
                // SAFETY: the function was written above.
                unsafe { Some(library.get::<unsafe extern "C" fn() -> c_int>(b"version").ok()?().to_string()) }
            },
            newest: true,
            ..ANY
        };
        let folder = tempfile::tempdir().unwrap();
        let places = ["older", "newer", "oldest"].map(|name| folder.path().join(name));
        if !places.iter().zip([914, 919, 901]).all(|(place, version)| versioned(place, version)) {
            return; // No C compiler here.
        }
        let search = Search { named: vec![places[0].clone()], usual: places[1..].to_vec() };
        let (found, library) = search.open(&VERSIONED).unwrap();
        assert_eq!(found, Found { path: places[1].join("libplanforge-test.so.1"), version: "919".into() });
        assert_eq!((VERSIONED.version)(library), Some("919".into()));
    }

    #[test]
    fn a_file_that_the_loader_prefers_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let places = ["chosen", "stubs"].map(|name| folder.path().join(name));
        if !places.iter().zip([1, 2]).all(|(place, version)| versioned(place, version)) {
            return; // No C compiler here.
        }
        let [chosen, stub] = places.map(|place| place.join("libplanforge-test.so.1"));
        let library = open_for_good(&chosen).unwrap();
        assert_eq!(called_instead(library, &stub, "version"), Some(stub.clone()));
        assert_eq!(called_instead(library, &chosen, "version"), None);
        assert_eq!(called_instead(library, &stub.with_extension("none"), "version"), None);
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
