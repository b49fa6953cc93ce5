//! Tests that test nothing, or less, where a device, a library or a right is missing. They pass, so somebody has to
//! count them: `test.sh` names a folder, and lists at its end what lies there.

use std::{
    env,
    fmt::Display,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::Path,
    thread,
};

/// Names the folder in which tests that skip something leave a file each.
pub const FOLDER: &str = "PLANFORGE_SKIPPED_TESTS";

/// Says that the running test leaves something out, and why.
///
/// # Panics
/// When the folder that counts them cannot be written: a test that nobody counts must not pass.
#[expect(clippy::print_stderr, reason = "a test that covers less says so aloud")]
pub fn skipped(reason: impl Display) {
    let reason = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    eprintln!("SKIPPED: {reason}");
    let Some(folder) = env::var_os(FOLDER).filter(|folder| !folder.is_empty()) else { return };
    let folder = Path::new(&folder);
    record(folder, &test(), &reason).unwrap_or_else(|error| panic!("cannot write to {}: {error}", folder.display()));
}

/// The running test: as nextest names it, or by its binary and thread.
fn test() -> String {
    if let (Ok(binary), Ok(test)) = (env::var("NEXTEST_BINARY_ID"), env::var("NEXTEST_TEST_NAME")) {
        return format!("{binary} {test}");
    }
    let binary = env::current_exe().ok();
    let binary = binary.as_deref().and_then(Path::file_stem).unwrap_or_default().to_string_lossy();
    format!("{binary} {}", thread::current().name().unwrap_or_default())
}

/// Adds a line to the test's file.
fn record(folder: &Path, test: &str, reason: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let name = test.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_', ".");
    let mut file = OpenOptions::new().create(true).append(true).open(folder.join(name))?;
    writeln!(file, "{reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_has_one_file_and_a_line_for_each_reason() {
        let folder = env::temp_dir().join(format!("planforge-skipped-{}", std::process::id()));
        record(&folder, "crate::binary a::test", "no GPU").unwrap();
        record(&folder, "crate::binary a::test", "no library").unwrap();
        record(&folder, "crate::binary another", "no GPU").unwrap();
        let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        let texts: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(texts, ["no GPU\nno library\n", "no GPU\n"]);
    }

    #[test]
    fn the_running_test_has_a_name() {
        assert!(test().contains("the_running_test_has_a_name"), "{}", test());
    }
}
