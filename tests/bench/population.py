#!/usr/bin/env python3
"""Writes a population of small networks: one or more of every class of operators that real models hold and that are easily
left slow. native-vs-ort.py --population measures them.

    population.py FOLDER [NAME,NAME]

Weights are drawn from a seed, so that every machine writes the same files. Needs onnx and numpy (tests/conformance says
which versions, and how they are had).
"""

import pathlib
import sys

import numpy as np
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper, save

OPSET = 18


class Net:
    """A graph under construction."""

    def __init__(self, name):
        self.name, self.nodes, self.inputs, self.outputs, self.weights = name, [], [], [], []
        self.rng = np.random.default_rng(sum(name.encode()))

    def input(self, *shape, of=T.FLOAT, name="x"):
        self.inputs.append(h.make_tensor_value_info(name, of, shape))
        return name

    def constant(self, value):
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape, like=None):
        fan = np.prod(shape[1:]) if len(shape) > 1 else 4
        return self.constant((self.rng.standard_normal(shape) / np.sqrt(like or fan)).astype(np.float32))

    def whole(self, *shape, of=np.int8):
        limits = np.iinfo(of)
        return self.constant(self.rng.integers(limits.min, limits.max + 1, shape).astype(of))

    def __call__(self, op, *inputs, outputs=1, domain="", **attributes):
        names = [f"v{len(self.nodes)}_{at}" for at in range(outputs)]
        self.nodes.append(h.make_node(op, list(inputs), names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def give(self, *values):
        self.outputs += [h.make_empty_tensor_value_info(value) for value in values]
        return self

    def save(self, folder):
        graph = h.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        model = h.make_model(graph, opset_imports=[h.make_opsetid("", OPSET)], ir_version=9)
        save(model, folder / f"{self.name}.onnx")


NETS = {}


def net(function):
    NETS[function.__name__.replace("_", "-")] = function
    return function


def ints(*values):
    return np.array(values, np.int64)


def scalar(value, of=np.float32):
    return np.array(value, of)


@net
def vocoder(n):
    """Transposed convolutions in one dimension and dilated ones between them."""
    x, channels = n.input(1, 80, 48), 128
    x = n("Conv", x, n.weight(channels, 80, 7), n.weight(channels), pads=[3, 3])
    for stride, kernel in [(8, 16), (4, 8), (2, 4)]:
        x = n("LeakyRelu", x, alpha=0.1)
        x = n("ConvTranspose", x, n.weight(channels, channels // 2, kernel), n.weight(channels // 2), strides=[stride],
              pads=[(kernel - stride) // 2] * 2)
        channels //= 2
        for dilation in (1, 3, 9):
            y = n("LeakyRelu", x, alpha=0.1)
            y = n("Conv", y, n.weight(channels, channels, 3), n.weight(channels), pads=[dilation] * 2, dilations=[dilation])
            x = n("Add", x, y)
    return n.give(n("Tanh", n("Conv", x, n.weight(1, channels, 7), pads=[3, 3])))


@net
def upsampler(n):
    """A decoder of transposed convolutions in two dimensions, batch normalisation unfolded."""
    x, channels = n.input(1, 128, 14, 14), 128
    for kernel, padding in [(4, 0), (3, 1), (2, 0)]:
        pad = {4: 1, 3: 1, 2: 0}[kernel]
        x = n("ConvTranspose", x, n.weight(channels, channels // 2, kernel, kernel), strides=[2, 2], pads=[pad] * 4,
              output_padding=[padding] * 2)
        channels //= 2
        one = n.constant(np.ones(channels, np.float32))
        x = n("BatchNormalization", x, one, n.weight(channels), n.weight(channels), one)
        x = n("Relu", x)
    return n.give(n("Sigmoid", n("Conv", x, n.weight(3, channels, 3, 3), pads=[1] * 4)))


@net
def volume(n):
    """Convolutions and pools in three dimensions."""
    x = n.input(1, 3, 8, 56, 56)
    x = n("Relu", n("Conv", x, n.weight(32, 3, 3, 7, 7), n.weight(32), pads=[1, 3, 3, 1, 3, 3], strides=[1, 2, 2]))
    x = n("MaxPool", x, kernel_shape=[1, 3, 3], strides=[1, 2, 2], pads=[0, 1, 1, 0, 1, 1])
    x = n("Relu", n("Conv", x, n.weight(64, 32, 3, 3, 3), n.weight(64), pads=[1] * 6))
    x = n("AveragePool", x, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    x = n("Relu", n("Conv", x, n.weight(64, 64, 3, 3, 3), n.weight(64), pads=[1] * 6))
    return n.give(n("GlobalAveragePool", x))


@net
def large_kernels(n):
    """Depthwise 7x7 and dilated 3x3 convolutions."""
    x = n("Conv", n.input(1, 3, 64, 64), n.weight(64, 3, 4, 4), strides=[2, 2])
    for dilation in (1, 2, 4):
        y = n("Conv", x, n.weight(64, 1, 7, 7), n.weight(64), pads=[3] * 4, group=64)
        y = n("Conv", y, n.weight(64, 64, 3, 3), n.weight(64), pads=[dilation] * 4, dilations=[dilation] * 2)
        x = n("Add", x, n("Relu", y))
    return n.give(x)


def recurrent(kind, gates, **attributes):
    def build(n):
        x = n.input(64, 1, 128)
        for width in (128, 512):
            both = [n.weight(2, gates * 256, size) for size in (width, 256)]
            x = n(kind, x, *both, n.weight(2, 2 * gates * 256), outputs=2 + (kind == "LSTM"), hidden_size=256,
                  direction="bidirectional", **attributes)[0]
            x = n("Reshape", n("Transpose", x, perm=[0, 2, 1, 3]), n.constant(ints(64, 1, 512)))
        return n.give(x)
    return build


NETS["lstm"] = recurrent("LSTM", 4)
NETS["gru"] = recurrent("GRU", 3, linear_before_reset=1)
NETS["gru-reset-first"] = recurrent("GRU", 3)
NETS["rnn"] = recurrent("RNN", 1)


@net
def lstm_batch(n):
    x = n.input(32, 16, 64)
    return n.give(n("LSTM", x, n.weight(1, 512, 64), n.weight(1, 512, 128), n.weight(1, 1024), outputs=3, hidden_size=128)[0])


@net
def spectrogram(n):
    """A short-time Fourier transform, its power, mel filters and logarithm."""
    window = n.constant(np.hanning(400).astype(np.float32))
    x = n("STFT", n.input(1, 16000), n.constant(scalar(160, np.int64)), window, n.constant(scalar(400, np.int64)), onesided=1)
    power = n("ReduceSumSquare", x, n.constant(ints(3)), keepdims=0)
    return n.give(n("Log", n("Add", n("MatMul", power, n.constant(np.abs(n.rng.standard_normal((201, 80))).astype(np.float32))), n.constant(scalar(1e-6)))))


@net
def fourier(n):
    x = n("DFT", n.input(64, 512, 1), axis=1, onesided=1)
    return n.give(x)


@net
def einsum(n):
    """Attention written as Einsum."""
    x = n.input(2, 64, 256)
    q, k, v = (n("Einsum", x, n.weight(256, 4, 64, like=256), equation="bsd,dhe->bhse") for _ in range(3))
    scores = n("Softmax", n("Mul", n("Einsum", q, k, equation="bhqe,bhke->bhqk"), n.constant(scalar(0.125))))
    y = n("Einsum", scores, v, equation="bhqk,bhke->bqhe")
    return n.give(n("Einsum", y, n.weight(4, 64, 256, like=256), equation="bqhe,hed->bqd"))


@net
def dynamic_quantized(n):
    """Linear layers as quantize_dynamic writes them."""
    x = n.input(64, 384)
    for width, out in [(384, 1536), (1536, 384)]:
        q, scale, zero = n("DynamicQuantizeLinear", x, outputs=3)
        y = n("MatMulInteger", q, n.whole(width, out), zero, n.constant(scalar(0, np.int8)))
        y = n("Mul", n("Cast", y, to=T.FLOAT), n("Mul", scale, n.constant(scalar(0.001))))
        x = n("Relu", n("Add", y, n.weight(out)))
    return n.give(x)


@net
def qlinear(n):
    """Convolutions as quantize_static writes them in the QOperator format."""
    scale, zero, small, none = n.constant(scalar(0.05)), n.constant(scalar(128, np.uint8)), n.constant(scalar(0.002)), n.constant(scalar(0, np.int8))
    x = n("QuantizeLinear", n.input(1, 16, 56, 56), scale, zero)
    for channels, out, stride in [(16, 32, 1), (32, 64, 2), (64, 64, 1)]:
        bias = n.constant(n.rng.integers(-500, 500, out).astype(np.int32))
        x = n("QLinearConv", x, scale, zero, n.whole(out, channels, 3, 3), small, none, scale, zero, bias, pads=[1] * 4, strides=[stride] * 2)
    return n.give(n("DequantizeLinear", x, scale, zero))


@net
def fake_quantized(n):
    scale, zero = n.constant(scalar(0.05)), n.constant(scalar(0, np.int8))
    x = n.input(1, 32, 56, 56)
    for _ in range(3):
        x = n("DequantizeLinear", n("QuantizeLinear", x, scale, zero), scale, zero)
        w = n("DequantizeLinear", n.whole(32, 32, 3, 3), n.constant(scalar(0.001)), zero)
        x = n("Relu", n("Conv", x, w, pads=[1] * 4))
    return n.give(x)


@net
def late_weights(n):
    """Filters that an input decides, as in dynamic convolutions."""
    x, by = n.input(1, 32, 56, 56), n.input(1, 64, name="by")
    w = n("Reshape", n("MatMul", by, n.weight(64, 32 * 32 * 9, like=64 * 288)), n.constant(ints(32, 32, 3, 3)))
    return n.give(n("Conv", x, w, pads=[1] * 4))


@net
def half_weights(n):
    x = n("Cast", n.input(1, 16, 56, 56), to=T.FLOAT16)
    for channels, out in [(16, 32), (32, 32)]:
        w = n.constant((n.rng.standard_normal((out, channels, 3, 3)) / 17).astype(np.float16))
        x = n("Relu", n("Conv", x, w, pads=[1] * 4))
    return n.give(n("Cast", x, to=T.FLOAT))


def pads(mode):
    def build(n):
        return n.give(n("Pad", n.input(1, 32, 112, 112), n.constant(ints(0, 0, 3, 3, 0, 0, 3, 3)), mode=mode))
    return build


for mode in ("constant", "reflect", "edge"):
    NETS[f"pad-{mode}"] = pads(mode)


def resizes(mode, coordinates, size):
    def build(n):
        return n.give(n("Resize", n.input(1, 32, 56, 56), "", "", n.constant(ints(1, 32, size, size)), mode=mode,
                        coordinate_transformation_mode=coordinates))
    return build


NETS["resize-linear"] = resizes("linear", "half_pixel", 112)
NETS["resize-aligned"] = resizes("linear", "align_corners", 100)
NETS["resize-nearest"] = resizes("nearest", "asymmetric", 100)


@net
def choose(n):
    """Where, comparisons, casts."""
    x = n.input(8, 64, 1024)
    over = n("Greater", x, n.constant(scalar(0.2)))
    y = n("Where", over, n("Mul", x, n.constant(scalar(2))), n.weight(1024))
    y = n("Add", y, n("Cast", over, to=T.FLOAT))
    return n.give(n("Cast", n("Cast", n("Mul", y, n.constant(scalar(100))), to=T.INT32), to=T.FLOAT))


def reduces(kind, axes, *shape):
    def build(n):
        return n.give(n(kind, n.input(*shape), n.constant(ints(*axes)), keepdims=0))
    return build


NETS["reduce-mean-middle"] = reduces("ReduceMean", [1], 8, 196, 768)
NETS["reduce-max-outer"] = reduces("ReduceMax", [0, 2], 8, 64, 56 * 56)
NETS["reduce-l2-last"] = reduces("ReduceL2", [2], 8, 512, 257)


@net
def softmax_channels(n):
    return n.give(n("Softmax", n.input(1, 21, 128, 128), axis=1))


@net
def argmax(n):
    return n.give(n("ArgMax", n.input(1, 21, 128, 128), axis=1))


@net
def batch_norm(n):
    one = n.constant(np.ones(64, np.float32))
    x = n("BatchNormalization", n.input(4, 64, 56, 56), one, n.weight(64), n.weight(64), one)
    return n.give(n("Relu", x))


@net
def norms(n):
    one, zero = (n.constant(value(64).astype(np.float32)) for value in (np.ones, np.zeros))
    x = n("InstanceNormalization", n.input(1, 64, 56, 56), one, zero)
    return n.give(n("LRN", x, size=5))


@net
def dense_block(n):
    """Concatenations that grow."""
    x, channels = n.input(1, 64, 28, 28), 64
    for _ in range(6):
        y = n("Relu", n("Conv", x, n.weight(128, channels, 1, 1), n.weight(128)))
        y = n("Conv", y, n.weight(32, 128, 3, 3), n.weight(32), pads=[1] * 4)
        x, channels = n("Concat", x, y, axis=1), channels + 32
    return n.give(n("Relu", x))


@net
def lookups(n):
    x = n.input(4096, 64)
    rows = n.constant(n.rng.integers(0, 4096, (1024, 1)))
    taken = n("GatherND", x, rows)
    put = n("ScatterND", x, n.constant(n.rng.permutation(4096)[:1024].reshape(1024, 1)), taken)
    return n.give(n("GatherElements", put, n.constant(n.rng.integers(0, 64, (4096, 32))), axis=1))


@net
def top(n):
    values, places = n("TopK", n.input(16, 8400), n.constant(ints(100)), outputs=2)
    return n.give(values, places)


@net
def elementwise(n):
    """A chain of functions without a name."""
    x = n.input(64, 4096)
    y = n("Log", n("Add", n("Exp", n("Neg", n("Abs", x))), n.constant(scalar(1))))
    return n.give(n("Mul", n("Floor", n("Mul", y, n.constant(scalar(8)))), n("Sqrt", n("Pow", x, n.constant(scalar(2))))))


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    chosen = sys.argv[2].split(",") if len(sys.argv) > 2 else NETS
    for name in chosen:
        graph = Net(name)
        NETS[name](graph).save(folder)
        print(name)


if __name__ == "__main__":
    main()
