"""Our CUDA engine beside PyTorch: the same modules, one GPU, one run, in turns.

    python3 tests/bench/cuda-vs-pytorch MODEL... --cache FOLDER --fill [--seconds 540]           fill the caches
    python3 tests/bench/cuda-vs-pytorch MODEL... [--batches 1,8] --cache FOLDER [--out FOLDER]   measure
    python3 tests/bench/cuda-vs-pytorch detector --cache FOLDER --streams                        batch 16 on 4 streams
    python3 tests/bench/cuda-vs-pytorch --table FOLDER                                           the tables of all rows
    python3 tests/bench/cuda-vs-pytorch zoo --peers graph-fp16,reduce-overhead [--missing] ...   networks of torchvision
    python3 tests/bench/cuda-vs-pytorch zoo --precision fp32 --batches 8 ...                     without TF32 on either side
    python3 tests/bench/cuda-vs-pytorch --zoo-table FOLDER [--precision fp32 --batches 8]        their table

MODEL is one of resnet50, detector, mobilenet_v3_large, efficientnet_b0, vit_b_16, bert_base; or all; or a network of
torchvision that `grid.py` lists, or zoo for all of those. PyTorch's own
exporter writes the module of this run as ONNX, from which our engine is built, so graph and weights are the same; `timing.py`
says what exactly is timed, `peers.py` what the peers are. Inputs are random, in each engine's own type: ours takes
what the ONNX file declares (fp32 images), the half-precision peers take halves with channels last. Everything stays on
the device.

Filling the caches (Inductor's and Triton's, our tactics) is a command of its own: it ends after --seconds, cutting off
the step at work, whose finished parts stay in the caches; repeat it until it says that nothing is left. Measuring
without it works and takes longer. No peer gets more than --peer-seconds to get ready, no cell more than
--cell-seconds: what does not come to its end is a row with the reason, and the rest is measured all the same. Rows
reach OUT when a step or round is done (`rows.py`), so that a run that is ended keeps what it has; --missing goes on
where it ended, --seconds ends it in time. Every command ends by saying what its seconds went to.

Needs a GPU, torch, torchvision, transformers, onnx and onnxscript; for utilisation and memory of processes nvidia-ml-py.
PLANFORGE_ENGINE_SERVER names our program where there is no cargo.
"""

import argparse
import os
import pathlib

import grid
import limits
import rows

ROUNDS = 5
FILL_S = 540


def numbers(text):
    return [int(number) for number in text.split(",")]


def names(text):
    return text.split(",")


def model(text):
    known = (*grid.MODELS, "all", *grid.ZOO, "zoo")
    if text not in known:
        raise argparse.ArgumentTypeError(f"{text} is none of {', '.join(known)}")
    return text


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=model, metavar="MODEL")
    parser.add_argument("--batches", type=numbers, help="only these")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("/tmp/cuda-vs-pytorch"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("cuda-vs-pytorch-results"))
    parser.add_argument(
        "--precision", choices=("fp16", "fp32"), default="fp16", help="of ours; fp32 is held to peers without TF32"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--level", type=int, default=3, help="how hard our tuner searches, 0 to 5")
    parser.add_argument("--peers", type=names, help=f"only these of {', '.join(name for name in grid.ENGINES if not grid.is_own(name))}")
    parser.add_argument("--no-ours", action="store_true", help="leave our engine out")
    parser.add_argument("--warm", action="store_true", help="build ours once more after each cell, from its warm cache")
    parser.add_argument("--peer-seconds", type=float, default=240, help="most for getting one engine ready")
    parser.add_argument("--cell-seconds", type=float, default=420, help="most for one cell")
    parser.add_argument("--missing", action="store_true", help="only cells with an engine that OUT has no times of")
    parser.add_argument("--fill", action="store_true")
    parser.add_argument("--seconds", type=float, help="most for the whole command; with --fill 540 unless given")
    parser.add_argument("--streams", action="store_true")
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--zoo-table", type=pathlib.Path)
    given = parser.parse_args()
    if not (given.table or given.zoo_table) and not given.models:
        parser.error("name models, or a folder of rows by --table")
    if "all" in given.models:
        given.models = list(grid.MODELS)
    if "zoo" in given.models:
        given.models = list(grid.ZOO)
    if given.streams and len(given.models) > 1:
        parser.error("--streams takes one model")
    if given.streams and given.precision != "fp16":
        parser.error("--streams is of fp16 alone")
    if given.fill and given.seconds is None:
        given.seconds = FILL_S
    unknown = [name for name in given.peers or [] if name not in grid.ENGINES or grid.is_own(name)]
    if unknown:
        parser.error(f"unknown peers: {', '.join(unknown)}")
    return given


def main():
    given = arguments()
    if given.table:
        import table

        print(table.markdown(given.table))
        return
    if given.zoo_table:
        import table

        print(table.zoo_markdown(given.zoo_table, given.precision, given.batches or grid.ZOO_BATCHES))
        return
    limits.end_on_request()
    given.cache.mkdir(parents=True, exist_ok=True)
    # Before torch is loaded, so that it finds what was compiled before; filling and measuring share all of it.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(given.cache / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(given.cache / "triton"))
    os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
    os.environ.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE", "1")
    parts = limits.Parts()
    with parts.part("loading torch"):
        import measure
        import torch

        torch.cuda.init()
    if given.fill:
        from fill import fill as command
    elif given.streams:
        from streams import streams as command
    else:
        command = measure.measure
    try:
        for name in given.models:
            if limits.seconds_left(given.seconds) < limits.SHORTEST_S:
                limits.log(f"{name}: not begun, the command's {given.seconds:.0f} s are used up")
                continue
            run = measure.Run(given, parts, name)
            command(run)
            run.module = None
            run.forget()
    finally:
        limits.log(parts.text())
        rows.append(given.out, "seconds", [{"command": command.__name__, "models": given.models, **parts.seconds}])


if __name__ == "__main__":
    main()
