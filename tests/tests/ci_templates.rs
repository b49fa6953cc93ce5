//! The templates for CI services: held to their schemas, and run here as the services would, against a real farm.

use planforge_tests::{
    farm::{Farm, Link},
    models,
    process::{self, Process, planforge},
    release::{ran, root},
};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const SKU: &str = "cpu-x86-64-v2";

/// The environment that `test.sh` makes for Python packages; nothing, and a word, where it lacks what is asked for.
fn python_with(program: &str) -> Option<PathBuf> {
    let programs = root().join("target/onnx-venv/bin");
    if programs.join(program).is_file() {
        return Some(programs.join("python3"));
    }
    assert!(std::env::var_os("CI").is_none(), "test.sh installs {program}");
    planforge_skipped::skipped(format_args!("{program} is not installed: ./test.sh installs it"));
    None
}

/// The YAML blocks of the page that begin with `first`.
fn examples(first: &str) -> Vec<String> {
    let page = fs::read_to_string(root().join("deploy/ci/README.md")).expect("the page");
    let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.starts_with(first)).map(str::to_owned).collect()
}

#[test]
fn templates_and_examples_have_the_form_that_their_services_ask_for() {
    let Some(python) = python_with("check-jsonschema") else { return };
    let checker = python.with_file_name("check-jsonschema");
    let work = tempfile::tempdir().unwrap();
    let check = |schema: &str, file: &Path| {
        ran(Command::new(&checker).args(["--builtin-schema", schema]).arg(file));
    };
    check("vendor.github-actions", &root().join("deploy/ci/action.yml"));
    check("vendor.gitlab-ci", &root().join("deploy/ci/gitlab.yml"));
    let (workflows, pipelines) = (examples("name:"), examples("include:"));
    assert!(workflows.len() >= 2 && !pipelines.is_empty(), "deploy/ci/README.md shows how both are used");
    for (schema, texts) in [("vendor.github-workflows", workflows), ("vendor.gitlab-ci", pipelines)] {
        for text in texts {
            let file = work.path().join("example.yml");
            fs::write(&file, text).unwrap();
            check(schema, &file);
        }
    }
    // One with a mistake is told.
    let wrong = work.path().join("wrong.yml");
    fs::write(&wrong, "name: x\nruns:\n  using: composite\n  steps: none\n").unwrap();
    let output =
        Command::new(&checker).args(["--builtin-schema", "vendor.github-actions"]).arg(&wrong).output().unwrap();
    assert!(!output.status.success());
}

/// A checkout with a model, beside it what a runner has: planforge and `gh` on the PATH.
struct Runner {
    farm: Farm,
    _agent: Process,
    python: PathBuf,
}

impl Runner {
    fn new(python: PathBuf) -> Self {
        let farm = Farm::start(Link::Loopback);
        let agent = farm.start_agent("a", "a", None);
        farm.wait_agents(1);
        let runner = Self { farm, _agent: agent, python };
        fs::create_dir_all(runner.checkout()).unwrap();
        fs::create_dir_all(runner.programs()).unwrap();
        models::convolutions(&runner.checkout().join("model.onnx"), 2, 16, 14, 7);
        std::os::unix::fs::symlink(planforge(), runner.programs().join("planforge")).unwrap();
        // The command of GitHub's that comments: it writes down what it is asked for.
        let gh = runner.programs().join("gh");
        fs::write(&gh, "#!/bin/sh\nprintf '%s\\n' \"$*\" >>\"$HOME/gh.log\"\n").unwrap();
        fs::set_permissions(&gh, fs::Permissions::from_mode(0o755)).unwrap();
        runner
    }

    fn checkout(&self) -> PathBuf {
        self.farm.path().join("checkout")
    }

    fn programs(&self) -> PathBuf {
        self.farm.path().join("programs")
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.checkout().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    /// How many engines of the model lie where steps fetch them to.
    fn engines(&self) -> usize {
        let found = fs::read_dir(self.checkout().join("engines")).into_iter().flatten().flatten();
        let names = found.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("model.") && name.ends_with(&format!(".{SKU}.plan"))).count()
    }

    fn run(&self, service: &str, given: &[(&str, &str)], environment: &[(&str, &str)]) -> Output {
        let _ = fs::remove_dir_all(self.farm.path().join("github"));
        let mut command = Command::new(&self.python);
        command.arg("-B").arg(root().join("deploy/ci/run_template.py")).arg(service).arg(self.checkout());
        command.args(given.iter().map(|(name, value)| format!("{name}={value}")));
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.programs().display());
        command.env_clear().env("PATH", path).env("HOME", self.farm.path()).envs(environment.iter().copied());
        process::run(command)
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Steps that build, fetch and list.
fn steps(fetched: &str) -> String {
    format!(
        "# what a pipeline does\nsubmit model.onnx --sku {SKU} --wait\n\
         fetch 'model.onnx' --sku {fetched} -o engines/\njobs"
    )
}

/// A gate that nothing can pass: an engine of either kind, and nothing to compare them with.
const GATE: &str =
    "submit model.onnx --sku cpu-x86-64-v2,cpu-x86-64-v3 --threads 1 --wait\ncompare --model model.onnx --gate 50";

/// Whether the file is XML, and how many tests, failures and skipped tests it tells of.
fn junit(runner: &Runner) -> (usize, usize, usize) {
    let count = "import sys, xml.etree.ElementTree as t; s = t.parse(sys.argv[1]).getroot()[0]; \
                 print(len(s.findall('testcase')), len(s.findall('*/failure')), len(s.findall('*/skipped')))";
    let told = ran(Command::new("python3").args(["-c", count]).arg(runner.checkout().join("planforge-ci.xml")));
    let counts: Vec<usize> = told.split_whitespace().map(|count| count.parse().unwrap()).collect();
    (counts[0], counts[1], counts[2])
}

#[test]
fn the_action_of_github_builds_gates_fetches_and_tells() {
    let Some(python) = python_with("check-jsonschema") else { return };
    let runner = Runner::new(python);
    let (url, admin) = (runner.farm.url.clone(), runner.farm.admin.clone());
    let with = |steps: &str| {
        let inputs = [("server", url.as_str()), ("token", &admin), ("steps", steps), ("comment", "true")];
        let pull = [("GITHUB_EVENT_NAME", "pull_request"), ("PULL_REQUEST", "7"), ("GITHUB_REPOSITORY", "me/models")];
        runner.run("github", &inputs, &pull)
    };
    let good = with(&steps(SKU));
    let said = text(&good);
    assert_eq!(good.status.code(), Some(0), "{said}");
    assert_eq!(runner.engines(), 1, "{said}");
    assert!(said.contains("::group::planforge submit model.onnx") && said.contains("::endgroup::"), "{said}");
    assert!(!said.contains('\u{1b}') && !said.contains(&admin), "{said}");
    assert_eq!(junit(&runner), (3, 0, 0));
    let summary = fs::read_to_string(runner.farm.path().join("github/STEP_SUMMARY")).unwrap();
    assert!(summary.contains("### planforge: passed") && summary.contains("planforge fetch"), "{summary}");
    assert_eq!(summary, runner.read("planforge-ci.md"));
    let output = fs::read_to_string(runner.farm.path().join("github/OUTPUT")).unwrap();
    assert!(output.contains("exit-code=0\n") && output.contains("junit=planforge-ci.xml\n"), "{output}");
    let asked = fs::read_to_string(runner.farm.path().join("gh.log")).unwrap();
    assert!(asked.contains("repos/me/models/issues/7/comments") && asked.contains("body=@planforge-ci.md"), "{asked}");

    let bad = with(&steps("h100-sxm"));
    let said = text(&bad);
    assert_eq!(bad.status.code(), Some(3), "{said}");
    assert!(said.contains("::error title=planforge fetch 'model.onnx'"), "{said}");
    assert_eq!(junit(&runner), (3, 1, 1));
    let summary = runner.read("planforge-ci.md");
    assert!(
        summary.contains("### planforge: failed") && summary.contains("exit code 3: something is missing"),
        "{summary}"
    );
    assert!(summary.contains("skipped"), "{summary}");
    assert_eq!(with(GATE).status.code(), Some(9));
    assert!(runner.read("planforge-ci.md").contains("slower than allowed, or nobody can tell"));
}

#[test]
fn the_job_of_gitlab_builds_gates_fetches_and_tells() {
    let Some(python) = python_with("check-jsonschema") else { return };
    let runner = Runner::new(python);
    let (url, admin) = (runner.farm.url.clone(), runner.farm.admin.clone());
    let scripts = root().join("deploy/ci");
    let with = |steps: &str, server: &str, token: &str| {
        let scripts = scripts.to_str().unwrap();
        let variables = [("PLANFORGE_SERVER", server), ("PLANFORGE_TOKEN", token), ("PLANFORGE_CI_STEPS", steps)];
        runner.run("gitlab", &[&variables[..], &[("PLANFORGE_CI_SCRIPTS", scripts)]].concat(), &[])
    };
    let (usual, missing) = (steps(SKU), steps("h100-sxm"));
    let good = with(&usual, &url, &admin);
    let said = text(&good);
    assert_eq!(good.status.code(), Some(0), "{said}");
    assert!(said.contains("section_start:") && said.contains(":planforge_1\r"), "{said}");
    assert_eq!(runner.engines(), 1, "{said}");
    assert_eq!(junit(&runner), (3, 0, 0));
    // Every exit code comes through: missing, a bad token, nobody there.
    assert_eq!(with(&missing, &url, &admin).status.code(), Some(3));
    assert_eq!(junit(&runner), (3, 1, 1));
    assert_eq!(with(&usual, &url, "nonsense").status.code(), Some(5));
    assert_eq!(with(&usual, "http://127.0.0.1:1", &admin).status.code(), Some(4));
    assert_eq!(with(&usual, "", &admin).status.code(), Some(2));
}

#[test]
fn what_is_declared_is_built_checked_and_fetched_by_the_template() {
    let Some(python) = python_with("check-jsonschema") else { return };
    let runner = Runner::new(python);
    let declaration = format!("targets = [\"{SKU}\"]\n\n[models.net]\npath = \"model.onnx\"\n");
    fs::write(runner.checkout().join("planforge.toml"), declaration).unwrap();
    let (url, admin) = (runner.farm.url.clone(), runner.farm.admin.clone());
    let with = |steps: &str| {
        let inputs = [("server", url.as_str()), ("token", &admin), ("steps", steps), ("comment", "false")];
        runner.run("github", &inputs, &[])
    };
    // Nothing is there yet: the template's own step is red, and says what is missing.
    let red = with("check");
    assert_eq!(red.status.code(), Some(1), "{}", text(&red));
    assert!(runner.read("planforge-ci.md").contains("net"), "{}", runner.read("planforge-ci.md"));
    let green = with("sync\ncheck\nfetch -o engines/");
    let said = text(&green);
    assert_eq!(green.status.code(), Some(0), "{said}");
    assert!(runner.checkout().join("engines.lock").is_file(), "{said}");
    assert!(runner.checkout().join(format!("engines/net/{SKU}/default.plan")).is_file(), "{said}");
    assert_eq!(junit(&runner), (3, 0, 0));
}

#[test]
fn what_a_step_prints_cannot_break_the_results() {
    let work = tempfile::tempdir().unwrap();
    let odd = work.path().join("odd");
    let said = "error: 100% <b>&\\033[31m ]]> \\001 \"x\"\\nwarning: second, with: signs\\n";
    fs::write(&odd, format!("#!/bin/sh\nprintf '{}'\nexit 70\n", said.replace('%', "%%"))).unwrap();
    fs::set_permissions(&odd, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("sh");
    command
        .arg(root().join("deploy/ci/planforge-ci.sh"))
        .args(["say \"a  b\" '<c>'", "check"])
        .current_dir(work.path());
    command.env("PLANFORGE_BIN", &odd).env("PLANFORGE_SERVER", "http://127.0.0.1:1").env("GITHUB_ACTIONS", "true");
    let output = process::run(command);
    let log = text(&output);
    assert_eq!(output.status.code(), Some(70), "{log}");
    assert!(log.contains("::error title=planforge say \"a  b\" '<c>'::100%25 <b>&"), "{log}");
    assert!(log.contains("::warning title=") && log.contains("::second, with: signs"), "{log}");
    let parse = "import xml.etree.ElementTree as t; print(t.parse('planforge-ci.xml').getroot()[0][0][0].text)";
    let told = ran(Command::new("python3").args(["-c", parse]).current_dir(work.path()));
    assert!(told.contains("100% <b>&") && told.contains("]]>"), "{told}");
    let summary = fs::read_to_string(work.path().join("planforge-ci.md")).unwrap();
    assert!(summary.contains("100% &lt;b&gt;&amp;") && !summary.contains("<b>"), "{summary}");
}
