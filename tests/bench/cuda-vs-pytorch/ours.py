"""Our engine in a process of its own: `engine_server`, driven over its standard input and output."""

import json
import os
import pathlib
import subprocess
import tempfile

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[3]
# How long its process may take to end by itself.
END_S = 20


def program():
    """The server's path: PLANFORGE_ENGINE_SERVER, or what cargo builds here."""
    given = os.environ.get("PLANFORGE_ENGINE_SERVER")
    if given:
        return pathlib.Path(given)
    command = ["cargo", "build", "--release", "-p", "planforge-cuda", "--example", "engine_server"]
    subprocess.run(command, cwd=ROOT, check=True)
    return ROOT / "target/release/examples/engine_server"


class Engine:
    """Builds the engine of one cell; `built` says how."""

    def __init__(self, model, batch, cache, contexts=1, level=3, log=None, precision="fp16"):
        command = [str(program()), str(model), str(batch), str(cache), "--contexts", str(contexts), "--level", str(level)]
        command += ["--fp32"] if precision == "fp32" else []
        self.log = open(log, "a+") if log else tempfile.TemporaryFile("w+")
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        try:
            self.built = self._answer()
        except BaseException:
            # Nobody else knows this process: it must not stay on the GPU.
            self.close()
            raise

    @property
    def pid(self):
        return self.process.pid

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine's process ended with {self.process.wait()}: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _last_words(self):
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
        """Ends its process, by force when it does not listen."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(END_S if hasattr(self, "built") else 0.1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()
        self.folder.cleanup()
