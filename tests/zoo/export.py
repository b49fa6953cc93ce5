#!/usr/bin/env python3
"""Exports the zoo: architectures from the code of torchvision, timm, transformers and torchaudio, by both of PyTorch's
exporters, as graphs without weights.

    export.py FOLDER [NAME...] [--list] [--timeout SECONDS]

Each model becomes FOLDER/NAME.EXPORTER.onnx.zst and a line of FOLDER/zoo.jsonl. Large float tensors are taken out of the
file: what is left of one is its shape and the range that its numbers are drawn from, by whoever reads the file, from its
place in the graph (backends/onnxruntime/tests/zoo/drawn.rs says how). Nothing is trained, so nothing is lost.

Needs CPU builds of torch 2.9.1, torchvision 0.24.1, torchaudio 2.9.1, timm, transformers 4.57, onnxscript, scipy and
zstandard from the Python registry; the files are committed, so tests need none of it. What an exporter refuses is told
in FOLDER/refused.jsonl and is no model of the zoo.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import signal
import sys
import warnings
import zlib

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import torch  # noqa: E402
import zstandard  # noqa: E402
from onnx import numpy_helper  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from catalogue import MODELS  # noqa: E402

# Tensors of fewer elements stay in the file.
SMALL = 128
# What deflates to less than this part of its size is structure (anchors, tables, zeros), not weights.
STRUCTURE = 0.80
# Matrices of zeros from this many elements on are what a library leaves for training to fill, the last layer of some.
UNTRAINED = 1024
TORCHSCRIPT, DYNAMO = "ts", "dynamo"


def is_drawn(array):
    """Whether a tensor's numbers are drawn anew rather than kept."""
    if array.size < SMALL or array.dtype not in (np.float32, np.float16):
        return False
    raw = np.ascontiguousarray(array).tobytes()
    return len(zlib.compress(raw, 1)) >= STRUCTURE * len(raw)


def strip(tensor):
    """Takes the numbers out of a tensor; a uniform draw of the same mean and spread within the same bounds replaces them."""
    array = numpy_helper.to_array(tensor)
    if array.dtype == np.float32 and array.ndim > 1 and array.size >= UNTRAINED and not array.any():
        # Zeros would hide whatever comes before them.
        low, high = -0.05, 0.05
    elif is_drawn(array):
        wide = array.astype(np.float64)
        mean, spread = float(wide.mean()), float(wide.std()) * 3**0.5
        low, high = max(mean - spread, float(wide.min())), min(mean + spread, float(wide.max()))
    else:
        return
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", "drawn"), ("low", repr(np.float32(low).item())), ("high", repr(np.float32(high).item()))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def graphs(graph):
    """A graph and every graph within it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)
            for inner in attribute.graphs:
                yield from graphs(inner)


def reduce(model):
    """The model without weights and without what only people read."""
    model.ClearField("metadata_props")
    model.doc_string = ""
    for graph in graphs(model.graph):
        del graph.value_info[:]
        del graph.metadata_props[:]
        graph.doc_string = ""
        for tensor in graph.initializer:
            tensor.doc_string = ""
            del tensor.metadata_props[:]
            strip(tensor)
        for node in graph.node:
            node.doc_string = ""
            del node.metadata_props[:]
            for attribute in node.attribute:
                attribute.doc_string = ""
                if attribute.HasField("t"):
                    strip(attribute.t)
        for value in (*graph.input, *graph.output):
            value.doc_string = ""
            del value.metadata_props[:]
    for function in model.functions:
        function.doc_string = ""
        for node in function.node:
            node.doc_string = ""
            del node.metadata_props[:]
    return model


def describe(model, given):
    """How inputs are made: element type, shape, and the range to draw from."""
    described = []
    for value in model.graph.input:
        array = given[value.name]
        whole = not np.issubdtype(array.dtype, np.floating)
        low, high = (int(array.min()), int(array.max()) + 1) if whole else (float(array.min()), float(array.max()))
        described.append([value.name, str(array.dtype), list(array.shape), low, high])
    return described


def doubled(arguments, axes):
    """Arguments of which open axes of one are two: PyTorch takes a size of one for a fact."""
    for at, named in axes.items():
        for axis in named:
            if arguments[at].shape[axis] == 1:
                arguments[at] = torch.cat([arguments[at]] * 2, axis)
    return arguments


def export(entry, exporter, folder):
    """Exports with the dimensions open that should be; where the dynamo exporter refuses that, with fixed ones."""
    axes = entry.axes or {}
    ways = [(axes, False)]
    if axes and exporter == DYNAMO:
        ways += [(axes, True), ({}, False)]
    for at, (axes, is_doubled) in enumerate(ways):
        torch.manual_seed(sum(entry.name.encode()))
        model, arguments = entry.build()
        arguments = doubled(arguments, axes) if is_doubled else arguments
        try:
            return export_as(entry, exporter, folder, model.eval(), arguments, axes)
        except Exception:
            if at + 1 == len(ways):
                raise


def export_as(entry, exporter, folder, model, arguments, axes):
    names = [f"input{at}" for at in range(len(arguments))]
    opset = entry.opset if exporter == TORCHSCRIPT else max(18, entry.opset)
    kwargs = {"input_names": names, "opset_version": opset}
    if exporter == TORCHSCRIPT:
        kwargs |= {"dynamo": False, "do_constant_folding": True}
        kwargs["dynamic_axes"] = {names[at]: {axis: name for axis, name in named.items()} for at, named in axes.items()}
    else:
        kwargs |= {"dynamo": True, "optimize": True, "external_data": False}
        if axes:
            dims = {name: torch.export.Dim(name) for named in axes.values() for name in named.values()}
            shapes = [{axis: dims[name] for axis, name in axes.get(at, {}).items()} for at in range(len(arguments))]
            # Arguments of any number are one argument, to the exporter.
            kwargs["dynamic_shapes"] = (tuple(shapes),) if entry.library == "transformers" else tuple(shapes)
    path = folder / f"{entry.name}.{exporter}.tmp.onnx"
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(model, tuple(arguments), str(path), **kwargs)
    proto = onnx.load(path)
    path.unlink()
    given = {name: value.numpy() for name, value in zip(names, arguments)}
    line = {
        "name": entry.name,
        "exporter": exporter,
        "library": entry.library,
        "opset": next(i.version for i in proto.opset_import if i.domain in ("", "ai.onnx")),
        "dynamic": bool(axes),
        "inputs": describe(proto, given),
        "nodes": len(proto.graph.node),
        "fast": entry.fast,
    }
    if entry.note:
        line["note"] = entry.note
    packed = zstandard.ZstdCompressor(level=19).compress(reduce(proto).SerializeToString())
    (folder / f"{entry.name}.{exporter}.onnx.zst").write_bytes(packed)
    line["bytes"] = len(packed)
    return line


def in_child(entry, exporter, folder, seconds):
    """Exports in a process of its own, whose memory and time end with it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(seconds)
        with open(folder / "log.txt", "a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        try:
            told = {"ok": export(entry, exporter, folder)}
        except BaseException as error:
            words = f"{type(error).__name__}: {error}"
            told = {"refused": words[:4000]}
        os.write(write, json.dumps(told).encode()[:60000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return json.loads(told) if told else {"refused": f"ended without a word, or took more than {seconds} s"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--timeout", type=int, default=900)
    options = parser.parse_args()
    entries = [entry for entry in MODELS if not options.names or entry.name in options.names]
    if options.list:
        for entry in entries:
            print(entry.name, entry.library, "fast" if entry.fast else "")
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    made = options.folder / "zoo.jsonl"
    known = [json.loads(line) for line in made.read_text().splitlines()] if made.exists() else []
    refused = options.folder / "refused.jsonl"
    if refused.exists() and not options.names:
        known += [json.loads(line) | {"library": ""} for line in refused.read_text().splitlines()]
    torch.set_num_threads(1)
    # Its operators stand for whole layers, which the older exporter does not know.
    torch.backends.mha.set_fastpath_enabled(False)
    for entry in entries:
        for exporter in entry.exporters:
            if not options.names and any((line["name"], line["exporter"]) == (entry.name, exporter) for line in known):
                continue
            told = in_child(entry, exporter, options.folder, options.timeout)
            print(entry.name, exporter, "ok" if "ok" in told else told["refused"][:300].replace("\n", " "), flush=True)
            if "ok" in told:
                known = [line for line in known if (line["name"], line["exporter"]) != (entry.name, exporter)]
                known.append(told["ok"])
                lines = [line for line in known if "why" not in line]
                lines.sort(key=lambda line: (line["library"], line["name"], line["exporter"]))
                made.write_text("".join(json.dumps(line) + "\n" for line in lines))
            else:
                # The last line that names an error says what is the matter; those before it say where.
                words = [line for line in told["refused"].splitlines() if "rror" in line] or ["?"]
                line = {"name": entry.name, "exporter": exporter, "why": words[-1][:300]}
                with open(refused, "a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
