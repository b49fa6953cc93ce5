//! The operator's book: every command of it, in its order, on one host; and the units it names.

use planforge_tests::{
    process::planforge,
    release::{ran, root},
};
use std::{
    fs,
    net::TcpListener,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

/// What a unit's file begins its process with, as a shell reads it, and which file its environment is in.
fn unit(name: &str) -> (String, String) {
    let text = fs::read_to_string(root().join(format!("deploy/systemd/{name}.service"))).expect("a unit");
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{name}: no {key}"));
        line.to_owned()
    };
    (value("ExecStart=/usr/bin/"), value("EnvironmentFile=-"))
}

/// Starts, stops and reloads what units say, and waits for what systemd would wait for.
fn systemctl() -> String {
    let mut script = String::from("#!/bin/bash\nset -eu\nverb=$1 unit=$2 pid=\"$HOME/$2.pid\"\ncase $unit in\n");
    for name in ["planforge-coordinator", "planforge-agent"] {
        let (start, environment) = unit(name);
        script += &format!("{name}) start() {{ (set -a; [ ! -e {environment} ] || . {environment}; ");
        script += &format!("exec setsid {start} >>\"$HOME/{name}.log\" 2>&1 </dev/null) & echo $! >\"$pid\"; }};;\n");
    }
    script += r#"*) echo "no unit $unit" >&2; exit 5;;
esac
stop() { kill "$(cat "$pid")"; while kill -0 "$(cat "$pid")" 2>/dev/null; do sleep 0.05; done; rm "$pid"; }
case $verb in
    start) start;;
    stop) stop;;
    restart) stop; start;;
    reload) kill -HUP "$(cat "$pid")";;
    *) echo "no verb $verb" >&2; exit 1;;
esac
"#;
    script
}

fn blocks(book: &str) -> Vec<&str> {
    book.split("```sh\n").skip(1).filter_map(|rest| rest.split("```\n").next()).collect()
}

/// The end of all that the book's commands left running.
struct Ended<'a>(&'a Path);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        for name in ["planforge-agent", "planforge-coordinator"] {
            let Ok(pid) = fs::read_to_string(self.0.join(format!("{name}.pid"))) else { continue };
            // The whole session: workers, too.
            let _ = Command::new("kill").args(["-9", "--", &format!("-{}", pid.trim())]).status();
        }
    }
}

#[test]
fn every_command_of_the_operators_book_does_what_it_says() {
    let book = fs::read_to_string(root().join("docs/operations.md")).expect("the book");
    let home = tempfile::Builder::new().prefix("planforge-book-").tempdir().unwrap();
    let programs = home.path().join("programs");
    fs::create_dir_all(&programs).unwrap();
    std::os::unix::fs::symlink(planforge(), programs.join("planforge")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // The same folders below one of the test's own.
    let here = |text: &str| {
        let below = |text: String, folder: &str| text.replace(folder, &format!("{}{folder}", home.path().display()));
        let text = text.replace("127.0.0.1:7400", &format!("127.0.0.1:{port}"));
        ["/etc/planforge", "/var/lib/planforge", "/srv/backup", "/tmp/try"].into_iter().fold(text, below)
    };
    for folder in ["var/lib", "srv/backup", "tmp", "locks"] {
        fs::create_dir_all(home.path().join(folder)).unwrap();
    }
    let stub = programs.join("systemctl");
    fs::write(&stub, here(&systemctl())).unwrap();
    fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)).unwrap();

    let blocks = blocks(&book);
    assert!(blocks.len() >= 12, "{}", blocks.len());
    let _ended = Ended(home.path());
    // One shell, as somebody has who goes through the book: what is exported stays.
    let mut script: String = blocks.iter().map(|block| here(block)).collect();
    script += "echo '== at the end'\nplanforge engines\n";
    let mut shell = Command::new("bash");
    shell.args(["-euxo", "pipefail", "-c", &script]).env_clear().env("HOME", home.path()).current_dir(home.path());
    shell.env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
    shell.env("PLANFORGE_LOCK_DIR", home.path().join("locks"));
    let output = shell.process_group(0).output().expect("bash");
    let logs = ["planforge-coordinator", "planforge-agent"]
        .map(|name| fs::read_to_string(home.path().join(format!("{name}.log"))).unwrap_or_default());
    assert!(
        output.status.success(),
        "{}\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        logs.join("\n")
    );
    let said = String::from_utf8_lossy(&output.stdout);
    // The engine that was built before the backup is there after it was restored.
    let engines = said.split("== at the end").nth(1).expect("the last command");
    assert!(engines.contains("cpu-x86-64-v2"), "{said}");

    // What the table of alerts says to type was typed above, but for what names something of the reader's.
    let table = book.split("## Alerts").nth(1).expect("alerts");
    let table = table.split("## ").next().unwrap_or_default();
    for command in table.split('`').filter(|code| code.starts_with("planforge ")) {
        let typed = command.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        let is_known = blocks.iter().any(|block| block.contains(&typed)) || typed == "planforge logs";
        assert!(is_known, "`{command}` is typed nowhere");
    }
}

#[test]
fn units_are_what_systemd_takes_and_are_shut_in() {
    let analyze = PathBuf::from("/usr/bin/systemd-analyze");
    if !analyze.is_file() {
        planforge_skipped::skipped(format_args!("systemd-analyze is not installed"));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Exposure from 0 (shut in) to 10, in tenths, as systemd-analyze counts it.
    for (name, exposure_most) in [("planforge-coordinator", 20), ("planforge-agent", 30)] {
        let text = fs::read_to_string(root().join(format!("deploy/systemd/{name}.service"))).unwrap();
        // The program stands elsewhere here, and its man page nowhere.
        let text = text.replace("/usr/bin/planforge", planforge().to_str().unwrap());
        let text: String =
            text.lines().filter(|line| !line.starts_with("Documentation=")).map(|l| format!("{l}\n")).collect();
        let unit = folder.path().join(format!("{name}.service"));
        fs::write(&unit, text).unwrap();
        ran(Command::new(&analyze).arg("verify").arg(&unit));
        let security = Command::new(&analyze)
            .args(["security", "--offline=true", &format!("--threshold={exposure_most}")])
            .arg(&unit)
            .output()
            .unwrap();
        assert!(security.status.success(), "{name}: {}", String::from_utf8_lossy(&security.stdout));
    }
}
