//! Toolchains: what can build here, and what is broken with the rest.

use super::Check;
use planforge_tensorrt::{
    Installation,
    discover::{Discovery, Fault, Findings},
};
use planforge_tensorrt_rules::{
    Version,
    hardware::{self, Board},
    preflight,
};
use planforge_types::fingerprint::DiscoveredDevice;
use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

const AREA: &str = "toolchains";
/// Where distributions and images put the library.
const LIBRARY_FOLDERS: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/tensorrt/lib",
];
/// Entries of a folder that are looked at.
const MAX_ENTRIES: usize = 20_000;

/// Checks what builds here.
pub fn checks(devices: &[DiscoveredDevice]) -> Vec<Check> {
    let mut checks = vec![offers(devices)];
    let found = Discovery::of_host(None).findings();
    checks.extend(tensorrt(&found, library()));
    checks.extend(found.installations.iter().flat_map(|installation| on_gpus(installation, devices)));
    checks.push(match on_path("nsys") {
        Some(path) => Check::ok(AREA, "nsys", path.display().to_string()),
        None => Check::ok(AREA, "nsys", "none").meaning("timelines of benchmarks cannot be recorded"),
    });
    checks
}

/// What all devices together are offered.
fn offers(devices: &[DiscoveredDevice]) -> Check {
    let offers: BTreeSet<String> = devices
        .iter()
        .flat_map(|device| &device.offers)
        .map(|toolchain| format!("{} {}", toolchain.backend, toolchain.version))
        .collect();
    let seen = offers.into_iter().collect::<Vec<_>>().join(", ");
    if seen.is_empty() {
        return Check::ok(AREA, "offers", "none").problem("nothing can be built here", "see what else is wrong");
    }
    Check::ok(AREA, "offers", seen)
}

fn tensorrt(found: &Findings, library: Option<PathBuf>) -> Vec<Check> {
    let mut checks: Vec<Check> = found.installations.iter().map(installation).collect();
    checks.extend(found.faults.iter().map(|fault| broken(fault, found.installations.is_empty())));
    if checks.is_empty() {
        checks.push(match library {
            Some(path) => Check::ok(AREA, "tensorrt", format!("{}, but no trtexec", path.display())).warning(
                "the library is here without the program that drives it; Python packages never carry it",
                "install the package with the samples' binaries, or set TENSORRT_HOME to an unpacked archive",
            ),
            None => Check::ok(AREA, "tensorrt", "none")
                .meaning("looked on PATH, in TENSORRT_HOME, PLANFORGE_TRTEXEC and the usual folders"),
        });
    }
    checks
}

fn installation(found: &Installation) -> Check {
    let cuda = found.cuda.as_ref().map(|cuda| format!(", for CUDA {cuda}")).unwrap_or_default();
    let folders: Vec<_> = found.library_path.iter().map(|folder| folder.display().to_string()).collect();
    let own = if folders.is_empty() { String::new() } else { format!(", libraries in {}", folders.join(", ")) };
    Check::ok(AREA, format!("tensorrt {}", found.version()), format!("{}{cuda}{own}", found.trtexec.display()))
}

/// What each kind of GPU here can do with an installation.
fn on_gpus(found: &Installation, devices: &[DiscoveredDevice]) -> Vec<Check> {
    let mut kinds = BTreeSet::new();
    let mut checks = Vec::new();
    for device in devices {
        let Some(board) = device.fingerprint.gpu.as_ref().and_then(Board::of) else { continue };
        let sku = device.skus.first().map(ToString::to_string).unwrap_or_default();
        if kinds.insert((sku.clone(), board.driver.map(str::to_owned))) {
            checks.push(on_gpu(found.version(), found.cuda.as_deref(), &sku, &board));
        }
    }
    checks
}

fn on_gpu(version: Version, cuda: Option<&str>, sku: &str, board: &Board<'_>) -> Check {
    let what = format!("tensorrt {version} on {sku}");
    if let Err(refusal) = preflight::known(version, false).and_then(|_| hardware::knows(version, board.capability)) {
        return Check::ok(AREA, what, "of no use").warning(refusal.to_string(), refusal.hint());
    }
    let check = Check::ok(AREA, what, hardware::precisions(board.capability).join(", "));
    match hardware::driver(version, cuda, board) {
        Some(doubt) => check.warning(doubt, "update the driver, or use a TensorRT built for an older CUDA"),
        None => check,
    }
}

fn broken(fault: &Fault, alone: bool) -> Check {
    // Enough of its last words to see what is missing.
    const MOST: usize = 300;
    let printed = fault.printed.trim();
    let printed = &printed[..printed.floor_char_boundary(MOST)];
    let said = if printed.is_empty() { String::new() } else { format!("; it said: {}", printed.replace('\n', " / ")) };
    let check = Check::ok(AREA, "tensorrt", format!("{}: {}{said}", fault.trtexec.display(), fault.problem));
    if alone {
        check.problem("no TensorRT engine can be built here", fault.hint())
    } else {
        check.warning("this installation is not offered", fault.hint())
    }
}

/// A TensorRT library of the system.
fn library() -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = env::split_paths(&env::var_os("LD_LIBRARY_PATH").unwrap_or_default()).collect();
    folders.extend(LIBRARY_FOLDERS.map(PathBuf::from));
    folders.iter().find_map(|folder| library_in(folder))
}

fn library_in(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten().take(MAX_ENTRIES);
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.find(|name| name.starts_with("libnvinfer.so")).map(|name| folder.join(name))
}

fn on_path(program: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;
    use planforge_tensorrt::discover::Problem;

    #[test]
    fn a_broken_trtexec_is_shown_with_what_it_said() {
        let fault = Fault {
            trtexec: "/opt/trt/bin/trtexec".into(),
            problem: Problem::NoVersion { status: "exit status 127".into() },
            printed: "error while loading shared libraries: libnvinfer.so.10".into(),
        };
        let checks = tensorrt(&Findings { installations: Vec::new(), faults: vec![fault] }, None);
        assert_eq!((checks.len(), checks[0].state), (1, State::Problem));
        assert!(checks[0].seen.contains("libnvinfer.so.10") && checks[0].action.contains("LD_LIBRARY_PATH"));
    }

    #[test]
    fn a_version_is_shown_with_what_each_gpu_can_do_with_it() {
        let board = |capability: &str, driver| Board { capability: capability.parse().unwrap(), driver };
        let good = on_gpu(Version::new(10, 3, 0), None, "t4", &board("7.5", Some("550.54")));
        assert_eq!((good.state, good.seen.as_str()), (State::Ok, "fp32, fp16, int8"));
        let useless = on_gpu(Version::new(10, 13, 0), None, "v100-16gb", &board("7.0", Some("550.54")));
        assert_eq!(useless.state, State::Warning);
        assert!(useless.meaning.contains("7.0 (Volta)") && useless.action.contains("tensorrt<10.5"), "{useless:?}");
        let driver = on_gpu(Version::new(11, 1, 0), None, "h100-sxm", &board("9.0", Some("550.54")));
        assert!(driver.state == State::Warning && driver.meaning.contains("580"), "{driver:?}");
    }

    #[test]
    fn a_library_without_its_program_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(library_in(folder.path()), None);
        fs::write(folder.path().join("libnvinfer.so.10"), "").unwrap();
        let library = library_in(folder.path());
        assert!(library.is_some());
        assert_eq!(tensorrt(&Findings::default(), library)[0].state, State::Warning);
        assert_eq!(tensorrt(&Findings::default(), None)[0].state, State::Ok);
    }
}
