"""Trains the three networks of this folder and writes each as ONNX, with what it is tested on.

    python3 -m pip install jax numpy onnx
    python3 tests/trained/train.py [shapes] [boxes] [letters]

- shapes.onnx: a residual network with batch normalisation that names a drawn shape. Tested by how often it is right.
- boxes.onnx: a detector of drawn shapes on a grid of cells. Tested by its F1 at an overlap of 0.5.
- letters.onnx: a causal transformer that tells the next character of this repository's documents. Tested by its bits per
  character.

Everything is drawn from one seed; the documents are those of the day on which it ran. Writes NAME.onnx, NAME-test.npz,
NAME-calibration.npz and training.json, which says what was measured here. Another JAX may train slightly other weights: commit all of them together.
"""

import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).parent
SEED = 11
OPSET = 17
BATCH = 64
# Grey values are of so many levels, in steps that floats have exactly.
LEVELS = 32
# Rows that ranges are observed on, none of them of the test.
CALIBRATION = 100


# Shapes, drawn.

KINDS = ("circle", "square", "triangle", "cross", "ring", "star")


def inside(kind, x, y):
    """Whether points are inside a shape of radius 1 around 0."""
    far = np.hypot(x, y)
    square = (np.abs(x) < 0.8) & (np.abs(y) < 0.8)
    if kind == "circle":
        return far < 0.9
    if kind == "square":
        return square
    if kind == "triangle":
        return (y < 0.6) & (y > -1.0 + 1.9 * np.abs(x))
    if kind == "cross":
        return square & ((np.abs(x) < 0.28) | (np.abs(y) < 0.28))
    if kind == "ring":
        return (far < 0.95) & (far > 0.5)
    turn = np.arctan2(y, x)
    return far < 0.55 + 0.4 * np.cos(5 * turn)


def mask(kind, size, centre, radius, turn):
    """How much of each pixel the shape covers."""
    fine = (np.arange(size * 3) + 0.5) / 3
    x, y = np.meshgrid(fine - centre[0], fine - centre[1])
    c, s = np.cos(turn), np.sin(turn)
    hits = inside(kind, (c * x + s * y) / radius, (c * y - s * x) / radius)
    return hits.reshape(size, 3, size, 3).mean((1, 3)).astype(np.float32)


def background(rng, size):
    tilt = rng.uniform(-0.2, 0.2, 2)
    ramp = np.linspace(-1, 1, size)
    return 0.35 + tilt[0] * ramp[:, None] + tilt[1] * ramp[None, :]


def levelled(rng, image, noise):
    image = np.clip(image + rng.normal(0, noise, image.shape), 0, 1)
    return (np.round(image * LEVELS) / LEVELS).astype(np.float32)


def draw_shapes(rng, count, size=24):
    images, labels = np.zeros((count, 1, size, size), np.float32), rng.integers(0, len(KINDS), count)
    for at, label in enumerate(labels):
        radius = rng.uniform(5, 9)
        centre = rng.uniform(radius * 0.8, size - radius * 0.8, 2)
        drawn = mask(KINDS[label], size, centre, radius, rng.uniform(-0.5, 0.5))
        contrast = rng.choice([-1, 1]) * rng.uniform(0.25, 0.5)
        images[at, 0] = levelled(rng, background(rng, size) + contrast * drawn, 0.08)
    return images, labels


GRID, CELL = 8, 4
BOXED = KINDS[:3]


def draw_boxes(rng, count, size=32):
    """Images, and of each up to three shapes as kind, left, top, right, bottom in pixels; kind -1: none."""
    images, boxes = np.zeros((count, 1, size, size), np.float32), np.full((count, 3, 5), -1, np.float32)
    for at in range(count):
        image, known = background(rng, size), []
        for number in range(rng.integers(1, 4)):
            radius = rng.uniform(4, 7.5)
            centre = rng.uniform(radius, size - radius, 2)
            if any(np.hypot(*(centre - other)) < radius + far + 1 for other, far in known):
                continue
            kind = rng.integers(0, len(BOXED))
            drawn = mask(BOXED[kind], size, centre, radius, rng.uniform(-0.3, 0.3))
            ys, xs = np.nonzero(drawn > 0.3)
            boxes[at, number] = kind, xs.min(), ys.min(), xs.max() + 1, ys.max() + 1
            image = image + rng.choice([-1, 1]) * rng.uniform(0.25, 0.5) * drawn
            known.append((centre, radius))
        images[at, 0] = levelled(rng, image, 0.07)
    return images, boxes


# Training.


def adam(loss, params, batches, rate):
    """Minimises the mean of a loss; `loss` gives it and what is to be kept of the batch."""
    step_of = jax.jit(jax.value_and_grad(loss, has_aux=True))
    first = jax.tree.map(jnp.zeros_like, params)
    second = jax.tree.map(jnp.zeros_like, params)

    @jax.jit
    def update(params, first, second, grads, step, rate):
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
        one, two = 1 - 0.9**step, 1 - 0.999**step
        moved = jax.tree.map(lambda p, m, v: p - rate * (m / one) / (jnp.sqrt(v / two) + 1e-8), params, first, second)
        return moved, first, second

    for step, (batch, share) in enumerate(batches, 1):
        (value, kept), grads = step_of(params, *batch)
        params, first, second = update(params, first, second, grads, step, rate * (1 - share))
        yield step, params, float(value), kept


def epochs(rng, arrays, count):
    """Batches in another order each time, with how much of the training is over."""
    length = len(arrays[0])
    for epoch in range(count):
        order = rng.permutation(length)
        for begin in range(0, length - BATCH + 1, BATCH):
            rows = order[begin : begin + BATCH]
            yield tuple(array[rows] for array in arrays), (epoch + begin / length) / count


def conv(x, w, stride=1):
    pad = w.shape[2] // 2
    return jax.lax.conv_general_dilated(x, w, (stride, stride), [(pad, pad)] * 2)


def he(rng, *shape):
    return (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)


# The residual network: a convolution, then three blocks of two, each with a way around it.

WIDTHS = (8, 16, 32)


def residual_layers():
    """Name, inputs, outputs, kernel and stride of each convolution."""
    layers, before = [("stem", 1, WIDTHS[0], 3, 1)], WIDTHS[0]
    for number, width in enumerate(WIDTHS):
        stride = 1 if number == 0 else 2
        layers += [(f"block{number}.conv1", before, width, 3, stride), (f"block{number}.conv2", width, width, 3, 1)]
        if before != width:
            layers.append((f"block{number}.way", before, width, 1, stride))
        before = width
    return layers


def residual(params, stats, x, trains):
    strides = {name: stride for name, _, _, _, stride in residual_layers()}
    seen = {}

    def normed(name, x):
        x = conv(x, params[name]["w"], strides[name])
        if trains:
            seen[name] = (x.mean((0, 2, 3)), x.var((0, 2, 3)))
        mean, var = seen[name] if trains else stats[name]
        scale = params[name]["scale"] / jnp.sqrt(var + 1e-5)
        return x * scale[:, None, None] + (params[name]["bias"] - mean * scale)[:, None, None]

    x = jax.nn.relu(normed("stem", x))
    for number in range(len(WIDTHS)):
        way = normed(f"block{number}.way", x) if f"block{number}.way" in params else x
        y = jax.nn.relu(normed(f"block{number}.conv1", x))
        x = jax.nn.relu(normed(f"block{number}.conv2", y) + way)
    return x.mean((2, 3)) @ params["fc"]["w"].T + params["fc"]["bias"], seen


def train_shapes(rng):
    images, labels = draw_shapes(rng, 15000)
    params = {"fc": {"w": he(rng, len(KINDS), WIDTHS[-1]), "bias": np.zeros(len(KINDS), np.float32)}}
    stats = {}
    for name, inputs, outputs, kernel, _ in residual_layers():
        params[name] = {
            "w": he(rng, outputs, inputs, kernel, kernel),
            "scale": np.ones(outputs, np.float32),
            "bias": np.zeros(outputs, np.float32),
        }
        stats[name] = (np.zeros(outputs, np.float32), np.ones(outputs, np.float32))

    def loss(params, images, labels):
        logits, seen = residual(params, None, images, True)
        return -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels].mean(), seen

    for _, params, value, seen in adam(loss, params, epochs(rng, (images, labels), 7), 4e-3):
        stats = {name: tuple(0.95 * o + 0.05 * n for o, n in zip(stats[name], seen[name])) for name in stats}
    images, labels = draw_shapes(rng, 300)
    right = int((residual(params, stats, images, False)[0].argmax(1) == labels).sum())
    nodes, weights = [], {}
    for name, _, _, kernel, stride in residual_layers():
        weights[f"{name}.weight"] = params[name]["w"]
        for part in ("scale", "bias"):
            weights[f"{name}.{part}"] = params[name][part]
        weights[f"{name}.mean"], weights[f"{name}.var"] = stats[name]

    def add(name, x):
        kernel, stride = next((k, s) for n, _, _, k, s in residual_layers() if n == name)
        shape = dict(kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4, strides=[stride] * 2)
        nodes.append(helper.make_node("Conv", [x, f"{name}.weight"], [f"{name}.y"], name=name, **shape))
        parts = [f"{name}.{part}" for part in ("y", "scale", "bias", "mean", "var")]
        nodes.append(helper.make_node("BatchNormalization", parts, [f"{name}.n"], name=f"{name}.norm", epsilon=1e-5))
        return f"{name}.n"

    def relu(x):
        nodes.append(helper.make_node("Relu", [x], [f"{x}.relu"], name=f"{x}.relu"))
        return f"{x}.relu"

    x = relu(add("stem", "image"))
    for number in range(len(WIDTHS)):
        way = add(f"block{number}.way", x) if f"block{number}.way" in params else x
        y = add(f"block{number}.conv2", relu(add(f"block{number}.conv1", x)))
        nodes.append(helper.make_node("Add", [y, way], [f"block{number}.sum"], name=f"block{number}.add"))
        x = relu(f"block{number}.sum")
    weights |= {"fc.weight": params["fc"]["w"], "fc.bias": params["fc"]["bias"]}
    nodes += [
        helper.make_node("GlobalAveragePool", [x], ["mean"], name="mean"),
        helper.make_node("Flatten", ["mean"], ["flat"], name="flatten", axis=1),
        helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["logits"], name="fc", transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"], name="softmax", axis=1),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, *images.shape[1:]])
    export("shapes", nodes, weights, image, ("probabilities", [1, len(KINDS)]))
    save("shapes", {"image": images, "labels": labels.astype(np.int64)}, image=draw_shapes(rng, CALIBRATION)[0])
    return {"loss": value, "top1": right / len(labels), "rows": len(labels)}


# The detector: of each cell of a grid whether a shape's centre is in it, which, and where its box stands.

DETECTOR = (("conv1", 1, 12, 1), ("conv2", 12, 24, 2), ("conv3", 24, 32, 2), ("conv4", 32, 32, 1))
CHANNELS = 1 + len(BOXED) + 4


def detect(params, x):
    for name, _, _, stride in DETECTOR:
        y = jax.nn.relu(conv(x, params[name]["w"], stride) + params[name]["bias"][:, None, None])
        x = x + y if x.shape == y.shape else y
    return conv(x, params["head"]["w"]) + params["head"]["bias"][:, None, None]


def targets(boxes):
    """Of each cell: whether, which, and the box's middle within the cell and size in cells."""
    there, kind = np.zeros((len(boxes), GRID, GRID), np.float32), np.zeros((len(boxes), GRID, GRID), np.int64)
    where = np.zeros((len(boxes), 4, GRID, GRID), np.float32)
    for at, number in zip(*np.nonzero(boxes[:, :, 0] >= 0)):
        k, left, top, right, bottom = boxes[at, number]
        x, y = (left + right) / 2 / CELL, (top + bottom) / 2 / CELL
        i, j = min(int(y), GRID - 1), min(int(x), GRID - 1)
        there[at, i, j], kind[at, i, j] = 1, int(k)
        where[at, :, i, j] = x - j, y - i, (right - left) / CELL, (bottom - top) / CELL
    return there, kind, where


def train_boxes(rng):
    images, boxes = draw_boxes(rng, 12000)
    params = {n: {"w": he(rng, o, i, 3, 3), "bias": np.zeros(o, np.float32)} for n, i, o, _ in DETECTOR}
    params["head"] = {"w": 0.3 * he(rng, CHANNELS, 32, 1, 1), "bias": np.zeros(CHANNELS, np.float32)}

    def loss(params, images, there, kind, where):
        out = detect(params, images)
        is_there = jax.nn.softplus(out[:, 0]) - there * out[:, 0]
        which = -jnp.take_along_axis(jax.nn.log_softmax(out[:, 1 : 1 + len(BOXED)], 1), kind[:, None], 1)[:, 0]
        near = jnp.abs(out[:, 1 + len(BOXED) :] - where).sum(1)
        per = len(images)
        return (is_there.sum() + (there * (which + near)).sum()) / per, ()

    arrays = (images, *targets(boxes))
    for _, params, value, _ in adam(loss, params, epochs(rng, arrays, 12), 4e-3):
        pass
    images, boxes = draw_boxes(rng, 150)
    nodes, weights, x, width = [], {}, "image", 1
    for name, inputs, outputs, stride in DETECTOR:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = params[name]["w"], params[name]["bias"]
        shape = dict(kernel_shape=[3, 3], pads=[1] * 4, strides=[stride] * 2)
        parts = [x, f"{name}.weight", f"{name}.bias"]
        nodes.append(helper.make_node("Conv", parts, [f"{name}.y"], name=name, **shape))
        nodes.append(helper.make_node("Relu", [f"{name}.y"], [f"{name}.relu"], name=f"{name}.relu"))
        y = f"{name}.relu"
        if inputs == outputs and stride == 1:
            nodes.append(helper.make_node("Add", [x, y], [f"{name}.sum"], name=f"{name}.add"))
            y = f"{name}.sum"
        x = y
    weights["head.weight"], weights["head.bias"] = params["head"]["w"], params["head"]["bias"]
    head = [x, "head.weight", "head.bias"]
    nodes.append(helper.make_node("Conv", head, ["raw"], name="head", kernel_shape=[1, 1]))
    weights["parts"] = np.array([1, len(BOXED), 4], np.int64)
    nodes += [
        helper.make_node("Split", ["raw", "parts"], ["there.raw", "which.raw", "where"], name="split", axis=1),
        helper.make_node("Sigmoid", ["there.raw"], ["there"], name="there"),
        helper.make_node("Softmax", ["which.raw"], ["which"], name="which", axis=1),
        helper.make_node("Concat", ["there", "which", "where"], ["cells"], name="cells", axis=1),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, *images.shape[1:]])
    export("boxes", nodes, weights, image, ("cells", [1, CHANNELS, GRID, GRID]))
    save("boxes", {"image": images, "boxes": boxes}, image=draw_boxes(rng, CALIBRATION)[0])
    return {"loss": value, "rows": len(images), "shapes": int((boxes[:, :, 0] >= 0).sum())}


# The language model.

CONTEXT, WIDTH, HEADS, BLOCKS = 24, 48, 4, 2
LETTERS = "\n" + "".join(chr(code) for code in range(32, 127))


def letters():
    """The repository's documents as numbers; what is not ASCII is a question mark."""
    root = HERE.parents[1]
    files = [root / "README.md", root / "ARCHITECTURE.md", *sorted(root.glob("docs/*.md"))]
    text = "\n".join(file.read_text() for file in files)
    known = {letter: number for number, letter in enumerate(LETTERS)}
    return np.array([known.get(letter, known["?"]) for letter in text], np.int64)


def normed(x, part):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(var + 1e-5) * part["scale"] + part["bias"]


def tell(params, ids):
    x = params["letters"][ids] + params["places"]
    causal = jnp.where(jnp.tril(jnp.ones((CONTEXT, CONTEXT))) > 0, 0.0, -1e4)
    for block in params["blocks"]:
        y = normed(x, block["norm1"]) @ block["qkv"]["w"] + block["qkv"]["bias"]
        q, k, v = y.reshape(*y.shape[:2], 3, HEADS, WIDTH // HEADS).transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(2, 3) / np.sqrt(WIDTH // HEADS) + causal
        mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + mixed @ block["out"]["w"] + block["out"]["bias"]
        y = normed(x, block["norm2"]) @ block["up"]["w"] + block["up"]["bias"]
        x = x + jax.nn.gelu(y, approximate=False) @ block["down"]["w"] + block["down"]["bias"]
    return normed(x, params["norm"]) @ params["head"]["w"] + params["head"]["bias"]


def train_letters(rng):
    text = letters()
    held = len(text) // 10
    learned, held = text[:-held], text[-held:]
    linear = lambda i, o: {
        "w": (rng.standard_normal((i, o)) / np.sqrt(i)).astype(np.float32),
        "bias": np.zeros(o, np.float32),
    }
    norm = lambda: {"scale": np.ones(WIDTH, np.float32), "bias": np.zeros(WIDTH, np.float32)}
    small = lambda *shape: (0.1 * rng.standard_normal(shape)).astype(np.float32)
    block = lambda: {
        "norm1": norm(),
        "qkv": linear(WIDTH, 3 * WIDTH),
        "out": linear(WIDTH, WIDTH),
        "norm2": norm(),
        "up": linear(WIDTH, 4 * WIDTH),
        "down": linear(4 * WIDTH, WIDTH),
    }
    params = {
        "letters": small(len(LETTERS), WIDTH),
        "places": small(CONTEXT, WIDTH),
        "blocks": [block() for _ in range(BLOCKS)],
        "norm": norm(),
        "head": linear(WIDTH, len(LETTERS)),
    }

    def loss(params, ids):
        told = jax.nn.log_softmax(tell(params, ids[:, :-1]))
        return -jnp.take_along_axis(told, ids[:, 1:, None], 2).mean(), ()

    steps, rows = 4000, np.arange(CONTEXT + 1)
    batches = (((learned[rng.integers(0, len(learned) - CONTEXT, BATCH)[:, None] + rows],), n / steps) for n in range(steps))
    for step, params, value, _ in adam(loss, params, batches, 3e-3):
        pass
    params = jax.tree.map(np.asarray, params)
    ids = held[rng.integers(0, len(held) - CONTEXT, 500)[:, None] + rows]
    told = np.asarray(jax.nn.log_softmax(tell(params, ids[:, :-1])[:, -1]))
    bits = float(-told[np.arange(len(ids)), ids[:, -1]].mean() / np.log(2))
    export_letters(params)
    calibration = learned[rng.integers(0, len(learned) - CONTEXT, CALIBRATION)[:, None] + rows[:-1]]
    save("letters", {"ids": ids[:, :-1], "labels": ids[:, -1]}, ids=calibration)
    return {"loss": value, "bits_per_character": bits, "rows": len(ids), "characters": len(text)}


def export_letters(params):
    nodes, weights = [], {"letters": params["letters"], "places": params["places"]}

    def node(op, inputs, output, **attributes):
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def constant(name, value):
        weights[name] = np.asarray(value)
        return name

    def product(name, x, part):
        weights[f"{name}.weight"], weights[f"{name}.bias"] = part["w"], part["bias"]
        return node("Add", [node("MatMul", [x, f"{name}.weight"], f"{name}.y"), f"{name}.bias"], name)

    def norm(name, x, part):
        weights[f"{name}.scale"], weights[f"{name}.bias"] = part["scale"], part["bias"]
        return node("LayerNormalization", [x, f"{name}.scale", f"{name}.bias"], name, axis=-1, epsilon=1e-5)

    constant("apart", np.array([1, CONTEXT, 3, HEADS, WIDTH // HEADS], np.int64))
    constant("together", np.array([1, CONTEXT, WIDTH], np.int64))
    constant("scale", np.float32(1 / np.sqrt(WIDTH // HEADS)))
    constant("causal", np.where(np.tril(np.ones((CONTEXT, CONTEXT))) > 0, 0, -1e4).astype(np.float32))
    constant("half", np.float32(0.5))
    constant("one", np.float32(1))
    constant("root", np.float32(1 / np.sqrt(2)))
    constant("last", np.array(CONTEXT - 1, np.int64))
    for number in range(3):
        constant(f"part{number}", np.array(number, np.int64))
    x = node("Add", [node("Gather", ["letters", "ids"], "embedded", axis=0), "places"], "placed")
    for number, block in enumerate(params["blocks"]):
        name = f"block{number}"
        y = product(f"{name}.qkv", norm(f"{name}.norm1", x, block["norm1"]), block["qkv"])
        y = node("Transpose", [node("Reshape", [y, "apart"], f"{name}.apart")], f"{name}.heads", perm=[2, 0, 3, 1, 4])
        q, k, v = (node("Gather", [y, f"part{p}"], f"{name}.{'qkv'[p]}", axis=0) for p in range(3))
        k = node("Transpose", [k], f"{name}.kt", perm=[0, 1, 3, 2])
        scores = node("Mul", [node("MatMul", [q, k], f"{name}.qk"), "scale"], f"{name}.scores")
        shares = node("Softmax", [node("Add", [scores, "causal"], f"{name}.masked")], f"{name}.shares", axis=-1)
        mixed = node("Transpose", [node("MatMul", [shares, v], f"{name}.mix")], f"{name}.turned", perm=[0, 2, 1, 3])
        mixed = product(f"{name}.out", node("Reshape", [mixed, "together"], f"{name}.joined"), block["out"])
        x = node("Add", [x, mixed], f"{name}.attended")
        y = product(f"{name}.up", norm(f"{name}.norm2", x, block["norm2"]), block["up"])
        erf = node("Erf", [node("Mul", [y, "root"], f"{name}.rooted")], f"{name}.erf")
        y = node("Mul", [node("Mul", [y, "half"], f"{name}.halved"), node("Add", [erf, "one"], f"{name}.gate")], f"{name}.gelu")
        x = node("Add", [x, product(f"{name}.down", y, block["down"])], f"{name}.fed")
    last = node("Gather", [norm("norm", x, params["norm"]), "last"], "at_last", axis=1)
    product("head", last, params["head"])
    nodes.append(helper.make_node("Identity", ["head"], ["logits"], name="logits"))
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, CONTEXT])
    export("letters", nodes, weights, ids, ("logits", [1, len(LETTERS)]))


def save(name, test, **calibration):
    np.savez_compressed(HERE / f"{name}-test.npz", **test)
    np.savez_compressed(HERE / f"{name}-calibration.npz", **calibration)


def export(name, nodes, weights, given, told):
    tensors = [numpy_helper.from_array(np.array(value, order="C"), key) for key, value in weights.items()]
    result = helper.make_tensor_value_info(told[0], TensorProto.FLOAT, told[1])
    graph = helper.make_graph(nodes, name, [given], [result], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="planforge-tests")
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    (HERE / f"{name}.onnx").write_bytes(model.SerializeToString())


NETWORKS = {"shapes": train_shapes, "boxes": train_boxes, "letters": train_letters}


def main():
    known = HERE / "training.json"
    facts = json.loads(known.read_text()) if known.exists() else {}
    for number, (name, train) in enumerate(NETWORKS.items()):
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            facts[name] = train(np.random.default_rng([SEED, number])) | {"seed": SEED, "jax": jax.__version__}
            print(name, json.dumps(facts[name]), flush=True)
            known.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
