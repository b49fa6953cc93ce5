#!/usr/bin/env python3
"""Networks of operators that few models have, on a GPU: operators.py PLANFORGE OUT [NAME...]

PyTorch's exporter writes each network; it becomes an engine in fp32 and in fp16, which runs there and in the module
itself (fp32 on the CPU). One line an engine, as soon as it ran: the relative RMS of what is different. Ends with 1 where an
engine failed or an error is above what its precision gives. Names of networks and precisions after OUT leave out the
others.

Needs a GPU, torch, onnx and onnxscript.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy
import torch
from torch import nn
from torch.nn import functional

SEED = 24
# Relative RMS that fp32 (TF32 off) and fp16 stay below on networks this shallow.
ERROR_MAX = {"fp32": 1e-4, "fp16": 5e-3}


class Residual(nn.Module):
    """Blocks of 18, 21 or 36 channels that are added to what they read, as segmentation networks have them."""

    def __init__(self, channels):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(4))

    def forward(self, x):
        x = self.stem(x).relu()
        for block in self.blocks:
            x = (block(x) + x).relu()
        return x


class Speech(nn.Module):
    """Convolutions over one dimension, grouped ones among them, then a recurrent layer of both directions."""

    def __init__(self, kind):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(40, 128, 5, stride=2, padding=2), nn.GELU(), nn.Conv1d(128, 128, 3, padding=1, groups=8), nn.ReLU(),
            nn.MaxPool1d(3, stride=2, padding=1),
        )
        self.cells = kind(128, 96, bidirectional=True, batch_first=True)
        self.head = nn.Linear(192, 30)

    def forward(self, x):
        return self.head(self.cells(self.body(x).transpose(1, 2))[0])


class Decoder(nn.Module):
    """Transposed convolutions of several forms between others."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(8, 64, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(64, 48, 2, stride=2), nn.ReLU(),
            nn.ConvTranspose2d(48, 32, 4, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(32, 32, 3, padding=1, groups=4),
            nn.ReLU(), nn.ConvTranspose2d(32, 3, 3, stride=2, padding=1, output_padding=1),
        )

    def forward(self, x):
        return self.body(x)


class Style(nn.Module):
    """Normalisation of whole images of 512 x 512 pixels."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.norm, self.groups = nn.InstanceNorm2d(16, affine=True), nn.GroupNorm(4, 16)

    def forward(self, x):
        return self.last(self.groups(self.norm(self.first(x)).relu()).relu())


class Enlarged(nn.Module):
    """Cubic and linear enlargement, and samples of a grid."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)

    def forward(self, x, grid):
        x = functional.interpolate(self.conv(x), scale_factor=2.0, mode="bicubic", align_corners=False)
        return functional.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


class Volume(nn.Module):
    """Three dimensions."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv3d(2, 16, 3, padding=1), nn.Conv3d(16, 4, 3, stride=2, padding=1)

    def forward(self, x):
        return self.last(functional.avg_pool3d(self.first(x).relu(), 2))


class Ordered(nn.Module):
    """Scores that are ordered, and rows put by index."""

    def forward(self, x, places):
        values, order = x.topk(16, dim=1)
        return torch.zeros_like(x).scatter(1, places, values) + functional.one_hot(order, 64).sum(1).float()


def images(size, channels=3):
    return lambda: {"x": torch.rand(2, channels, size, size)}


NETWORKS = {
    **{f"residual-{channels}": (lambda channels=channels: Residual(channels), images(32)) for channels in (18, 21, 36)},
    "speech-lstm": (lambda: Speech(nn.LSTM), lambda: {"x": torch.rand(2, 40, 200)}),
    "speech-gru": (lambda: Speech(nn.GRU), lambda: {"x": torch.rand(2, 40, 200)}),
    "speech-rnn": (lambda: Speech(nn.RNN), lambda: {"x": torch.rand(2, 40, 200)}),
    "decoder": (Decoder, images(24, 8)),
    "style": (Style, images(512)),
    "enlarged": (Enlarged, lambda: {"x": torch.rand(2, 3, 24, 28), "grid": torch.rand(2, 30, 31, 2) * 2 - 1}),
    "volume": (Volume, lambda: {"x": torch.rand(1, 2, 12, 14, 16)}),
    "ordered": (Ordered, lambda: {"x": torch.randn(4, 64), "places": torch.randperm(64)[:16].repeat(4, 1)}),
}


def relative_rms(wanted, got):
    return float(numpy.sqrt(((wanted - got) ** 2).mean() / (wanted**2).mean()))


def main():
    planforge, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[3:]
    networks = {name: NETWORKS[name] for name in NETWORKS if name in wanted or not set(wanted) & set(NETWORKS)}
    precisions = [name for name in ERROR_MAX if name in wanted or not set(wanted) & set(ERROR_MAX)]
    rows, failed = open(out / "operators.jsonl", "a"), False

    def tell(row):
        print(json.dumps(row), file=rows, flush=True)
        print(json.dumps(row), flush=True)

    work = pathlib.Path(tempfile.mkdtemp())
    devices = json.loads(subprocess.check_output([planforge, "devices", "--json"]))["devices"]
    sku = next(sku for device in devices for sku in device["skus"] if not sku.startswith("cpu-"))
    for name, (make, inputs_of) in networks.items():
        torch.manual_seed(SEED)
        module, inputs = make().eval(), inputs_of()
        folder = work / name
        folder.mkdir()
        model = folder / "model.onnx"
        torch.onnx.export(
            module, (), str(model), kwargs=inputs, input_names=list(inputs), output_names=["y"], dynamo=True, verbose=False
        )
        with torch.no_grad():
            expected = module(**inputs).numpy()
        numpy.savez(folder / "in.npz", **{key: value.numpy() for key, value in inputs.items()})
        for precision in precisions:
            plan, row = folder / f"{precision}.plan", {"network": name, "precision": precision}
            began = time.monotonic()
            words = [planforge, "build", model, "--sku", sku, "--precision", precision, "-o", plan]
            done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
            row["build_s"] = round(time.monotonic() - began, 1)
            if done.returncode == 0:
                words = [planforge, "run", plan, "--input", folder / "in.npz", "--output", folder / "out.npz"]
                done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
            if done.returncode != 0:
                failed = True
                tell({**row, "failed": done.stderr[-600:]})
                continue
            error = relative_rms(expected, numpy.load(folder / "out.npz")["y"])
            failed |= not error <= ERROR_MAX[precision]
            tell({**row, "relative_rms": error})
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
