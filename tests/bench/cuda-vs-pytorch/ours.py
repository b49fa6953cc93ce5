"""Our engine in a process of its own: `engine_server`, driven over its standard input and output."""

import json
import os
import pathlib
import subprocess
import tempfile

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[3]


def program():
    """The server's path: PLANFORGE_ENGINE_SERVER, or what cargo builds here."""
    given = os.environ.get("PLANFORGE_ENGINE_SERVER")
    if given:
        return pathlib.Path(given)
    command = ["cargo", "build", "--release", "-p", "planforge-engine-cuda", "--example", "engine_server"]
    subprocess.run(command, cwd=ROOT, check=True)
    return ROOT / "target/release/examples/engine_server"


class Engine:
    """Builds the engine of one cell; `built` says how."""

    def __init__(self, model, batch, cache, contexts=1, level=3, log=None):
        command = [str(program()), str(model), str(batch), str(cache), "--contexts", str(contexts), "--level", str(level)]
        self.log = log or tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None)
        self.built = self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine's process ended with {self.process.wait()}: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _last_words(self):
        if not self.log.readable():
            return "see its log"
        self.log.seek(0)
        return " | ".join(self.log.read().splitlines()[-3:]) or "it said nothing"

    def ask(self, *words):
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _written(self, label, names, tensors):
        path = pathlib.Path(self.folder.name) / f"{label}.npz"
        numpy.savez(path, **{name: tensor.cpu().numpy() for name, tensor in zip(names, tensors)})
        return path

    def feed(self, names, sets):
        files = [self._written(f"set{number}", names, tensors) for number, tensors in enumerate(sets)]
        self.ask("inputs", *files)
        for file in files:
            file.unlink()

    def outputs(self, names, tensors):
        given = self._written("given", names, tensors)
        result = pathlib.Path(self.folder.name) / "outputs.npz"
        self.ask("outputs", given, result)
        with numpy.load(result) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()
