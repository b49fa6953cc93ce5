#!/bin/bash
# Everything that docs/measurements says of a GPU, measured anew: all.sh BIN OUT STEP [SECONDS]
#
# BIN holds the programs of a release build: planforge, its examples engine_server and contention (of engine-cuda), and
# the test kernels_on_a_device. Three steps, each within SECONDS (570):
#   1  own kernels against the reference, the product's path, then ours beside every peer but max-autotune
#   2  the cells that are left; then the kernels of max-autotune are compiled, in parallel, nothing else being timed
#   3  ours beside max-autotune, a switch of profiles, the probe, contention
# OUT keeps rows, so a step that is repeated goes on where it ended; BIN/rows are rows of an earlier host.
# CACHE is where compiled kernels and tactics lie.
set -u
bin=$(realpath "$1"); mkdir -p "$2"; out=$(realpath "$2"); step=$3; limit=${4:-570}
here=$(realpath "$(dirname "$0")")
cache=${CACHE:-/tmp/planforge-gpu}; mkdir -p "$cache"
export PLANFORGE_ENGINE_SERVER=$bin/engine_server NO_COLOR=1
[ ! -d "$bin/rows" ] || cp -n "$bin"/rows/* "$out/"
left() { echo $((limit - SECONDS - ${1:-0})); }
say() { printf '%4d s  %s\n' "$SECONDS" "$*"; }
# part NAME MOST COMMAND...: what it says goes to OUT/NAME.txt; the rest goes on whatever comes of it.
part() {
    local name=$1 most=$2 status; shift 2
    [ "$most" -lt "$(left)" ] || most=$(left)
    [ "$most" -gt 5 ] || { say "$name: no time left"; return; }
    timeout -k 10 "$most" "$@" >"$out/$name.txt" 2>&1; status=$?
    say "$name: exit $status"
}
beside() { python3 "$here/../bench/cuda-vs-pytorch" "$@"; }

case $step in
1)
    part kernels 120 "$bin/kernels_on_a_device" --test-threads=1 --nocapture
    part product 150 "$here/product.sh" "$bin/planforge" "$out" resnet50
    ;;&
1 | 2)
    reserve=$([ "$step" = 1 ] && echo 15 || echo 230)
    beside all --missing --peers eager-fp32,eager-fp32-no-tf32,eager-fp16,graph-fp16,reduce-overhead --rounds 4 \
        --seconds "$(left "$reserve")" --cache "$cache" --out "$out"
    say "cells"
    ;;&
2)
    # What these choose is thrown away: they disturb one another. The compiled kernels stay.
    export TRITON_CACHE_DIR=$cache/triton
    for model in resnet50 detector; do
        for batch in 1 32; do
            beside $model --batches $batch --fill --no-ours --peers max-autotune --seconds "$(left 15)" \
                --cache "$cache/$model-$batch" --out "$cache/$model-$batch" >"$cache/fill-$model-$batch.txt" 2>&1 &
        done
    done
    wait
    for log in "$cache"/fill-*.txt; do say "$(basename "$log" .txt): $(tail -n 1 "$log")"; done
    ;;
3)
    beside resnet50 detector bert_base --batches 1,32 --missing --peers reduce-overhead,max-autotune \
        --seconds "$(left 150)" --peer-seconds 200 --cache "$cache" --out "$out"
    say "max-autotune"
    work=$(mktemp -d); export PLANFORGE_DATA=$work/data
    "$bin/planforge" testmodel mobilenet-v3-large --batch dynamic -o "$work/"
    part profiles 90 "$bin/planforge" build "$work/mobilenet-v3-large.onnx" --precision fp16 \
        --shapes input:1..1..4x3x224x224 --shapes input:4..8..16x3x224x224
    part probe 60 "$bin/planforge" probe
    FOREIGN=torch part contended 100 "$here/contention.sh" "$bin/planforge" "$bin/contention" "$out"
    ;;
esac
say "step $step is over"
