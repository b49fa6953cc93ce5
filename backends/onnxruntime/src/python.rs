//! Where Python keeps the `onnxruntime` package, which carries the library. Told from paths and files wherever
//! possible; a `python3` that is a script of a version manager is asked, within bounds and once per process.

use std::{
    env, fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

/// The library's folder inside a folder of packages.
const PACKAGE_FOLDER: &str = "onnxruntime/capi";

/// Folders of versions that are looked at in one prefix.
const VERSIONS_MAX: usize = 64;

/// Longest that `python3` may take to say where its packages are.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const ANSWER_MAX_BYTES: u64 = 64 * 1024;

const QUESTION: &str = "import site, sysconfig\n\
    for p in [sysconfig.get_path('platlib'), *site.getsitepackages(), site.getusersitepackages()]: print(p)";

/// Package folders of the virtual or conda environment this process was started in.
pub(crate) fn virtual_environment_folders() -> Vec<PathBuf> {
    let variables = ["VIRTUAL_ENV", "CONDA_PREFIX"];
    let prefixes = variables.into_iter().filter_map(env::var_os).filter(|prefix| !prefix.is_empty());
    prefixes.flat_map(|prefix| in_prefix(Path::new(&prefix))).collect()
}

/// Package folders of the first `python3` of the search path, the user's own and the system's.
pub(crate) fn interpreter_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let interpreter = env::split_paths(&env::var_os("PATH").unwrap_or_default())
        .map(|folder| folder.join("python3"))
        .find(|path| path.is_file());
    if let Some(interpreter) = interpreter {
        match (is_script(&interpreter), of_pyenv(&interpreter, env::var("PYENV_VERSION").ok())) {
            (false, _) => folders.extend(of_binary(&interpreter)),
            (true, Some(chosen)) => folders.extend(chosen),
            (true, None) => folders.extend(asked(&interpreter).iter().cloned()),
        }
    }
    if let Some(home) = env::var_os("HOME").filter(|home| !home.is_empty()) {
        folders.extend(in_prefix(&Path::new(&home).join(".local")));
    }
    for prefix in ["/usr/local", "/usr"] {
        folders.extend(in_prefix(Path::new(prefix)));
    }
    folders
}

/// Of a program: the prefix it lies in, as it was called (a virtual environment) and where links lead.
fn of_binary(interpreter: &Path) -> Vec<PathBuf> {
    let real = fs::canonicalize(interpreter).ok();
    let prefixes = [Some(interpreter.to_owned()), real].into_iter().flatten();
    let prefixes = prefixes.filter_map(|path| path.parent().and_then(Path::parent).map(Path::to_owned));
    prefixes.flat_map(|prefix| in_prefix(&prefix)).collect()
}

/// Of pyenv's stand-in `ROOT/shims/python3`: the versions chosen by its variable, else for the user; `None` when it is
/// none of pyenv's.
fn of_pyenv(stand_in: &Path, variable: Option<String>) -> Option<Vec<PathBuf>> {
    let shims = stand_in.parent().filter(|folder| folder.ends_with("shims"))?;
    let root = shims.parent().filter(|root| root.join("versions").is_dir())?;
    let chosen = variable.filter(|chosen| !chosen.is_empty());
    let chosen = chosen.or_else(|| fs::read_to_string(root.join("version")).ok()).unwrap_or_default();
    let names = chosen.split([':', '\n']).map(str::trim).filter(|name| !name.is_empty() && !name.contains('/'));
    Some(names.take(VERSIONS_MAX).flat_map(|name| in_prefix(&root.join("versions").join(name))).collect())
}

/// `PREFIX/lib/python3*/{site,dist}-packages/onnxruntime/capi`, newest Python first.
fn in_prefix(prefix: &Path) -> Vec<PathBuf> {
    let mut versions = Vec::new();
    for lib in ["lib", "lib64", "local/lib"] {
        let entries = fs::read_dir(prefix.join(lib)).into_iter().flatten().flatten();
        versions.extend(entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let minor = name.strip_prefix("python3")?.trim_start_matches('.').parse::<u32>().unwrap_or(0);
            Some((minor, entry.path()))
        }));
    }
    versions.sort_unstable_by(|left, right| right.cmp(left));
    let packages = versions
        .into_iter()
        .take(VERSIONS_MAX)
        .flat_map(|(_, folder)| ["site-packages", "dist-packages"].map(|name| folder.join(name)));
    packages.map(|folder| folder.join(PACKAGE_FOLDER)).filter(|folder| folder.is_dir()).collect()
}

fn is_script(path: &Path) -> bool {
    let mut first = [0; 2];
    fs::File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && first == *b"#!"
}

/// What the interpreter says; asked once per process.
fn asked(interpreter: &Path) -> &'static [PathBuf] {
    static ANSWER: OnceLock<Vec<PathBuf>> = OnceLock::new();
    ANSWER.get_or_init(|| {
        let answer = ask(interpreter).unwrap_or_default();
        answer.lines().map(|line| Path::new(line).join(PACKAGE_FOLDER)).filter(|folder| folder.is_dir()).collect()
    })
}

fn ask(interpreter: &Path) -> Option<String> {
    let mut child = Command::new(interpreter)
        .args(["-c", QUESTION])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let output = child.stdout.take()?;
    let (sender, answers) = mpsc::channel();
    thread::spawn(move || {
        let mut answer = String::new();
        let read = output.take(ANSWER_MAX_BYTES).read_to_string(&mut answer);
        // Nobody listens any more once the limit is over.
        let _ = sender.send(read.is_ok().then_some(answer));
    });
    let answer = answers.recv_timeout(ANSWER_LIMIT).ok().flatten();
    if answer.is_none() {
        tracing::debug!(interpreter = %interpreter.display(), "python3 does not say where its packages are");
    }
    // Whether it ended or not: what it said is judged by what lies there.
    let _ = child.kill();
    let _ = child.wait();
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_found_in_a_prefix_newest_python_first() {
        let prefix = tempfile::tempdir().unwrap();
        let capi = |version: &str| prefix.path().join(format!("lib/{version}/site-packages/{PACKAGE_FOLDER}"));
        for version in ["python3.9", "python3.12", "python2.7"] {
            fs::create_dir_all(capi(version)).unwrap();
        }
        fs::create_dir_all(prefix.path().join("lib/python3.13/site-packages")).unwrap();
        assert_eq!(in_prefix(prefix.path()), [capi("python3.12"), capi("python3.9")]);
        let interpreter = prefix.path().join("bin/python3");
        fs::create_dir_all(interpreter.parent().unwrap()).unwrap();
        fs::write(&interpreter, b"\x7fELF").unwrap();
        assert!(!is_script(&interpreter));
        assert!(of_binary(&interpreter).contains(&capi("python3.12")));
    }

    #[test]
    fn of_pyenvs_versions_the_chosen_ones_count() {
        let root = tempfile::tempdir().unwrap();
        let capi =
            |name: &str| root.path().join(format!("versions/{name}/lib/python3.12/site-packages/{PACKAGE_FOLDER}"));
        for name in ["3.12.1", "3.12.2", "other"] {
            fs::create_dir_all(capi(name)).unwrap();
        }
        fs::write(root.path().join("version"), "3.12.2\nsystem\n").unwrap();
        let stand_in = root.path().join("shims/python3");
        assert_eq!(of_pyenv(&stand_in, None).unwrap(), [capi("3.12.2")]);
        assert_eq!(of_pyenv(&stand_in, Some("other:3.12.1".into())).unwrap(), [capi("other"), capi("3.12.1")]);
        assert_eq!(of_pyenv(&root.path().join("bin/python3"), None), None);
    }

    #[test]
    fn an_interpreter_that_is_a_script_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("python3");
        fs::write(&script, "#!/bin/sh\necho /some/where\n").unwrap();
        assert!(is_script(&script));
        let mut mode = fs::metadata(&script).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
        fs::set_permissions(&script, mode).unwrap();
        assert_eq!(ask(&script).unwrap(), "/some/where\n");
        fs::write(&script, "#!/bin/sh\nexit 1\n").unwrap();
        assert_eq!(ask(&script).unwrap(), "");
    }
}
