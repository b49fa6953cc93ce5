#!/usr/bin/env python3
"""PyTorch as a baseline beside an engine: `planforge build MODEL.onnx --beside torch-compile=MODEL.pt2`.

The module is a program saved by `torch.export.save` or a TorchScript file; it is run in the engine's precision, on the
engine's inputs and device. Which way is told by the name that the baseline was asked for under:

| name | what runs |
|---|---|
| `torch-eager` | the module as it is, cuDNN's benchmark on |
| `torch-graph` | that, captured in a CUDA graph (GPUs only) |
| `torch-compile` | torch.compile; on GPUs with mode reduce-overhead, which uses CUDA graphs |
| `torch-max-autotune` | torch.compile with mode max-autotune |

A module that does not run converted to half precision, because its graph names types, runs under autocast, and says so.
Half-precision convolutions run with channels last. On GPUs every execution is timed by events around it, calls queued
one after the other, as the engine's headline is; on CPUs from its call to its end. Inputs and outputs stay on the device.
How a program like this one is spoken to: docs/baselines.md.
"""

import contextlib
import json
import os
import pathlib
import sys
import time

TYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
CAPTURE_WARM_UPS = 3


class Refusal(Exception):
    """What cannot be run, in words."""


def say(answer):
    REPLIES.write(json.dumps(answer) + "\n")
    REPLIES.flush()


def load(path, device):
    """The module, and the names of its inputs where it tells them."""
    import torch

    if path is None:
        raise Refusal("it takes an exported module: --beside NAME=FILE.pt2 (torch.export.save, or torch.jit.save)")
    try:
        program = torch.export.load(path)
    except Exception as no_program:
        try:
            return torch.jit.load(path, map_location="cpu"), None
        except Exception as no_script:
            first = lambda error: (str(error).splitlines() or [type(error).__name__])[0]
            raise Refusal(f"the module is neither an exported program ({first(no_program)}) nor TorchScript ({first(no_script)})")
    names = list(program.graph_signature.user_inputs)
    with contextlib.suppress(ImportError):
        from torch.export.passes import move_to_device_pass

        # A program names the device of the constants that it makes, such as masks.
        program = move_to_device_pass(program, device)
    module = program.module()
    forget_assertions(module)
    return module, names


def forget_assertions(module):
    """Takes out what holds an exported program to the types and devices of its export: here it runs in others."""
    import torch

    asserts = getattr(torch.ops.aten, "_assert_tensor_metadata", None)
    for part in module.modules():
        if not asserts or not isinstance(part, torch.fx.GraphModule):
            continue
        for node in list(part.graph.nodes):
            if node.op == "call_function" and node.target is asserts.default:
                part.graph.erase_node(node)
        part.recompile()


def arguments(order, names):
    """The inputs in the order that the module takes them: by name, else as the ONNX file has them."""
    import numpy
    import torch

    with numpy.load(order["inputs"]) as arrays:
        given = {name: torch.from_numpy(arrays[name].copy()) for name in arrays.files}
    wanted = names if names and set(names) == set(given) else order["input_names"]
    if names and len(names) != len(given):
        raise Refusal(f"the module takes {len(names)} inputs ({', '.join(names)}), the ONNX file has {len(given)}")
    return [given[name] for name in wanted]


def run_by(name, module, inputs, device):
    """What runs the module once and returns its outputs."""
    import torch

    if name == "torch-eager":
        return lambda: module(*inputs)
    if name == "torch-graph":
        if device != "cuda":
            raise Refusal("torch-graph is for GPUs")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(CAPTURE_WARM_UPS):
                module(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = module(*inputs)

        def replay():
            graph.replay()
            return outputs

        return replay
    modes = {"torch-compile": "reduce-overhead" if device == "cuda" else "default", "torch-max-autotune": "max-autotune"}
    if name not in modes:
        raise Refusal(f"it knows torch-eager, torch-graph, torch-compile and torch-max-autotune, not {name}")
    compiled = torch.compile(module, mode=modes[name], dynamic=False)

    def call():
        if device == "cuda":
            torch.compiler.cudagraph_mark_step_begin()
        return compiled(*inputs)

    for _ in range(CAPTURE_WARM_UPS):
        call()
    return call


def outputs_file(order, outputs, output_names):
    """Its outputs as an archive by the ONNX file's names; nothing where they are of other kinds."""
    import numpy
    import torch

    tensors = list(outputs.values()) if isinstance(outputs, dict) else outputs
    tensors = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
    if len(tensors) != len(output_names) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return None
    arrays = {}
    for name, tensor in zip(output_names, tensors):
        tensor = tensor.detach()
        arrays[name] = (tensor.float() if tensor.is_floating_point() else tensor).contiguous().cpu().numpy()
    path = pathlib.Path(order["scratch"]) / "outputs.npz"
    numpy.savez(path, **arrays)
    return str(path)


def halved(module, kind, inputs, device):
    """A copy of the module in half precision; nothing where it does not run so."""
    import copy

    import torch

    half = copy.deepcopy(module).to(dtype=kind)
    own = lambda tensor: tensor.to(device=device, dtype=kind) if tensor.is_floating_point() else tensor.to(device)
    try:
        with torch.inference_mode():
            half(*[own(tensor) for tensor in inputs])
        return half
    except RuntimeError as error:
        print(f"not in {kind}: {str(error).splitlines()[0]}", file=sys.stderr)
        return None


def autocast(module, kind, device):
    """The module as it is, with its products and convolutions in half precision."""
    import torch

    class Autocast(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, *inputs):
            with torch.autocast(device, dtype=kind):
                return self.module(*inputs)

    return Autocast()


def timed(run, iterations, device):
    """Milliseconds of each of so many executions."""
    import torch

    if device == "cuda":
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(iterations)]
        for begin, end in events:
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in events]
    latencies = []
    for _ in range(iterations):
        began = time.perf_counter_ns()
        run()
        latencies.append((time.perf_counter_ns() - began) / 1e6)
    return latencies


def main():
    order = json.loads(pathlib.Path(sys.argv[1]).read_text())
    if order["protocol"] != 1:
        raise Refusal(f"it speaks protocol 1, not {order['protocol']}")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(pathlib.Path(order["scratch"]) / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(pathlib.Path(order["scratch"]) / "triton"))
    try:
        import torch
    except ImportError as error:
        raise Refusal(f"torch cannot be imported by {sys.executable}: {error}")
    device, precision = order["device"], order["precision"]
    if precision not in TYPES:
        # The engine chose for itself: what people take on a GPU.
        precision = "fp16" if device == "cuda" else "fp32"
    if order["threads"]:
        torch.set_num_threads(order["threads"])
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.benchmark = True
    kind = getattr(torch, TYPES[precision])
    module, names = load(order["module"], device)
    inputs = arguments(order, names)
    given = module.to(device=device)
    module = given.to(dtype=kind) if kind == torch.float32 else halved(given, kind, inputs, device)
    own = lambda tensor: tensor.to(device=device, dtype=kind) if tensor.is_floating_point() else tensor.to(device)
    settings = {"precision": precision, "mode": order["name"].removeprefix("torch-")}
    if module is None:
        settings["precision"] += " by autocast"
        module = autocast(given, kind, device)
        own = lambda tensor: tensor.to(device=device)
    inputs = [own(tensor) for tensor in inputs]
    if device == "cuda" and kind != torch.float32 and any(tensor.dim() == 4 for tensor in inputs):
        module = module.to(memory_format=torch.channels_last)
        last = torch.channels_last
        inputs = [tensor.contiguous(memory_format=last) if tensor.dim() == 4 else tensor for tensor in inputs]
        settings["layout"] = "channels last"
    if device == "cpu":
        settings["threads"] = str(torch.get_num_threads())
    with torch.inference_mode() if order["name"] in ("torch-eager", "torch-graph") else torch.no_grad():
        run = run_by(order["name"], module, inputs, device)
        outputs = run()
        ready = {"library": f"torch {torch.__version__}", "settings": settings}
        path = outputs_file(order, outputs, order["output_names"])
        say({"ready": ready | ({"outputs": path} if path else {})})
        for line in sys.stdin:
            say({"latencies_ms": timed(run, json.loads(line)["window"]["iterations"], device)})


if __name__ == "__main__":
    # Libraries print what they like: only answers go to what was standard output.
    REPLIES = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError):
        try:
            main()
        except Refusal as refusal:
            say({"error": str(refusal)})
            sys.exit(1)
