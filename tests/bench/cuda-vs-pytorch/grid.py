"""What is compared, and what the comparison has to show. Needs no torch."""

OURS = "planforge-fp16"
EAGER = ("eager-fp32", "eager-fp32-no-tf32", "eager-fp16", "graph-fp16")
COMPILED = ("reduce-overhead", "max-autotune")
# Nothing of these is rounded to TF32.
OURS_FP32 = "planforge-fp32"
PEERS_FP32 = ("graph-fp32", "reduce-overhead-fp32")
ENGINES = (OURS, *EAGER, *COMPILED, OURS_FP32, *PEERS_FP32)

MODELS = ("resnet50", "detector", "mobilenet_v3_large", "efficientnet_b0", "vit_b_16", "bert_base")
USUAL_BATCHES = (1, 8, 32)
BATCHES = {"resnet50": (1, 8, 32, 128)}
# Networks of torchvision that nobody here tuned for, the most unlike first, so that a part of them says something.
ZOO = (
    "resnet18",
    "densenet121",
    "regnet_y_400mf",
    "convnext_tiny",
    "resnext50_32x4d",
    "mobilenet_v2",
    "swin_t",
    "efficientnet_v2_s",
    "shufflenet_v2_x1_0",
    "vgg16_bn",
    "mnasnet1_0",
    "wide_resnet50_2",
    "vit_b_32",
    "squeezenet1_1",
    "mobilenet_v3_small",
)
ZOO_BATCHES = (1, 8)

MAX_AUTOTUNE_MODELS = ("resnet50", "detector", "bert_base")
MAX_AUTOTUNE_BATCHES = (1, 32)

# Two definitions for each of two columns; `timing.py` says what they are.
MEASURES = ("static_call_ms", "rotated_call_ms", "static_queued_ms", "rotated_queued_ms")

# Faster than both of these in MUST_CELLS cells of each column, in none slower by more than MUST_SLOWER.
MUST_PEERS = ("graph-fp16", "reduce-overhead")
MUST_CELLS = 15
MUST_SLOWER = 1.10
RELATIVE_RMS_MAX = 1e-2
COLD_BUILD_MAX_S = 120
WARM_BUILD_MAX_S = 10

# Most milliseconds of a cell that are aimed for.
GOALS_MS = {
    ("resnet50", 1): 0.30,
    ("resnet50", 128): 128 / 36.0,
    ("detector", 1): 0.45,
    ("bert_base", 1): 0.40,
    ("bert_base", 32): 1.7,
    ("mobilenet_v3_large", 1): 0.30,
    ("vit_b_16", 32): 2.6,
}


def batches(model):
    return ZOO_BATCHES if model in ZOO else BATCHES.get(model, USUAL_BATCHES)


def cells():
    return [(model, batch) for model in MODELS for batch in batches(model)]


def zoo_cells():
    return [(model, batch) for model in ZOO for batch in ZOO_BATCHES]


def own(precision="fp16"):
    """Our engine of that precision."""
    return OURS_FP32 if precision == "fp32" else OURS


def is_own(engine):
    return engine in (OURS, OURS_FP32)


def must_peers(precision="fp16"):
    """Those that ours has to be faster than."""
    return PEERS_FP32 if precision == "fp32" else MUST_PEERS


def peers(model, batch, precision="fp16"):
    """The peers of a cell."""
    if precision == "fp32":
        return PEERS_FP32
    tuned = model in MAX_AUTOTUNE_MODELS and batch in MAX_AUTOTUNE_BATCHES
    return EAGER + COMPILED[: 2 if tuned else 1]
