#!/usr/bin/env python3
"""Runs a template of this folder here as its service would: the same shell, the same variables, the same files.

    run_template.py github FOLDER [INPUT=VALUE...]     the composite action, for tests
    run_template.py gitlab FOLDER [VARIABLE=VALUE...]  the job, for tests

FOLDER is the checkout that it works in. GitHub's action gets GITHUB_* files in FOLDER/../github; steps that use another
action are named and left out. Ends with the exit code that the job would have. Needs ruamel.yaml, which check-jsonschema
brings.
"""

import os
import pathlib
import re
import subprocess
import sys

from ruamel.yaml import YAML

HERE = pathlib.Path(__file__).resolve().parent


def load(name):
    return YAML(typ="safe").load((HERE / name).read_text())


def pairs(words):
    return dict(word.split("=", 1) for word in words)


class Expressions:
    """The few forms of GitHub's expressions that the action is written in."""

    def __init__(self, inputs, failed):
        self.context = {f"inputs.{name}": value for name, value in inputs.items()}
        self.context |= {
            "github.token": "a-token",
            "github.event_name": os.environ.get("GITHUB_EVENT_NAME", "push"),
            "github.event.pull_request.number": os.environ.get("PULL_REQUEST", ""),
            "runner.os": "Linux",
            "runner.arch": "X64",
        }
        self.failed = failed

    def value(self, text):
        text = text.strip()
        if text == "always()":
            return True
        if text in self.context:
            return self.context[text]
        if quoted := re.fullmatch(r"'([^']*)'", text):
            return quoted[1]
        raise SystemExit(f"run_template.py: the expression {text!r} is none that is known here")

    def holds(self, condition):
        """Whether a step runs. One that says nothing of a failure runs without one."""
        if condition is None:
            return not self.failed
        terms = condition.strip().removeprefix("${{").removesuffix("}}").split("&&")
        if self.failed and not any(term.strip() == "always()" for term in terms):
            return False
        return all(self.term(term) for term in terms)

    def term(self, term):
        for sign, wanted in [("==", True), ("!=", False)]:
            if sign in term:
                left, right = term.split(sign)
                return (self.value(left) == self.value(right)) is wanted
        return bool(self.value(term))

    def filled(self, text):
        return re.sub(r"\$\{\{(.*?)\}\}", lambda found: str(self.value(found[1])), str(text))


def github(folder, given):
    action = load("action.yml")
    files = folder.parent / "github"
    files.mkdir(exist_ok=True)
    plain = Expressions({}, False)
    inputs = {name: plain.filled(facts.get("default", "")) for name, facts in action["inputs"].items()}
    unknown = set(given) - set(inputs)
    lacking = {name for name, facts in action["inputs"].items() if facts.get("required") and name not in given}
    if unknown or lacking:
        raise SystemExit(f"run_template.py: no inputs {sorted(unknown)}; required are {sorted(lacking)}")
    inputs |= given
    environment = {
        **os.environ,
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_ACTION_PATH": str(HERE),
        "GITHUB_WORKSPACE": str(folder),
        "RUNNER_TEMP": str(files),
    }
    for name in ["ENV", "PATH", "OUTPUT", "STEP_SUMMARY"]:
        (files / name).touch()
        environment[f"GITHUB_{name}"] = str(files / name)
    status = 0
    for number, step in enumerate(action["runs"]["steps"]):
        expressions = Expressions(inputs, status != 0)
        if not expressions.holds(step.get("if")):
            print(f"run_template.py: skipped: {step['name']}", flush=True)
            continue
        if "uses" in step:
            print(f"run_template.py: left out: {step['name']} ({step['uses']})", flush=True)
            continue
        script = files / f"step-{number}.sh"
        script.write_text(expressions.filled(step["run"]))
        path = [line for line in reversed((files / "PATH").read_text().splitlines())]
        variables = {name: expressions.filled(value) for name, value in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=folder / expressions.filled(step.get("working-directory", ".")),
            env={**environment, **variables, "PATH": ":".join([*path, environment["PATH"]])},
            stdin=subprocess.DEVNULL,
        )
        status = status or done.returncode
    return status


def gitlab(folder, given):
    job = load("gitlab.yml")[".planforge"]
    variables = {**job["variables"], **given}
    environment = {
        **os.environ,
        "CI": "true",
        "GITLAB_CI": "true",
        "CI_PROJECT_DIR": str(folder),
        **{name: str(value).replace("$CI_PROJECT_DIR", str(folder)) for name, value in variables.items()},
    }
    # The runner joins a job's lines to one script for bash.
    lines = ["set -eo pipefail", "set +o noclobber", *job["before_script"], *job["script"]]
    done = subprocess.run(["bash"], input="\n".join(lines).encode() + b"\n", cwd=folder, env=environment)
    return done.returncode


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("github", "gitlab"):
        raise SystemExit(__doc__)
    run = {"github": github, "gitlab": gitlab}[sys.argv[1]]
    raise SystemExit(run(pathlib.Path(sys.argv[2]).resolve(), pairs(sys.argv[3:])))


if __name__ == "__main__":
    main()
