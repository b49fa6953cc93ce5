#!/bin/bash
# Everything that docs/measurements says of GPUs, measured anew: all.sh BIN OUT STEP [SECONDS]
#
# BIN holds the programs of a release build: planforge, its examples engine_server and contention (of planforge-cuda), and
# the test kernels_on_a_device. Every GPU of the host is a lane with its share of the cores; lanes take models in turn.
# Three steps, each within SECONDS (570), each repeatable: it goes on where it ended.
#   1  own kernels against the reference and the product's path on the first GPU, while the other lanes compile what
#      peers and engines need; the first joins them when it is done
#   2  ours beside every peer; nothing is compiled any more, unless step 1 left something. Then BERT-base and ViT-B/16
#      once more with every library's kernel kept behind (OUT/behind)
#   3  one thing at a time: a farm of all GPUs, a switch of profiles, the probe, contention, batch 16 on 4 streams
# OUT keeps rows; CACHE is where compiled kernels and tactics lie.
set -u
bin=$(realpath "$1"); mkdir -p "$2"; out=$(realpath "$2"); step=$3; limit=${4:-570}
here=$(realpath "$(dirname "$0")")
cache=${CACHE:-/tmp/planforge-gpu}; mkdir -p "$cache"
export PLANFORGE_ENGINE_SERVER=$bin/engine_server NO_COLOR=1
export TORCHINDUCTOR_CACHE_DIR=$cache/inductor TRITON_CACHE_DIR=$cache/triton
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

gpus=$(nvidia-smi -L | wc -l); [ "$gpus" -gt 0 ] || { echo "no GPU here"; exit 1; }
cores=$(($(nproc) / gpus))
# Only one lane takes a task: whoever can move its file.
queue=$(mktemp -d); mkdir "$queue/taken"
offer() { for task; do number=$((${number:-100} + 1)); : >"$queue/$number $task"; done; }
# lane NUMBER FUNCTION: this GPU, these cores, tasks until none is left; every task is FUNCTION WORDS.
lane() {
    local task
    export CUDA_VISIBLE_DEVICES=$1
    taskset -cp "$(($1 * cores))-$((($1 + 1) * cores - 1))" "$BASHPID" >/dev/null
    [ "$1" != 0 ] || "${3:-true}"
    for task in "$queue"/[0-9]*; do
        mv "$task" "$queue/taken/" 2>/dev/null || continue
        task=${task##*/}; task=${task#* }
        # shellcheck disable=SC2086 # words
        $2 $task
        say "lane $1: $task: $(tail -n 1 "$out/log/$2-${task// /-}.txt")"
    done
}
lanes() {
    local number
    for ((number = 0; number < gpus; number++)); do lane "$number" "$@" & done
    wait
}
beside() { python3 "$here/../bench/cuda-vs-pytorch" "$@"; }
# Rows of one model lie by themselves, because lanes write at once.
fill() { # MODEL PEER BATCHES
    local own=(--cache "$cache/$1")
    [ "$2" != max-autotune ] || own=(--cache "$cache/$1-$2-$3" --no-ours)
    beside "$1" --fill --peers "$2" --batches "$3" "${own[@]}" --out "$out/$1" --peer-seconds 400 \
        --seconds "$(left 15)" >>"$out/log/fill-$1-$2-$3.txt" 2>&1
}
cells() { # MODEL
    beside "$1" --missing --cache "$cache/$1" --out "$out/$1" --seconds "$(left 15)" >>"$out/log/cells-$1.txt" 2>&1
}
behind() { # MODEL
    PLANFORGE_ENGINE_SERVER=$cache/engine_server_behind beside "$1" --missing --peers graph-fp16 \
        --cache "$cache/behind-$1" --out "$out/behind/$1" --seconds "$(left 15)" >>"$out/log/behind-$1.txt" 2>&1
}
first_gpu() {
    part kernels 300 "$bin/kernels_on_a_device" --test-threads=1 --nocapture
    part product 150 "$here/product.sh" "$bin/planforge" "$out" resnet50
}
mkdir -p "$out/log"

case $step in
1)
    offer "detector reduce-overhead 1,8,32" "resnet50 reduce-overhead 1,8,32,128" "efficientnet_b0 reduce-overhead 1,8,32"
    offer "bert_base reduce-overhead 1,8,32" "mobilenet_v3_large reduce-overhead 1,8,32" "vit_b_16 reduce-overhead 1,8,32"
    for batch in 1 32; do offer "detector max-autotune $batch" "resnet50 max-autotune $batch" "bert_base max-autotune $batch"; done
    lanes fill first_gpu
    ;;
2)
    offer resnet50 detector bert_base mobilenet_v3_large efficientnet_b0 vit_b_16
    lanes cells
    printf '#!/bin/sh\nexec "%s" "$@" --libraries-behind\n' "$bin/engine_server" >"$cache/engine_server_behind"
    chmod +x "$cache/engine_server_behind"
    offer bert_base vit_b_16
    lanes behind
    ;;
3)
    export CUDA_VISIBLE_DEVICES=0
    work=$(mktemp -d); export PLANFORGE_DATA=$work/data
    part probe 60 "$bin/planforge" probe
    "$bin/planforge" testmodel mobilenet-v3-large --batch dynamic -o "$work/"
    part profiles 90 "$bin/planforge" build "$work/mobilenet-v3-large.onnx" --precision fp16 -o "$work/profiles.plan" \
        --shapes input:1..1..4x3x224x224 --shapes input:4..8..16x3x224x224
    part profiles-report 20 "$bin/planforge" report "$work/profiles.plan"
    FOREIGN=torch part contended 100 "$here/contention.sh" "$bin/planforge" "$bin/contention" "$out"
    beside detector --streams --cache "$cache/detector" --out "$out/detector" --seconds "$(left 15)" \
        >>"$out/log/streams.txt" 2>&1
    say "streams: $(tail -n 1 "$out/log/streams.txt")"
    unset CUDA_VISIBLE_DEVICES
    [ "$gpus" = 1 ] || part fleet 150 "$here/fleet.sh" "$bin/planforge" "$out"
    ;;
esac
for kind in rows unfinished builds streams seconds; do
    cat "$out"/*/$kind.jsonl 2>/dev/null >"$out/$kind.jsonl"
done
say "step $step is over"
