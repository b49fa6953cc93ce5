"""Trains the small CNN of this folder on scikit-learn's 8x8 digits and writes it as ONNX.

    python3 -m pip install numpy scikit-learn onnx
    python3 train.py

Writes digits.onnx (the model), digits-test.npz (the labelled test set) and training.json (what was measured here).
Forward and backward pass are written out in numpy, so that the run is seeded and needs no training framework.
"""

import json
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

HERE = pathlib.Path(__file__).parent
SEED = 7
EPOCHS = 60
BATCH = 64
CHANNELS = (16, 32)
HIDDEN = 64
OPSET = 17


def patches(x):
    """[n, c, h, w] -> [n, h, w, c * 9]: the 3x3 neighbourhood of every pixel, zeros outside."""
    n, c, h, w = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    columns = [padded[:, :, i : i + h, j : j + w] for i in range(3) for j in range(3)]
    return np.stack(columns, axis=2).reshape(n, c * 9, h, w).transpose(0, 2, 3, 1)


def unpatches(g, shape):
    """The adjoint of `patches`."""
    n, c, h, w = shape
    g = g.transpose(0, 3, 1, 2).reshape(n, c, 9, h, w)
    padded = np.zeros((n, c, h + 2, w + 2), g.dtype)
    for k in range(9):
        i, j = divmod(k, 3)
        padded[:, :, i : i + h, j : j + w] += g[:, :, k]
    return padded[:, :, 1:-1, 1:-1]


class Net:
    """conv 3x3, relu, conv 3x3, relu, maxpool 2x2, linear, relu, linear."""

    def __init__(self, rng):
        c1, c2 = CHANNELS
        he = lambda fan_in, *shape: (rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)
        self.p = {
            "conv1.weight": he(9, c1, 9),
            "conv1.bias": np.zeros(c1, np.float32),
            "conv2.weight": he(c1 * 9, c2, c1 * 9),
            "conv2.bias": np.zeros(c2, np.float32),
            "fc1.weight": he(c2 * 16, HIDDEN, c2 * 16),
            "fc1.bias": np.zeros(HIDDEN, np.float32),
            "fc2.weight": he(HIDDEN, 10, HIDDEN),
            "fc2.bias": np.zeros(10, np.float32),
        }

    def forward(self, x):
        p, t = self.p, {"x": x}
        t["col1"] = patches(x)
        t["a1"] = np.maximum(t["col1"] @ p["conv1.weight"].T + p["conv1.bias"], 0).transpose(0, 3, 1, 2)
        t["col2"] = patches(t["a1"])
        t["a2"] = np.maximum(t["col2"] @ p["conv2.weight"].T + p["conv2.bias"], 0).transpose(0, 3, 1, 2)
        n, c, h, w = t["a2"].shape
        cells = t["a2"].reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, c, h // 2, w // 2, 4)
        t["argmax"] = cells.argmax(-1)
        t["flat"] = cells.max(-1).reshape(n, -1)
        t["a3"] = np.maximum(t["flat"] @ p["fc1.weight"].T + p["fc1.bias"], 0)
        t["logits"] = t["a3"] @ p["fc2.weight"].T + p["fc2.bias"]
        return t

    def gradients(self, t, labels):
        p, g = self.p, {}
        n = len(labels)
        e = np.exp(t["logits"] - t["logits"].max(1, keepdims=True))
        d = e / e.sum(1, keepdims=True)
        d[np.arange(n), labels] -= 1
        d /= n
        g["fc2.weight"], g["fc2.bias"] = d.T @ t["a3"], d.sum(0)
        d = (d @ p["fc2.weight"]) * (t["a3"] > 0)
        g["fc1.weight"], g["fc1.bias"] = d.T @ t["flat"], d.sum(0)
        d = d @ p["fc1.weight"]
        _, c, h, w = t["a2"].shape
        cells = np.zeros((n, c, h // 2, w // 2, 4), np.float32)
        np.put_along_axis(cells, t["argmax"][..., None], d.reshape(n, c, h // 2, w // 2)[..., None], -1)
        d = cells.reshape(n, c, h // 2, w // 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, c, h, w)
        d = (d * (t["a2"] > 0)).transpose(0, 2, 3, 1)
        g["conv2.weight"] = np.einsum("nhwo,nhwi->oi", d, t["col2"], optimize=True)
        g["conv2.bias"] = d.sum((0, 1, 2))
        d = unpatches(d @ p["conv2.weight"], t["a1"].shape)
        d = (d * (t["a1"] > 0)).transpose(0, 2, 3, 1)
        g["conv1.weight"] = np.einsum("nhwo,nhwi->oi", d, t["col1"], optimize=True)
        g["conv1.bias"] = d.sum((0, 1, 2))
        return g


def train(x, y, rng):
    net = Net(rng)
    m = {k: np.zeros_like(v) for k, v in net.p.items()}
    v = {k: np.zeros_like(w) for k, w in net.p.items()}
    step = 0
    for epoch in range(EPOCHS):
        rate = 2e-3 * (1 - epoch / EPOCHS)
        order = rng.permutation(len(x))
        for begin in range(0, len(x), BATCH):
            rows = order[begin : begin + BATCH]
            step += 1
            for k, g in net.gradients(net.forward(x[rows]), y[rows]).items():
                g = g + 1e-4 * net.p[k]
                m[k] = 0.9 * m[k] + 0.1 * g
                v[k] = 0.999 * v[k] + 0.001 * g * g
                net.p[k] -= rate * (m[k] / (1 - 0.9**step)) / (np.sqrt(v[k] / (1 - 0.999**step)) + 1e-8)
    return net


def export(net, path):
    c1, c2 = CHANNELS
    shapes = {"conv1.weight": (c1, 1, 3, 3), "conv2.weight": (c2, c1, 3, 3)}
    weights = [numpy_helper.from_array(w.reshape(shapes.get(k, w.shape)).astype(np.float32), k) for k, w in net.p.items()]
    conv = dict(kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])
    nodes = [
        helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["conv1"], name="conv1", **conv),
        helper.make_node("Relu", ["conv1"], ["relu1"], name="relu1"),
        helper.make_node("Conv", ["relu1", "conv2.weight", "conv2.bias"], ["conv2"], name="conv2", **conv),
        helper.make_node("Relu", ["conv2"], ["relu2"], name="relu2"),
        helper.make_node("MaxPool", ["relu2"], ["pool"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pool"], ["flat"], name="flatten", axis=1),
        helper.make_node("Gemm", ["flat", "fc1.weight", "fc1.bias"], ["fc1"], name="fc1", transB=1),
        helper.make_node("Relu", ["fc1"], ["relu3"], name="relu3"),
        helper.make_node("Gemm", ["relu3", "fc2.weight", "fc2.bias"], ["logits"], name="fc2", transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"], name="softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 10])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="planforge-examples")
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def main():
    digits = load_digits()
    x = (digits.images / 16.0).astype(np.float32)[:, None]
    y = digits.target.astype(np.int64)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=SEED, stratify=y)
    net = train(x_train, y_train, np.random.default_rng(SEED))
    correct = int((net.forward(x_test)["logits"].argmax(1) == y_test).sum())
    export(net, HERE / "digits.onnx")
    np.savez(HERE / "digits-test.npz", image=x_test, labels=y_test)
    facts = {
        "train_images": len(y_train),
        "test_images": len(y_test),
        "test_correct": correct,
        "test_top1": correct / len(y_test),
        "parameters": int(sum(w.size for w in net.p.values())),
        "seed": SEED,
        "epochs": EPOCHS,
        "numpy": np.__version__,
    }
    (HERE / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
