//! What lies around a program: its libraries, the CUDA it was built for, the driver under it.

use planforge_tensorrt_rules::version::Version;
use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

/// Database of installed Debian packages.
const DPKG_STATUS: &str = "/var/lib/dpkg/status";
/// Far larger than any host's; most have 2 to 5 MiB.
const MAX_STATUS_BYTES: u64 = 64 << 20;
/// The Debian package that brings the program, and where it puts it.
const DEB_PACKAGE: &str = "libnvinfer-bin";
const DEB_FOLDER: &str = "/usr/src/tensorrt";

/// Folders with the libraries of an unpacked archive: `lib` beside `bin`, or what `lib` stands for in `targets`.
pub(super) fn library_path(trtexec: &Path) -> Vec<PathBuf> {
    let Some(home) = trtexec.parent().and_then(Path::parent) else { return Vec::new() };
    let lib = home.join("lib");
    let holds_library = fs::read_dir(&lib).is_ok_and(|entries| {
        entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libnvinfer.so"))
    });
    if holds_library { vec![lib] } else { Vec::new() }
}

/// Where system packages put libraries.
const SYSTEM_LIBRARIES: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib"];

/// The lean runtime of `version`: beside the libraries of an unpacked archive, else among the system's.
pub(super) fn lean_runtime(library_path: &[PathBuf], version: Version) -> Option<PathBuf> {
    let name = format!("libnvinfer_lean.so.{}", version.major);
    let system = SYSTEM_LIBRARIES.iter().map(PathBuf::from).filter(|_| library_path.is_empty());
    library_path.iter().cloned().chain(system).map(|folder| folder.join(&name)).find(|path| path.is_file())
}

/// `cuda 12.5` where the packaging of this very version says it: Debian packages carry it in their version
/// (`10.3.0.26-1+cuda12.5`). Which toolkit happens to be installed beside says nothing.
pub(super) fn cuda(trtexec: &Path, version: Version) -> Option<String> {
    if !trtexec.starts_with(DEB_FOLDER) {
        return None;
    }
    let mut text = Vec::new();
    fs::File::open(DPKG_STATUS).ok()?.take(MAX_STATUS_BYTES).read_to_end(&mut text).ok()?;
    cuda_of_package(&String::from_utf8_lossy(&text), version)
}

fn cuda_of_package(status: &str, version: Version) -> Option<String> {
    let package = status.split("\n\n").find(|p| p.lines().next() == Some(&format!("Package: {DEB_PACKAGE}")))?;
    let full = package.lines().find_map(|line| line.strip_prefix("Version: "))?;
    let (upstream, cuda) = full.split_once("+cuda")?;
    let upstream = upstream.split_once('-').map_or(upstream, |(upstream, _)| upstream);
    let same = upstream.parse::<Version>().is_ok_and(|found| {
        found.release() == version.release() && (version.build.is_none() || found.build == version.build)
    });
    let mut parts = cuda.split('.');
    let (major, minor) = (parts.next()?.parse::<u32>().ok()?, parts.next()?.parse::<u32>().ok()?);
    same.then(|| format!("{major}.{minor}"))
}

/// The branch of a driver such as `580.159.03`.
pub(super) fn driver_branch(driver: &str) -> Option<String> {
    let branch = driver.split('.').next()?;
    let good = !branch.is_empty() && branch.bytes().all(|b| b.is_ascii_digit());
    good.then(|| branch.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_is_what_the_package_of_this_version_says() {
        let status = "Package: libc6\nVersion: 2.39\n\nPackage: libnvinfer-bin\nStatus: install ok installed\n\
                      Version: 10.3.0.26-1+cuda12.5\n\nPackage: zlib\nVersion: 1\n";
        let of = |version: &str| cuda_of_package(status, version.parse().unwrap());
        assert_eq!(of("10.3.0").as_deref(), Some("12.5"));
        assert_eq!(of("10.3.0.26").as_deref(), Some("12.5"));
        assert_eq!(of("10.3.0.27"), None);
        assert_eq!(of("10.4.0"), None);
        assert_eq!(cuda_of_package("", Version::new(10, 3, 0)), None);
    }

    #[test]
    fn the_lean_runtime_is_the_installations_own() {
        let folder = tempfile::tempdir().unwrap();
        let own = [folder.path().to_owned()];
        assert_eq!(lean_runtime(&own, Version::new(10, 3, 0)), None);
        fs::write(folder.path().join("libnvinfer_lean.so.10"), "").unwrap();
        assert_eq!(lean_runtime(&own, Version::new(10, 3, 0)), Some(folder.path().join("libnvinfer_lean.so.10")));
        assert_eq!(lean_runtime(&own, Version::new(8, 6, 1)), None);
    }

    #[test]
    fn a_driver_has_a_branch() {
        assert_eq!(driver_branch("580.159.03").as_deref(), Some("580"));
        assert_eq!(driver_branch("R580"), None);
        assert_eq!(driver_branch(""), None);
    }
}
