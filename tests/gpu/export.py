"""Writes a module of tests/bench/cuda-vs-pytorch as ONNX and as a program of torch.export: export.py NAME FOLDER."""
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench/cuda-vs-pytorch"))
import models
import torch

name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
began = time.monotonic()
module = models.settle(models.module(name).to("cuda"), name, "cuda")
models.export(module, name, folder / f"{name}.onnx")
print(f"{name}: ONNX after {time.monotonic() - began:.1f} s", flush=True)
# BERT as it is run: a program keeps the types and devices of masks that it was exported with.
if name == "bert_base":
    module = module.half()
program = torch.export.export(module, models.inputs(name, 1, "cuda", seed=1))
torch.export.save(program, folder / f"{name}.pt2")
print(f"{name}: program after {time.monotonic() - began:.1f} s", flush=True)
