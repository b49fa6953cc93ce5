"""Greedy decoding, one token at a time with a static cache: ours beside PyTorch, in turns on one GPU.

    python3 tests/bench/cuda-vs-pytorch/decode.py FOLDER [--models gpt2-step,llama-1b-step] [--positions 128,1000] [--peers graph]

Our engine is of the step that `planforge testmodel` writes (fp16, weights from a seed); PyTorch runs the same network with
the same weights, read from that file. Its cache is as long as ours and changed in place by `index_copy_`; attention is
`scaled_dot_product_attention` over the whole cache with a mask, as static caches of the usual libraries have it.

| peer | what it is |
|---|---|
| `graph` | the module in fp16, one step captured in a CUDA graph |
| `reduce-overhead` | the module in fp16 by torch.compile, mode reduce-overhead |

Every engine takes turns, rounds of calls: event, one step, event, the device idle before each (*call*), and steps queued
behind one another (*queued*). Bytes are those that one step has to read: all matrices, and keys and values up to the
token's place. Rows of JSON go to FOLDER/decode.jsonl; what is printed is their table.
"""

import argparse
import json
import mmap
import pathlib
import statistics
import time

import numpy
import torch
from torch import nn
from torch.nn import functional

import ours

# What an H200 copies at, read and written: docs/measurements/cuda-probes.md.
REACHED_BYTES_PER_S = 4.3e12
ROUNDS = 5
CALLS = 40
QUEUED = 50
WARM_UPS = 3
COMPARED = 6

SIZES = {
    "gpt2-step": dict(llama=False, layers=12, heads=12, shared=12, size=64, places=1024),
    "llama-1b-step": dict(llama=True, layers=16, heads=32, shared=8, size=64, places=2048),
    "gpt2-tiny-step": dict(llama=False, layers=2, heads=4, shared=4, size=16, places=48),
    "llama-tiny-step": dict(llama=True, layers=2, heads=4, shared=2, size=16, places=48),
}


def fields(data):
    """Numbers and values of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint()
        elif kind == 2:
            length = varint()
            yield number, data[at : at + length]
            at += length
        else:
            width = 8 if kind == 1 else 4
            yield number, data[at : at + width]
            at += width


def dims(values):
    """Packed or not."""
    for value in values:
        if isinstance(value, int):
            yield value
        else:
            at, number, shift = 0, 0, 0
            for byte in value:
                number |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    yield number
                    number, shift = 0, 0


def weights(path):
    """The file's tensors by name, on the GPU; halves and floats alone."""
    graph = next(value for number, value in fields(path.read_bytes()) if number == 7)
    beside = {}
    found = {}
    types = {1: numpy.float32, 10: numpy.float16}
    for number, tensor in fields(graph):
        if number != 5:
            continue
        of = {}
        for key, value in fields(tensor):
            of.setdefault(key, []).append(value)
        element = types.get(of[2][0])
        if element is None:
            continue
        shape = list(dims(of.get(1, [])))
        if 13 in of:
            where = {}
            for entry in of[13]:
                parts = dict(fields(entry))
                where[bytes(parts[1]).decode()] = bytes(parts[2]).decode()
            file = where["location"]
            if file not in beside:
                opened = open(path.parent / file, "rb")
                beside[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            begin = int(where.get("offset", 0))
            count = int(numpy.prod(shape, dtype=numpy.int64)) if shape else 1
            array = numpy.frombuffer(beside[file], element, count, begin)
        else:
            array = numpy.frombuffer(of[9][0], element)
        found[bytes(of[8][0]).decode()] = torch.from_numpy(array.copy().reshape(shape)).cuda()
    return found


class Step(nn.Module):
    """One step of a decoder, its caches among the buffers."""

    def __init__(self, tensors, llama, layers, heads, shared, size, places):
        super().__init__()
        self.tensors = {name.replace(".", "_"): tensor for name, tensor in tensors.items()}
        for name, tensor in self.tensors.items():
            self.register_buffer(name, tensor)
        self.llama, self.layers, self.heads, self.shared, self.size, self.places = llama, layers, heads, shared, size, places
        for layer in range(layers):
            for what in ("keys", "values"):
                cache = torch.zeros(1, shared, places, size, dtype=torch.float16, device="cuda")
                self.register_buffer(f"{what}_{layer}", cache)
        self.register_buffer("all_places_", torch.arange(places, device="cuda"))

    def of(self, name):
        return getattr(self, name.replace(".", "_"))

    def linear(self, x, name):
        y = x @ self.of(f"{name}.weight")
        return y if self.llama else y + self.of(f"{name}.bias")

    def norm(self, x, name):
        weight = self.of(f"{name}.weight")
        if self.llama:
            return functional.rms_norm(x, weight.shape, weight, 1e-5)
        return functional.layer_norm(x, weight.shape, weight, self.of(f"{name}.bias"), 1e-5)

    def turned(self, x, cosines, sines):
        half = self.size // 2
        other = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
        return x * cosines + other * sines

    def forward(self, token, position):
        table = self.of("embedding.weight")
        x = table[token] * float(table.shape[1]) ** 0.5
        if self.llama:
            cosines, sines = self.cosines[position], self.sines[position]
        else:
            x = x + self.of("positions.weight")[position]
        seen = (self.all_places_ <= position).view(1, 1, 1, -1)
        mask = torch.zeros(1, 1, 1, self.places, dtype=x.dtype, device=x.device).masked_fill(~seen, float("-inf"))
        for layer in range(self.layers):
            name = f"layers.{layer}"
            y = self.norm(x, f"{name}.attention_norm")
            split = lambda part, heads: self.linear(y, f"{name}.attention.{part}").view(1, 1, heads, self.size).transpose(1, 2)
            query, key, value = split("query", self.heads), split("key", self.shared), split("value", self.shared)
            if self.llama:
                query, key = self.turned(query, cosines, sines), self.turned(key, cosines, sines)
            keys, values = self.of(f"keys.{layer}"), self.of(f"values.{layer}")
            keys.index_copy_(2, position, key.to(keys.dtype))
            values.index_copy_(2, position, value.to(values.dtype))
            context = functional.scaled_dot_product_attention(
                query, keys.to(query.dtype), values.to(query.dtype), attn_mask=mask, enable_gqa=self.heads != self.shared
            )
            x = x + self.linear(context.transpose(1, 2).reshape(1, 1, -1), f"{name}.attention.output")
            y = self.norm(x, f"{name}.feed_forward_norm")
            if self.llama:
                inner = functional.silu(self.linear(y, f"{name}.feed_forward.gate")) * self.linear(y, f"{name}.feed_forward.up")
            else:
                inner = functional.gelu(self.linear(y, f"{name}.feed_forward.up"), approximate="tanh")
            x = x + self.linear(inner, f"{name}.feed_forward.down")
        logits = functional.linear(self.norm(x, "norm")[:, 0], table)
        return logits, logits.argmax(dim=-1, keepdim=True)


class Graph:
    """One step captured."""

    def __init__(self, step, token, position):
        self.token, self.position = token.clone(), position.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                step(self.token, self.position)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = step(self.token, self.position)

    def at(self, token, position):
        self.token.copy_(token)
        self.position.copy_(position)

    def __call__(self):
        self.graph.replay()
        return self.output


class Compiled:
    """torch.compile, its own CUDA graphs."""

    def __init__(self, step, token, position):
        self.compiled = torch.compile(step, mode="reduce-overhead", dynamic=False)
        self.at(token, position)
        for _ in range(WARM_UPS + 2):
            self()

    def at(self, token, position):
        self.token, self.position = token.clone(), position.clone()
        torch._dynamo.mark_static_address(self.token)
        torch._dynamo.mark_static_address(self.position)

    def __call__(self):
        torch.compiler.cudagraph_mark_step_begin()
        return self.compiled(self.token, self.position)


def calls(run):
    times = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return times


def queued(run):
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(QUEUED):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / QUEUED


def needed_bytes(tensors, sizes, position):
    """What one step reads at least: every matrix once (the table as the matrix of the scores), and the caches' rows."""
    matrices = sum(t.numel() for name, t in tensors.items() if t.dim() == 2 and not name.startswith(("positions", "cos", "sin")))
    rows = 2 * sizes["layers"] * sizes["shared"] * sizes["size"] * (position + 1)
    return 2 * (matrices + rows)


def relative_rms(actual, expected):
    return float(((actual - expected).pow(2).mean() / expected.pow(2).mean()).sqrt())


def ports(sizes):
    names = ["token", "position"]
    return names + [f"{what}.{layer}" for layer in range(sizes["layers"]) for what in ("keys", "values")]


@torch.inference_mode()
def compare(engine, step, sizes, rows):
    """A few tokens, each step of ours on the caches that the last one left; the module in fp32 on the same weights."""
    wide = {name: tensor.float() for name, tensor in step.tensors.items()}
    reference = Step({}, **sizes)
    for name, tensor in wide.items():
        reference.register_buffer(name, tensor)
    for layer in range(sizes["layers"]):
        for what in ("keys", "values"):
            reference.register_buffer(f"{what}_{layer}", reference.of(f"{what}.{layer}").float())
    token, same, worst = 11, 0, 0.0
    given = {f"{what}.{layer}": step.of(f"{what}.{layer}").clone().zero_() for layer in range(sizes["layers"]) for what in ("keys", "values")}
    for place in range(COMPARED):
        at = (torch.tensor([[token]], device="cuda"), torch.tensor([place], device="cuda"))
        logits, best = reference(*at)
        names = ports(sizes)
        made = engine.outputs(names, [*at, *[given[name] for name in names[2:]]])
        worst = max(worst, relative_rms(torch.from_numpy(made["logits"]).double(), logits.double().cpu()))
        same += int(made["next_token"].reshape(-1)[0]) == int(best)
        given = {name: torch.from_numpy(made[f"next_{name}"]).cuda() for name in given}
        token = int(best)
    rows.append(dict(what="compared", steps=COMPARED, same_tokens=same, worst_logits_rms=worst))


@torch.inference_mode()
def measure(model, given, out):
    sizes = SIZES[model]
    rows = []
    facts = dict(
        model=model, date=time.strftime("%Y-%m-%d"), device=torch.cuda.get_device_name(), torch=torch.__version__
    )
    began = time.monotonic()
    engine = ours.Engine(f"seeded:{model}", 1, given.folder / "ours", level=given.level, log=given.folder / f"{model}.log")
    print(model, "built", json.dumps(engine.built), round(time.monotonic() - began, 1), flush=True)
    try:
        tensors = weights(given.folder / "ours" / f"{model}.onnx")
        step = Step(tensors, **sizes)
        peers = {}
        compare(engine, step, sizes, rows)
        print(model, json.dumps(rows[-1]), flush=True)
        token = torch.tensor([[5]], device="cuda")
        place = lambda position: torch.tensor([position], device="cuda")
        for name in given.peers.split(","):
            kind = {"graph": Graph, "reduce-overhead": Compiled}[name]
            began = time.monotonic()
            try:
                peers[name] = kind(step, token, place(given.positions[0]))
                print(model, name, "ready in", round(time.monotonic() - began, 1), flush=True)
            except Exception as error:  # one peer that fails leaves the others
                print(model, name, "failed:", repr(error)[:600], flush=True)
        generator = torch.Generator(device="cuda").manual_seed(3)
        caches = [
            torch.randn(1, sizes["shared"], sizes["places"], sizes["size"], generator=generator, device="cuda").half()
            for _ in range(2 * sizes["layers"])
        ]
        for position in given.positions:
            engine.feed(ports(sizes), [[token, place(position), *caches]])
            for peer in peers.values():
                peer.at(token, place(position))
                for _ in range(WARM_UPS):
                    peer()
            taken = {name: ([], []) for name in ("planforge", *peers)}
            for _ in range(ROUNDS):
                torch.cuda.synchronize()
                taken["planforge"][0].extend(engine.ask("fixed", CALLS)["ms"])
                taken["planforge"][1].append(engine.ask("fixed-queued", QUEUED)["ms"])
                for name, peer in peers.items():
                    taken[name][0].extend(calls(peer))
                    taken[name][1].append(queued(peer))
            needed = needed_bytes(tensors, sizes, position)
            for name, (single, behind) in taken.items():
                ms, queued_ms = statistics.median(single), statistics.median(behind)
                rows.append(
                    dict(
                        what="timed", engine=name, position=position, call_ms=ms, queued_ms=queued_ms,
                        needed_bytes=needed, call_share=needed / ms * 1e3 / REACHED_BYTES_PER_S,
                        queued_share=needed / queued_ms * 1e3 / REACHED_BYTES_PER_S,
                        calls=len(single), spread_ms=[min(single), max(single)],
                    )
                )
                print(model, json.dumps(rows[-1]), flush=True)
        if given.layers:
            total = {}
            for layer in engine.ask("layers")["layers"]:
                of = total.setdefault(layer["kind"], [0, 0.0])
                of[0] += 1
                of[1] += layer["ms"]
                if layer["name"].startswith(given.layers):
                    print(model, layer["name"], layer["kind"], layer["tactic"], round(layer["ms"] * 1e3, 2), "us", flush=True)
            print(model, "by kind", json.dumps({kind: [n, round(ms, 4)] for kind, (n, ms) in total.items()}), flush=True)
    finally:
        engine.close()
        with open(out, "a") as file:
            for row in rows:
                file.write(json.dumps({**facts, **row}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", default="gpt2-step,llama-1b-step")
    parser.add_argument("--positions", default="128,1000")
    parser.add_argument("--peers", default="graph,reduce-overhead")
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--layers", help="times of every kind of step, each by itself, and of steps whose names begin so")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    given.positions = [int(position) for position in given.positions.split(",")]
    for model in given.models.split(","):
        measure(model, given, given.folder / "decode.jsonl")


if __name__ == "__main__":
    main()
