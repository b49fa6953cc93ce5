//! Command lines to copy, below the help of every command.
//!
//! A test parses each of them, and looks that every command has some.

use clap::{Command, builder::StyledStr};

/// Command lines by the command whose help they stand in; the program itself has the empty name. What follows two blanks
/// and `#` is said beside it.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "planforge build model.onnx  # the whole job on this machine",
            "planforge up  # a farm that stays, with a page",
            "planforge submit model.onnx --sku t4,h100-sxm --wait  # on the farm of PLANFORGE_SERVER",
            "planforge fetch model.onnx --sku t4 -o engines/",
        ],
    ),
    (
        "build",
        &[
            "planforge build model.onnx",
            "planforge build model.onnx --sku cpu-x86-64-v3 --threads 4 -o engines/",
            "planforge build model.onnx --eval labelled.npz  # counts its accuracy too",
            "planforge build model.onnx --precision int8 --calibration samples.npz  # prepares the model first",
            "planforge build model.onnx --beside onnxruntime  # measures that too, and says how the engine stands to it",
            "planforge build model.onnx --shapes images:1..8..32x3x224x224 --sweep-batch 1,8,32",
        ],
    ),
    (
        "up",
        &[
            "planforge up",
            "planforge up --data ~/farm --listen 127.0.0.1:7400",
            "planforge up --label zone=b  # jobs may ask for it: submit --require label=zone=b",
            "planforge up --listen 0.0.0.0:7400 --tls-cert farm.pem --tls-key farm.key",
        ],
    ),
    (
        "coordinator",
        &[
            "planforge coordinator --data /srv/planforge --listen 0.0.0.0:7400 --tls-cert farm.pem --tls-key farm.key",
            "planforge coordinator --data /srv/planforge --agent-certificates require --tls-cert farm.pem --tls-key farm.key",
        ],
    ),
    (
        "agent",
        &[
            "planforge agent --server https://farm.example:7400 --ca ca.pem --token-file rack-1.token",
            "planforge agent --server https://farm.example:7400 --ca ca.pem --enroll rack-1.once",
        ],
    ),
    (
        "submit",
        &[
            "planforge submit model.onnx --sku t4,h100-sxm --wait",
            "planforge submit model.onnx --sku t4 --toolchain tensorrt=10.13 --toolchain tensorrt=11.1 --dry-run",
            "planforge submit model.onnx --sweep threads=1,2,4 --sweep level=3,5 --baseline onnxruntime --wait  # a sweep",
            "planforge submit model.onnx --shapes ids:1..8x128 --sweep shapes=static,dynamic --sweep builds=1,3 --wait",
            "planforge submit --clone nnbhxwhshg30 --threads 1  # the same again, but for what the flags say",
            "planforge submit decoder.onnx --sku t4 --needs nnbhxwhshg30  # once that has succeeded",
            "planforge submit model.onnx --sku h100-sxm --require memory=80GB --require mig=none  # no slice",
            "planforge submit model.onnx --sku cpu-x86-64-v3 --compile-only  # built, not measured",
            "planforge submit model.onnx --precision int8 --calibration samples.npz --sku t4,l4  # prepared once for both",
            "planforge submit model.onnx --sku h100-sxm --compile-first  # kernels are compiled while its devices are busy",
        ],
    ),
    (
        "jobs",
        &[
            "planforge jobs",
            "planforge jobs --state failed --since 3d --all",
            "planforge jobs --tag release=2026-11 --sort ended",
            "planforge jobs --model model.onnx --sku t4 --json",
        ],
    ),
    (
        "requests",
        &[
            "planforge requests",
            "planforge requests --state open --project vision",
            "planforge requests --state failed --since 3d --all --json",
        ],
    ),
    (
        "events",
        &[
            "planforge events",
            "planforge events --job nnbhxwhshg30 --all",
            "planforge events --kind failed --kind cancelled --limit 20",
            "planforge events --after 5675 --all --json",
        ],
    ),
    ("watch", &["planforge watch", "planforge watch nnbhxwhshg30"]),
    ("logs", &["planforge logs nnbhxwhshg30", "planforge logs -f nnbhxwhshg30"]),
    ("cancel", &["planforge cancel nnbhxwhshg30 --reason 'wrong shapes'"]),
    (
        "refresh",
        &[
            "planforge refresh --dry-run  # which engines are stale, and why",
            "planforge refresh --older-than 30d --sku t4 --wait",
            "planforge refresh digits.onnx --reason toolchain --slower-percent 2",
        ],
    ),
    ("priority", &["planforge priority nnbhxwhshg30 --to 10", "planforge priority nnbhxwhshg30 7q2v --to -5"]),
    ("retry", &["planforge retry nnbhxwhshg30 --wait"]),
    (
        "fetch",
        &[
            "planforge fetch  # what engines.lock names for this machine",
            "planforge fetch model.onnx --sku t4 -o engines/",
            "planforge fetch 8af130014d3d9d34a1bd5d05a30e98bfb2bd7a0dd2b7a4f6a2b8c8f0a2f4c1d7 --card",
            "planforge fetch model --sku l4 --classes matrix.json  # one of a kind shown to be interchangeable",
        ],
    ),
    ("history", &["planforge history model.onnx", "planforge history model.onnx --sku t4 --json"]),
    (
        "sync",
        &[
            "planforge sync",
            "planforge sync --update  # also what a newer toolchain would build",
            "planforge sync --frozen",
        ],
    ),
    ("check", &["planforge check", "planforge check --strict --json"]),
    ("diff", &["planforge diff", "planforge diff main --markdown", "planforge diff before.lock after.lock --offline"]),
    ("config", &["planforge config check", "planforge config farm"]),
    ("config check", &["planforge config check"]),
    ("config schema", &["planforge config schema"]),
    ("config farm", &["planforge config farm", "planforge config farm shop --json"]),
    ("config forget", &["planforge config forget old-shop"]),
    ("pins", &["planforge pins list", "planforge pins add engines/model.t4.plan --days 365 --reason 'release 1.4'"]),
    ("pins list", &["planforge pins list", "planforge pins list --owner ci --json"]),
    (
        "pins add",
        &[
            "planforge pins add engines/model.t4.plan --days 365 --reason 'release 1.4'",
            "planforge pins add 8af130014d3d9d34a1bd5d05a30e98bfb2bd7a0dd2b7a4f6a2b8c8f0a2f4c1d7",
        ],
    ),
    (
        "pins remove",
        &[
            "planforge pins remove engines/model.t4.plan",
            "planforge pins remove 8af130014d3d9d34a1bd5d05a30e98bfb2bd7a0dd2b7a4f6a2b8c8f0a2f4c1d7 --owner ci",
        ],
    ),
    ("share", &["planforge share create --request 5tq8h2vwm1xk", "planforge share list"]),
    (
        "share create",
        &[
            "planforge share create --request 5tq8h2vwm1xk",
            "planforge share create --model 8af130014d3d9d34a1bd5d05a30e98bfb2bd7a0dd2b7a4f6a2b8c8f0a2f4c1d7 --days 30",
        ],
    ),
    ("share list", &["planforge share list", "planforge share list --json"]),
    ("share revoke", &["planforge share revoke 0m2c7x9kq4ta"]),
    (
        "report",
        &[
            "planforge report nnbhxwhshg30",
            "planforge report engines/model.t4.plan --all",
            "planforge report nnbhxwhshg30 --artifacts traces/",
            "planforge report nnbhxwhshg30 h6f2ypze9gqk -o report.html",
            "planforge report report.json --format markdown",
            "planforge report --request h6f2ypze9gqk -o sweep.html  # a sweep as one document",
            "planforge report --story yolo-s.onnx --shapes images:1..1..8x3x640x640 -o story.html",
        ],
    ),
    (
        "compare",
        &[
            "planforge compare nnbhxwhshg30 h6f2ypze9gqk",
            "planforge compare --model model.onnx --toolchain tensorrt=10.13 --toolchain tensorrt=11.1 --gate 5",
            "planforge compare new.json --baseline old.json --layers --gate p99=10 --gate size=0",
            "planforge compare --model model.onnx --baseline-lock main --gate 5 --junit gate.xml  # against a branch's lock",
            "planforge compare --request h6f2ypze9gqk --baseline-tag release=1.4 --gate t4:p99=10",
            "planforge compare nnbhxwhshg30 --imported vendor.csv  # beside figures that were measured elsewhere",
        ],
    ),
    (
        "best",
        &[
            "planforge best model.onnx --p99 5ms  # the most items per second below that",
            "planforge best model.onnx --by cost --prices prices.toml --sku t4,l4,h100-sxm",
            "planforge best model.onnx --pareto",
        ],
    ),
    (
        "matrix",
        &[
            "planforge matrix model.onnx --sku a100-pcie-40gb,a100-sxm4-80gb --measure  # builds and measures what is missing",
            "planforge matrix resnet50 bert yolo --sku t4,l4  # which kinds may stand for each other",
            "planforge matrix model.onnx --sku t4,l4 -o portability.html",
        ],
    ),
    ("devices", &["planforge devices", "planforge devices --online --json"]),
    ("agents", &["planforge agents list", "planforge agents drain rack-1"]),
    ("agents list", &["planforge agents list"]),
    ("agents drain", &["planforge agents drain rack-1"]),
    ("agents resume", &["planforge agents resume rack-1"]),
    ("agents forget", &["planforge agents forget rack-1"]),
    ("projects", &["planforge projects list", "planforge projects set red --share 2 --max-bytes 500GiB"]),
    ("projects list", &["planforge projects list"]),
    (
        "projects set",
        &["planforge projects set red --share 2 --max-jobs 5000", "planforge projects set red --max-bytes none"],
    ),
    (
        "audit",
        &["planforge audit --days 7", "planforge audit --actor ci --what submit", "planforge audit --all --json"],
    ),
    ("admin", &["planforge admin check", "planforge admin backup /backups/farm-monday"]),
    ("admin check", &["planforge admin check", "planforge admin check --read --data ~/farm"]),
    (
        "admin backup",
        &["planforge admin backup /backups/farm-monday", "planforge admin backup monday --data ~/farm --link"],
    ),
    (
        "admin blobs",
        &[
            "planforge admin blobs s3://bucket/farm --data ~/farm --blobs-keys s3.keys",
            "planforge admin blobs ~/farm/blobs --data ~/farm",
        ],
    ),
    ("admin restore", &["planforge admin restore /backups/farm-monday --data ~/farm-again"]),
    ("admin migrate", &["planforge admin migrate --data ~/farm --store-file /etc/planforge/store"]),
    (
        "admin export",
        &[
            "planforge admin export /srv/farm-exported --data ~/farm",
            "planforge admin export /srv/farm-exported --data ~/farm --store-file /etc/planforge/store --blobs-keys s3.keys",
        ],
    ),
    (
        "admin import",
        &[
            "planforge admin import /srv/farm-exported --data ~/farm-again",
            "planforge admin import /srv/farm-exported --data ~/farm-again --store-file /etc/planforge/store --blobs s3://bucket/farm",
        ],
    ),
    ("admin scrub", &["planforge admin scrub", "planforge admin scrub --rate 500"]),
    ("doctor", &["planforge doctor", "planforge doctor --no-self-test --json"]),
    ("probe", &["planforge probe"]),
    ("gc", &["planforge gc --dry-run", "planforge gc --json"]),
    ("engines", &["planforge engines", "planforge engines model.onnx --sku t4"]),
    ("inspect", &["planforge inspect model.onnx", "planforge inspect engines/model.t4.plan"]),
    ("explain", &["planforge explain model.onnx", "planforge explain model.onnx --shapes images:1x3x224x224 --json"]),
    ("ops", &["planforge ops", "planforge ops --backend cuda --json"]),
    (
        "bench",
        &[
            "planforge bench model.cpu-x86-64-v3.plan --model model.onnx",
            "planforge bench model.onnx --baseline onnxruntime",
            "planforge bench model.plan --rate 200/s --concurrency 2  # requests that arrive by themselves",
            "planforge bench model.plan --objective p99=5ms  # the highest rate that keeps it",
            "planforge bench model.plan --soak 30m  # what drifts, grows or is held down",
            "planforge bench model.t4.plan --on t4,h100-sxm",
        ],
    ),
    (
        "prepare",
        &[
            "planforge prepare model.onnx --precision int8 --calibration samples.npz -o model.int8.onnx",
            "planforge prepare model.onnx --precision int8 --calibration labelled.npz --max-accuracy-drop 0.5 -o out.onnx",
            "planforge prepare model.onnx --precision fp16 --calibration samples.npz -o model.fp16.onnx",
            "planforge prepare model.onnx --precision int4-weights -o model.int4.onnx  # needs no data",
        ],
    ),
    (
        "eval",
        &[
            "planforge eval model.plan labelled.npz",
            "planforge eval model.plan labelled.npz --min-top1 0.98  # a gate: its exit code says whether it passed",
        ],
    ),
    (
        "run",
        &[
            "planforge run model.cpu-x86-64-v3.plan --input in.npz --output out.npz",
            "planforge run decoder.plan --input prompt.npz --loop 64 --output tokens.npz",
        ],
    ),
    ("caches", &["planforge caches list", "planforge caches drop 3f2a91c0"]),
    ("caches list", &["planforge caches list --sku t4"]),
    ("caches drop", &["planforge caches drop 3f2a91c0"]),
    (
        "pause",
        &[
            "planforge pause sku t4 --for 2h --reason 'new driver'",
            "planforge pause agent host-7 --every sat,sun --at 22:00 --for 8h",
        ],
    ),
    ("pause list", &["planforge pause list"]),
    ("pause sku", &["planforge pause sku t4 --until 2026-11-26T18:00Z --reason 'new driver'"]),
    ("pause project", &["planforge pause project nightly"]),
    ("pause agent", &["planforge pause agent host-7 --for 2h"]),
    ("resume", &["planforge resume sku t4"]),
    ("resume sku", &["planforge resume sku t4"]),
    ("resume project", &["planforge resume project nightly"]),
    ("resume agent", &["planforge resume agent host-7 --window"]),
    ("plugins", &["planforge plugins allow libplugin.so", "planforge plugins list"]),
    ("plugins list", &["planforge plugins list"]),
    ("plugins allow", &["planforge plugins allow libplugin.so"]),
    ("plugins forbid", &["planforge plugins forbid libplugin.so"]),
    (
        "login",
        &[
            "planforge login https://farm.example:7400 --ca ca.pem --token-file ci.token",
            "planforge login https://farm.example:7400  # asks for the token, or reads it from a pipe",
        ],
    ),
    ("logout", &["planforge logout https://farm.example:7400"]),
    ("open", &["planforge open --server http://127.0.0.1:7400"]),
    ("token", &["planforge token create ci --role read -o ci.token", "planforge token list"]),
    (
        "token create",
        &[
            "planforge token create ci --role read -o ci.token",
            "planforge token create red-ci --role submit --project red -o red-ci.token",
            "planforge token create rack-1 --role enroll -o rack-1.once",
        ],
    ),
    ("token list", &["planforge token list"]),
    ("token revoke", &["planforge token revoke ci"]),
    ("token replace-admin", &["planforge token replace-admin --data /srv/planforge"]),
    ("token rebind", &["planforge token rebind rack-1"]),
    (
        "testmodel",
        &[
            "planforge testmodel --list",
            "planforge testmodel resnet50 -o resnet50.onnx",
            "planforge testmodel bert-base --dynamic-sequence",
        ],
    ),
    ("completions", &["planforge completions bash"]),
];

/// The examples of the command at `path` (`token create`), as its help shows them; empty where it has none.
pub fn text(path: &str) -> String {
    let Some((_, lines)) = EXAMPLES.iter().find(|(name, _)| *name == path) else { return String::new() };
    let shown = lines.iter().map(|line| format!("\n  {}", line.trim_end())).collect::<String>();
    format!("Examples:{shown}")
}

/// `command`, at `path`, with the examples of it and of all below it in their helps.
pub fn add(command: Command, path: &str) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let command = below.iter().fold(command, |command, name| {
        let path = if path.is_empty() { name.clone() } else { format!("{path} {name}") };
        command.mut_subcommand(name, |below| add(below, &path))
    });
    let examples = text(path);
    match (command.get_after_help().map(StyledStr::to_string), examples.is_empty()) {
        (_, true) => command,
        (Some(own), false) => command.after_help(format!("{own}\n\n{examples}")),
        (None, false) => command.after_help(examples),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use std::collections::BTreeSet;

    /// Every command that people see, by its path.
    fn paths(command: &Command, path: &str, found: &mut BTreeSet<String>) {
        found.insert(path.to_owned());
        for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
            let path =
                if path.is_empty() { below.get_name().to_owned() } else { format!("{path} {}", below.get_name()) };
            paths(below, &path, found);
        }
    }

    /// The words of an example, without what is said beside it; quotes keep blanks together.
    fn words(line: &str) -> Vec<String> {
        let line = line.split("  #").next().unwrap_or(line);
        let mut words = Vec::new();
        for (index, part) in line.split('\'').enumerate() {
            match index % 2 {
                0 => words.extend(part.split_whitespace().map(str::to_owned)),
                _ => words.push(part.to_owned()),
            }
        }
        words
    }

    #[test]
    fn every_command_has_examples_in_its_help() {
        let mut all = BTreeSet::new();
        let grammar = Cli::grammar();
        paths(&grammar, "", &mut all);
        assert!(all.contains("token create") && all.len() > 40, "{all:?}");
        let named: BTreeSet<String> = EXAMPLES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(all, named, "commands, and commands that have examples");
        for path in all {
            let mut command = grammar.clone();
            for name in path.split_whitespace() {
                command = command.find_subcommand(name).expect("walked above").clone();
            }
            for help in [command.render_help(), command.render_long_help()] {
                assert!(help.to_string().contains("Examples:\n  planforge "), "{path}: {help}");
            }
        }
    }

    #[test]
    fn every_example_is_a_command_line_of_its_command() {
        for (path, lines) in EXAMPLES {
            for line in *lines {
                let words = words(line);
                let named = format!("{} ", words[1..].join(" "));
                assert!(words[0] == "planforge" && named.starts_with(path), "{path}: {line}");
                if let Err(error) = Cli::grammar().try_get_matches_from(&words) {
                    panic!("{line}: {error}");
                }
            }
        }
    }
}
