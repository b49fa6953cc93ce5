#!/usr/bin/env bash
# Pairs of processes on one host, all kinds side by side, each on cores or a GPU of its own:
#
#     host.sh PLANFORGE STATISTICS FOLDER [SECONDS]
#
# PLANFORGE and STATISTICS are the release builds of the command and of the example `statistics`. FOLDER keeps the plans
# and the results; a later call goes on where the one before ended. Needs 16 cores and Python; GPUs are used where the
# host has some (with two, one measures pairs of equals and the other pairs of unequals).
set -euo pipefail

planforge=$(realpath "$1")
statistics=$(realpath "$2")
folder=$3
seconds=${4:-540}
here=$(dirname "$(realpath "$0")")
mkdir -p "$folder"
cd "$folder"
began=$SECONDS
export PLANFORGE_DATA=$PWD/farm

# plan MODEL NAME [FLAG ...]: builds an engine once.
plan() {
    local model=$1 name=$2
    shift 2
    [[ -e $name.plan ]] && return
    "$planforge" testmodel "$model" -o "$name.onnx" >&2
    "$planforge" build "$name.onnx" -o "$name.plan" "$@" >&2
}

gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)
plan mobilenet-v3-large cpu --sku cpu-x86-64-v3 --threads 2
plan digits tiny --sku cpu-x86-64-v3 --threads 1
if ((gpus > 0)); then
    sku=$("$planforge" devices --json | python3 -c '
import json, sys
skus = [sku for device in json.load(sys.stdin)["devices"] for sku in device["skus"]]
print(next(sku for sku in skus if not sku.startswith("cpu-")))')
    plan resnet50 cuda --sku "$sku" --precision fp16
fi

# pairs NAME PLAN PAIRS SLOWER CORES [DEVICE]: one row of the table, in the background.
pairs() {
    local name=$1 plan=$2 count=$3 slower=$4 cores=$5 device=${6:-}
    CUDA_VISIBLE_DEVICES=$device taskset -c "$cores" python3 "$here/run.py" "$plan.plan" --results "$name.jsonl" \
        --pairs "$count" --slower "$slower" --seconds $((seconds - SECONDS + began)) --statistics "$statistics" \
        >"$name.log" 2>&1 &
    running+=($!)
}

running=()
python3 "$here/busy.py" 0.25 12 13 14 15 &
neighbours=$!
trap 'pkill -P $neighbours; kill $neighbours' EXIT
pairs quiet-equal tiny 300 0 8,9
pairs quiet-slower tiny 100 5 10,11
pairs busy-equal tiny 300 0 12,13
pairs busy-slower tiny 100 15 14,15
pairs two-threads-equal cpu 300 0 4,5
if ((gpus >= 1)); then
    pairs gpu-equal cuda 300 0 0,1 0
fi
if ((gpus >= 2)); then
    # Another half of the pairs of equals, once those of unequals are there.
    pairs gpu-slower cuda 100 4 2,3 1
    wait $! || true
    pairs gpu-equal-other cuda 150 0 2,3 1
fi
wait "${running[@]}" || true
cat ./*.log
