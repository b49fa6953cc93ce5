#!/usr/bin/env python3
"""Ranges of shapes on a GPU, with weights beside the file and within it: ranges.py PLANFORGE OUT [NAME...]

PyTorch's exporter writes three networks twice, weights beside the file and within it; each becomes one engine over a
range, fp32 and fp16. Then every shape that is named below runs, on the GPU and in the module itself (fp32 on the CPU).
One line an engine and shape, as soon as it ran: the relative RMS of what is different. Ends with 1 where an engine
failed, where an error is above what its precision gives, or where a plan holds more than the weights of the file once and
those of the engine once. Each engine takes 10 to 20 s; names of networks and precisions after OUT leave out the others.

Needs a GPU, torch, onnx and onnxscript.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from torch import nn

SEED = 24
# Relative RMS that fp32 (TF32 off) and fp16 stay below on networks this shallow.
ERROR_MAX = {"fp32": 1e-4, "fp16": 5e-3}
# Bytes of a plan by those of the file's weights: the file's own, from which other shapes are built, and the engine's.
WEIGHTS_TIMES_MAX = {"fp32": 2.1, "fp16": 1.7}


class Images(nn.Module):
    """A convolutional network whose batch, height and width are open."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 256, 3, stride=2, padding=1), nn.BatchNorm2d(256), nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU(),
        )
        self.head = nn.Linear(256, 100)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Tokens(nn.Module):
    """Embedding, two encoder layers with attention under a mask, a head; batch and length open."""

    def __init__(self, width=256):
        super().__init__()
        self.embedding = nn.Embedding(4000, width)
        self.queries, self.keys, self.values, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 32)

    def forward(self, ids, mask):
        x = self.embedding(ids)
        q, k, v = (f(x).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.queries, self.keys, self.values))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e4)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        x = x + self.narrow(nn.functional.gelu(self.wide(self.norm(x))))
        return self.head(x)


class Products(nn.Module):
    """Two products with one weight used twice: shared constants are held once."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(1024, 1024)

    def forward(self, x):
        return self.shared(nn.functional.relu(self.shared(x)))


def images(batch, height, width):
    return {"x": torch.rand(batch, 3, height, width)}


def tokens(batch, length):
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[:, length - length // 3 :] = 0
    return {"ids": torch.randint(0, 4000, (batch, length)), "mask": mask}


def products(rows):
    return {"x": torch.randn(rows, 1024)}


# Module, inputs of a shape, shapes that run (the least and the most of the range among them), the range.
NETWORKS = {
    "images": (Images, images, [(1, 32, 32), (3, 40, 56), (8, 64, 64)], ["x:1..4..8x3x32..48..64x32..48..64"]),
    "tokens": (
        Tokens, tokens, [(1, 16), (5, 100), (16, 128), (2, 17)],
        ["ids:1..8..16x16..64..128", "mask:1..8..16x16..64..128"],
    ),
    "products": (Products, products, [(1,), (5,), (32,)], ["x:1..8..32x1024"]),
}
OPEN = {"images": {"x": {0: "n", 2: "h", 3: "w"}}, "tokens": {"ids": {0: "n", 1: "t"}, "mask": {0: "n", 1: "t"}},
        "products": {"x": {0: "n"}}}


def export(module, name, inputs, path, beside):
    dims = {}
    shapes = {
        key: {axis: dims.setdefault(symbol, torch.export.Dim(symbol, min=1, max=512)) for axis, symbol in axes.items()}
        for key, axes in OPEN[name].items()
    }
    torch.onnx.export(
        module, (), str(path), kwargs=inputs, input_names=list(inputs), output_names=["y"], dynamic_shapes=shapes,
        dynamo=True, external_data=beside, verbose=False,
    )


def relative_rms(wanted, got):
    return float(numpy.sqrt(((wanted - got) ** 2).mean() / (wanted**2).mean()))


def main():
    planforge, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    wanted = sys.argv[3:]
    networks = {name: NETWORKS[name] for name in NETWORKS if name in wanted or not set(wanted) & set(NETWORKS)}
    precisions = [name for name in ERROR_MAX if name in wanted or not set(wanted) & set(ERROR_MAX)]
    rows, failed = open(out / "ranges.jsonl", "a"), False

    def tell(row):
        print(json.dumps(row), file=rows, flush=True)
        print(json.dumps(row), flush=True)

    work = pathlib.Path(tempfile.mkdtemp())
    devices = json.loads(subprocess.check_output([planforge, "devices", "--json"]))["devices"]
    sku = next(sku for device in devices for sku in device["skus"] if not sku.startswith("cpu-"))
    for name, (kind, inputs_of, shapes, ranges) in networks.items():
        module = kind().eval()
        weights = sum(p.numel() * 4 for p in {id(p): p for p in module.parameters()}.values())
        for beside in (True, False):
            folder = work / f"{name}-{'beside' if beside else 'within'}"
            folder.mkdir()
            export(module, name, inputs_of(*shapes[1]), folder / "model.onnx", beside)
            files = sorted(path.name for path in folder.iterdir())
            for precision in precisions:
                plan = folder / f"{precision}.plan"
                words = [planforge, "build", folder / "model.onnx", "--sku", sku, "--precision", precision, "-o", plan]
                for text in ranges:
                    words += ["--shapes", text]
                done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
                row = {"network": name, "files": files, "precision": precision}
                if done.returncode != 0:
                    failed = True
                    tell({**row, "failed": done.stderr[-600:]})
                    continue
                row["plan_bytes"] = plan.stat().st_size
                row["plan_per_weights"] = round(row["plan_bytes"] / weights, 3)
                for shape in shapes:
                    inputs = inputs_of(*shape)
                    numpy.savez(folder / "in.npz", **{key: value.numpy() for key, value in inputs.items()})
                    words = [planforge, "run", plan, "--input", folder / "in.npz", "--output", folder / "out.npz"]
                    ran = subprocess.run([str(word) for word in words], capture_output=True, text=True)
                    if ran.returncode != 0:
                        failed = True
                        tell({**row, "shape": shape, "failed": ran.stderr[-600:]})
                        continue
                    with torch.no_grad():
                        wanted = module(**inputs).numpy()
                    error = relative_rms(wanted, numpy.load(folder / "out.npz")["y"])
                    failed |= not error <= ERROR_MAX[precision]
                    tell({**row, "shape": shape, "relative_rms": error})
                failed |= row["plan_per_weights"] > WEIGHTS_TIMES_MAX[precision]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
