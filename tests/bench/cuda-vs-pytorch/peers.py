"""PyTorch's ways to run a model, each as `Peer`: what runs with one static buffer, and what with rotated inputs.

| name | what it is |
|---|---|
| `eager-fp32` | the module as it is, PyTorch's defaults (TF32 in convolutions, not in products; no cuDNN benchmark) |
| `eager-fp32-no-tf32` | the module with TF32 off everywhere, cuDNN benchmark on; also the reference for outputs |
| `eager-fp16` | half precision, images channels-last, cuDNN benchmark on |
| `graph-fp16` | that, captured in a CUDA graph; rotated inputs are copied into the graph's buffers |
| `reduce-overhead` | torch.compile of the half-precision module, mode reduce-overhead (Inductor with CUDA graphs) |
| `max-autotune` | likewise, mode max-autotune |
| `graph-fp32` | the module with TF32 off everywhere, cuDNN benchmark on, captured in a CUDA graph |
| `reduce-overhead-fp32` | that module by torch.compile, mode reduce-overhead |

The compiled modes copy their inputs into their graphs' buffers by themselves, in both columns; what such a copy takes
stands beside the times as `input_copy_ms`.
"""

import contextlib
import copy
import time

import torch

import grid

CAPTURE_WARM_UPS = 3


@contextlib.contextmanager
def flags(tf32_products, tf32_convolutions, benchmark):
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (products.allow_tf32, convolutions.allow_tf32, convolutions.benchmark)
    products.allow_tf32, convolutions.allow_tf32, convolutions.benchmark = tf32_products, tf32_convolutions, benchmark
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32, convolutions.benchmark = before


def settings(name):
    """The flags an engine is prepared and run under."""
    if name == "eager-fp32":
        return flags(False, True, False)
    if name in ("eager-fp32-no-tf32", *grid.PEERS_FP32):
        return flags(False, False, True)
    return flags(True, True, True)


def in_half(tensors):
    """Floats as halves, images with channels last; ids and masks as they are."""
    halved = [tensor.half() if tensor.is_floating_point() else tensor for tensor in tensors]
    return tuple(t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t.clone() for t in halved)


class Peer:
    """Prepared for one cell. `static()` runs on the first set of inputs, `rotated(i)` on the i-th; each only queues
    work on the current stream and returns the output."""

    def __init__(self, name, model, sets):
        self.name = name
        began = time.monotonic()
        # What an engine's own inputs are.
        self.own = tuple if "fp32" in name else in_half
        # Copies are made as users make them, outside of inference mode.
        if "fp32" not in name:
            model = copy.deepcopy(model).half()
            if sets[0][0].dim() == 4:
                model = model.to(memory_format=torch.channels_last)
            sets = [in_half(tensors) for tensors in sets]
        # A graph knows only addresses: what lies there must live.
        self.model, self.sets = model, sets
        with settings(name), torch.inference_mode():
            self._prepare(model, sets)
            torch.cuda.synchronize()
        self.prepared_s = time.monotonic() - began

    def _prepare(self, model, sets):
        if self.name.startswith("eager"):
            self.static = lambda: model(*sets[0])
            self.rotated = lambda number: model(*sets[number % len(sets)])
            self.compute = lambda tensors: model(*self.own(tensors))
        elif self.name.startswith("graph"):
            self._capture(model, sets)
        else:
            self._compile(model, sets)

    def _capture(self, model, sets):
        fixed = tuple(tensor.clone() for tensor in sets[0])
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(CAPTURE_WARM_UPS):
                model(*fixed)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = model(*fixed)

        def run(tensors=None):
            if tensors is not None:
                for to, tensor in zip(fixed, tensors):
                    to.copy_(tensor)
            graph.replay()
            return output

        self.static = run
        self.rotated = lambda number: run(sets[number % len(sets)])
        self.compute = lambda tensors: run(self.own(tensors))

    def _compile(self, model, sets):
        compiled = torch.compile(model, mode=self.name.removesuffix("-fp32"), dynamic=False)

        def call(tensors):
            torch.compiler.cudagraph_mark_step_begin()
            return compiled(*tensors)

        for number in range(CAPTURE_WARM_UPS * len(sets)):
            call(sets[number % len(sets)])
        self.static = lambda: call(sets[0])
        self.rotated = lambda number: call(sets[number % len(sets)])
        self.compute = lambda tensors: call(self.own(tensors))
