//! A management library for tests, compiled by them (`tests/fake_nvml.c`).

use super::Nvml;
use std::{
    ffi::c_int,
    path::{Path, PathBuf},
    process::Command,
};

/// The H200 of the fake host, and the A100 that is in slices.
pub const H200: &str = "GPU-aa000000-0000-0000-0000-000000000000";
pub const A100: &str = "GPU-bb000000-0000-0000-0000-000000000000";

/// The fake library, as long as its folder.
pub struct Fake {
    folder: tempfile::TempDir,
}

impl Fake {
    /// Compiles the library; `variant` are names of its source, with values or without: `OLD`, `PROCESSES=2`.
    pub fn new(variant: &[&str]) -> Self {
        let fake = Self { folder: tempfile::tempdir().unwrap() };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_nvml.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-Wall", "-Werror"]).args(variant.iter().map(|name| format!("-D{name}")));
        let status = compiler.arg("-o").arg(fake.path()).arg(source).status();
        assert!(status.expect("a C compiler").success());
        fake
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("libfake-nvml.so")
    }

    pub fn open(&self) -> Nvml {
        Nvml::open_at(self.path().as_os_str()).unwrap()
    }

    /// What the library counts under this name.
    pub fn count(&self, name: &str) -> c_int {
        // SAFETY: the library is the one that was compiled here; the name is one of its own variables of that type.
        unsafe {
            let library = libloading::Library::new(self.path().as_os_str()).unwrap();
            let counter = *library.get::<*const c_int>(name).unwrap();
            *counter
        }
    }
}
