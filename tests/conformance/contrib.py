#!/usr/bin/env python3
"""Writes cases of `com.microsoft` operators with what ONNX Runtime answers.

    contrib.py [FOLDER]     backends/cpu/tests/onnx_cases/contrib by default

The layout is that of generate.py. Needs onnx, numpy and onnxruntime; the committed cases are of onnxruntime 1.31.1.
"""

import json
import os
import shutil
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "../../backends/cpu/tests/onnx_cases/contrib")
RNG = np.random.default_rng(11)
CASES = []


def f(*shape):
    return (RNG.standard_normal(shape) * 0.7).astype(np.float32)


def u8(*shape):
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape):
    return RNG.integers(-128, 128, shape).astype(np.int8)


def one(value, dtype=np.float32):
    return np.array(value, dtype)


def case(name, op, inputs, outputs=1, variable=1, domain="com.microsoft", version=17, **attributes):
    """`version` is that of the standard operators. The first `variable` inputs that are given, or those of a list, are inputs of the model, the others constants; None leaves one out."""
    names = ["" if value is None else f"i{index}" for index, value in enumerate(inputs)]
    given = [(name, value) for name, value in zip(names, inputs) if name]
    free = range(variable) if isinstance(variable, int) else variable
    free, given = [given[index] for index in free], [pair for index, pair in enumerate(given) if index not in free]
    results = [f"o{index}" for index in range(outputs)]
    node = h.make_node(op, names, results, name=op, domain=domain, **attributes)
    infos = [h.make_tensor_value_info(name, h.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in free]
    weights = [numpy_helper.from_array(value, name) for name, value in given]
    graph = h.make_graph([node], name, infos, [h.make_empty_tensor_value_info(result) for result in results], weights)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", version), h.make_opsetid("com.microsoft", 1)], producer_name="")
    model.ir_version = 10
    # On several threads DynamicQuantizeLSTM quantizes the rows of each by themselves.
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    answers = session.run(None, dict(free))
    where = os.path.join(FOLDER, name)
    data = os.path.join(where, "test_data_set_0")
    os.makedirs(data)
    with open(os.path.join(where, "model.onnx"), "wb") as out:
        out.write(model.SerializeToString())
    for stem, values in (("input", [value for _, value in free]), ("output", answers)):
        for index, value in enumerate(values):
            with open(os.path.join(data, f"{stem}_{index}.pb"), "wb") as out:
                out.write(numpy_helper.from_array(value).SerializeToString())
    CASES.append({"name": name, "rtol": 1e-3, "atol": 2e-6, "opset": version, "default_domain": False, "expanded": False,
                  "exotic": False, "operators": [op], "data_sets": 1})


def begin():
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(FOLDER)


def end():
    with open(os.path.join(FOLDER, "cases.json"), "w", encoding="utf-8") as out:
        json.dump({"onnxruntime": onnxruntime.__version__, "cases": CASES}, out, indent=1)


def attention():
    """With states of earlier runs, with shared heads, turned by position."""
    case("attention_past", "Attention", [f(2, 3, 4), f(4, 12), f(12), None, f(2, 2, 2, 5, 2)], outputs=2, num_heads=2, unidirectional=1)
    mask = np.array([[0, 0, 1, 1, 1, 1, 1, 1], [1] * 8], np.int32)
    case("attention_past_mask", "Attention", [f(2, 3, 4), f(4, 12), f(12), mask, f(2, 2, 2, 5, 2)], outputs=2, num_heads=2, unidirectional=1)
    mask = RNG.integers(0, 2, (2, 3, 3)).astype(np.int32) | np.eye(3, dtype=np.int32)
    case("attention_mask_of_queries", "Attention", [f(2, 3, 4), f(4, 12), f(12), mask], num_heads=2)
    quantized = [u8(2, 3, 4), i8(4, 12), f(12), one(0.02), one(0.01), None, one(120, np.uint8), one(0, np.int8)]
    case("qattention", "QAttention", quantized, num_heads=2)
    columns = quantized[:4] + [f(12) ** 2 + one(0.01), np.array([[1, 1, 0], [1, 1, 1]], np.int32), quantized[6], np.zeros(12, np.int8)]
    case("qattention_columns", "QAttention", columns, num_heads=2)
    case("qattention_past", "QAttention", quantized + [f(2, 2, 2, 4, 2)], outputs=2, num_heads=2, unidirectional=1)
    case("multi_head_past", "MultiHeadAttention", [f(2, 3, 8), f(2, 3, 8), f(2, 3, 8), f(24), None, None, f(2, 2, 4, 4), f(2, 2, 4, 4)], outputs=3, variable=6, num_heads=2, unidirectional=1)
    case("multi_head_of_states", "MultiHeadAttention", [f(2, 3, 8), f(2, 2, 5, 4), f(2, 2, 5, 4)], variable=3, num_heads=2)
    angles = np.outer(np.arange(16), 1 / 100.0 ** (np.arange(4) / 4)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    where = np.array([[3, 4, 5], [0, 9, 2]], np.int64)
    case("rotary", "RotaryEmbedding", [f(2, 3, 16), where, cos, sin], variable=2)
    case("rotary_neighbours", "RotaryEmbedding", [f(2, 2, 3, 8), where, cos, sin], variable=2, interleaved=1)
    case("rotary_from", "RotaryEmbedding", [f(2, 3, 16), np.array([5], np.int64), cos, sin], variable=2)
    case("rotary_part", "RotaryEmbedding", [f(2, 3, 16), where, cos[:, :2].copy(), sin[:, :2].copy()], variable=2, num_heads=2, rotary_embedding_dim=4)
    heads = {"num_heads": 4, "kv_num_heads": 2}
    wide = np.outer(np.arange(16), 1 / 100.0 ** (np.arange(8) / 8)).astype(np.float32)

    def grouped(name, queries, ends, total, known=0, packed=False, tables=True, extra=(), **attributes):
        batch = len(ends)
        width = 16 * (4 + 2 * 2 if packed else 4)
        states = [f(batch, 2, known, 16), f(batch, 2, known, 16)] if known else [None, None]
        new = [None, None] if packed else [f(batch, queries, 32), f(batch, queries, 32)]
        inputs = [f(batch, queries, width), *new, *states, np.array(ends, np.int32), one(total, np.int32)]
        inputs += ([np.cos(wide), np.sin(wide)] if tables else [None, None]) + list(extra)
        variable = sum(value is not None for value in inputs[:6])
        case(name, "GroupQueryAttention", inputs, outputs=3, variable=variable, do_rotary=int(tables), **heads, **attributes)

    grouped("grouped", 5, [4, 4], 5)
    grouped("grouped_packed", 5, [4], 5, packed=True, tables=False)
    grouped("grouped_plain", 5, [4, 4], 5, tables=False, scale=0.5, rotary_interleaved=0)
    grouped("grouped_next", 1, [6], 7, known=6)
    grouped("grouped_next_of_several", 1, [6, 3], 7, known=7)
    grouped("grouped_rest", 3, [8], 9, known=6)
    grouped("grouped_rest_in_buffer", 3, [8], 9, known=9, rotary_interleaved=1)
    grouped("grouped_window", 6, [5], 6, tables=False, local_window_size=2)
    grouped("grouped_window_next", 1, [8], 9, known=8, local_window_size=3)
    grouped("grouped_softcap", 4, [3], 4, tables=False, softcap=2.0)
    grouped("grouped_bias", 3, [2], 3, tables=False, extra=[None, f(1, 4, 3, 3)])


def recurrent():
    """Networks with weights of bytes, as the dynamic quantizer leaves them."""

    def network(name, steps, batch, directions=1, states=False, columns=False, dtype=np.int8, **attributes):
        wide = (directions, 24) if columns else (directions,)
        scale = lambda: (RNG.random(wide) * 0.01 + 0.005).astype(np.float32)
        zero = np.zeros(wide, dtype) if columns or dtype == np.int8 else RNG.integers(120, 136, wide).astype(dtype)
        whole = (i8 if dtype == np.int8 else u8)
        inputs = [f(steps, batch, 5), whole(directions, 5, 24), whole(directions, 6, 24), f(directions, 48), None]
        inputs += [f(directions, batch, 6), f(directions, batch, 6)] if states else [None, None]
        inputs += [None, scale(), zero, scale(), zero]
        case(name, "DynamicQuantizeLSTM", inputs, outputs=3, hidden_size=6, **attributes)

    network("dynamic_lstm", 4, 1)
    network("dynamic_lstm_unsigned", 3, 1, dtype=np.uint8)
    network("dynamic_lstm_columns", 3, 1, columns=True, direction="reverse")
    network("dynamic_lstm_both_ways", 3, 1, directions=2, states=True, direction="bidirectional")
    network("dynamic_lstm_batch", 3, 2, states=True)


def main():
    begin()
    case("fused_conv_relu", "FusedConv", [f(1, 3, 5, 5), f(4, 3, 3, 3), f(4)], activation="Relu", pads=[1, 1, 1, 1])
    case("fused_conv_sum", "FusedConv", [f(1, 3, 4, 4), f(4, 3, 1, 1), f(4), f(1, 4, 4, 4)], activation="Relu")
    case("fused_conv_clip", "FusedConv", [f(1, 2, 4, 4), f(2, 2, 3, 3)], activation="Clip", activation_params=[-0.2, 0.3])
    case("fused_gemm", "FusedGemm", [f(2, 3), f(3, 4), f(4)], activation="LeakyRelu", activation_alpha=0.2)
    case("fused_matmul", "FusedMatMul", [f(2, 4, 3), f(2, 4, 5)], alpha=0.25, transA=1, variable=2)
    case("gelu", "Gelu", [f(2, 5)])
    case("bias_gelu", "BiasGelu", [f(2, 5), f(5)])
    case("fast_gelu", "FastGelu", [f(2, 5), f(5)])
    case("quick_gelu", "QuickGelu", [f(2, 5)], alpha=1.5)
    case("skip_norm", "SkipLayerNormalization", [f(2, 3, 4), f(2, 3, 4), f(4), f(4), f(4)], variable=2, epsilon=1e-5)
    case("skip_rms", "SkipSimplifiedLayerNormalization", [f(2, 3, 4), f(2, 3, 4), f(4)], variable=2, epsilon=1e-5)
    case("rms", "SimplifiedLayerNormalization", [f(2, 3, 4), f(4)], domain="", epsilon=1e-5)
    ids = RNG.integers(0, 7, (2, 3)).astype(np.int32)
    kinds = RNG.integers(0, 2, (2, 3)).astype(np.int32)
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    case("embed", "EmbedLayerNormalization", [ids, kinds, f(7, 4), f(5, 4), f(2, 4), f(4), f(4), mask], outputs=2, variable=2)
    case("attention", "Attention", [f(2, 3, 4), f(4, 12), f(12)], num_heads=2)
    case("attention_mask", "Attention", [f(2, 3, 4), f(4, 12), f(12), mask], num_heads=2)
    case("attention_lengths", "Attention", [f(2, 3, 4), f(4, 12), f(12), np.array([2, 3], np.int32)], num_heads=2)
    case("attention_causal", "Attention", [f(2, 3, 4), f(4, 12), f(12)], num_heads=2, unidirectional=1)
    case("multi_head", "MultiHeadAttention", [f(2, 3, 4), f(2, 5, 4), f(2, 5, 4), f(12)], variable=3, num_heads=2)
    scales = [one(0.02), one(120, np.uint8), one(0.03), one(131, np.uint8), one(0.05), one(125, np.uint8)]
    case("qlinear_add", "QLinearAdd", [u8(2, 5), scales[0], scales[1], u8(2, 5), scales[2], scales[3], scales[4], scales[5]])
    case("qlinear_mul", "QLinearMul", [u8(2, 5), scales[0], scales[1], u8(5), scales[2], scales[3], scales[4], scales[5]])
    case("qlinear_sigmoid", "QLinearSigmoid", [i8(2, 5), one(0.04), one(3, np.int8), one(1 / 256), one(-128, np.int8)])
    case("qlinear_leaky", "QLinearLeakyRelu", [i8(2, 5), one(0.04), one(3, np.int8), one(0.04), one(1, np.int8)], alpha=0.1)
    case("qlinear_global", "QLinearGlobalAveragePool", [u8(1, 3, 4, 4), scales[0], scales[1], scales[2], scales[3]], channels_last=0)
    case("qlinear_average", "QLinearAveragePool", [u8(1, 3, 4, 4), scales[0], scales[1], scales[2], scales[3]], kernel_shape=[2, 2], strides=[2, 2])
    case("qlinear_concat", "QLinearConcat", [scales[4], scales[5], u8(2, 3), scales[0], scales[1], u8(2, 2), scales[2], scales[3]], axis=1)
    case("qlinear_softmax", "QLinearSoftmax", [u8(2, 5), scales[0], scales[1], one(1 / 256), one(0, np.uint8)], axis=-1, opset=13)
    case("qgemm", "QGemm", [u8(2, 4), scales[0], scales[1], i8(4, 3), f(3) ** 2 + one(0.01), np.zeros(3, np.int8), RNG.integers(-50, 50, 3).astype(np.int32), one(0.9), scales[5]])
    case("qgemm_float", "QGemm", [u8(2, 4), scales[0], scales[1], i8(3, 4), one(0.02), one(0, np.int8)], transB=1)
    case("matmul_to_float", "MatMulIntegerToFloat", [u8(2, 4), i8(4, 3), scales[0], f(3) ** 2, scales[1], np.zeros(3, np.int8), f(3)])
    case("nhwc_max_pool", "NhwcMaxPool", [u8(1, 4, 4, 3)], kernel_shape=[2, 2], strides=[2, 2])
    attention()
    recurrent()
    condition = np.array([[True, False, True, True, False]])
    case("qlinear_where", "QLinearWhere", [condition, u8(2, 5), *scales[:2], u8(2, 5), *scales[2:4], *scales[4:]], variable=2)
    case("quantize_16", "QuantizeLinear", [f(2, 5), one(2e-5), one(30000, np.uint16)])
    case("quantize_16_signed", "QuantizeLinear", [f(2, 5), f(5) ** 2 * 1e-4 + one(1e-5), np.zeros(5, np.int16)], axis=1)
    whole = RNG.integers(0, 65536, (2, 5)).astype(np.uint16)
    case("dequantize_16", "DequantizeLinear", [whole, one(2e-5), one(30000, np.uint16)])
    case("dequantize_8", "DequantizeLinear", [u8(2, 5), f(2) ** 2 + one(0.01), u8(2)], axis=0)
    rows = np.array([[3, 0], [6, 6]], np.int64)
    scale = f(7, 2) ** 2 + one(0.01)
    case("gather_blocks", "GatherBlockQuantized", [u8(7, 16), rows, scale], variable=[1], bits=4, block_size=16, gather_axis=0, quantize_axis=1)
    case("gather_blocks_zero", "GatherBlockQuantized", [u8(7, 16), rows, scale, u8(7, 1)], variable=[1], bits=4, block_size=16, gather_axis=0, quantize_axis=1)
    case("gather_blocks_8", "GatherBlockQuantized", [u8(7, 32), rows, scale, u8(7, 2)], variable=[1], bits=8, block_size=16, gather_axis=0, quantize_axis=1)
    end()


if __name__ == "__main__":
    main()
