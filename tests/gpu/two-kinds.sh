#!/bin/bash
# What an engine loses on another kind of GPU: two-kinds.sh PLANFORGE DATA OUT [MODEL...]
#
# Builds the models for the GPU that is here into the farm at DATA and keeps the plans in DATA/kinds. Then every plan there
# is measured here again: the own ones, which have to be as quick as in the job that built them, and as foreign ones those
# that another kind of GPU left. Run it on one host, carry DATA to a host with another GPU of the same architecture, run
# it there. What was said is in OUT/kinds.txt.
set -u
planforge=$(realpath "$1"); mkdir -p "$2" "$3"; data=$(realpath "$2"); out=$(realpath "$3"); shift 3
models=${*:-mobilenet-v3-large efficientnet-b0}
export PLANFORGE_DATA=$data NO_COLOR=1
kinds=$data/kinds; mkdir -p "$kinds/models"
exec > >(tee -a "$out/kinds.txt") 2>&1
failed=0
fail() { echo "FAILED: $*"; failed=1; }
setsid "$planforge" up --listen 127.0.0.1:0 >"$out/kinds-up.txt" 2>&1 & up=$!
trap 'kill $up 2>/dev/null; wait $up 2>/dev/null' EXIT
gpu_here() {
    "$planforge" devices --json | python3 -c '
import json, sys
here = [device for device in json.load(sys.stdin)["devices"] if device["online"]]
print(next((sku for device in here for sku in device["skus"] if not sku.startswith("cpu")), ""))' 2>/dev/null
}
for _ in $(seq 100); do sku=$(gpu_here); [ -z "$sku" ] || break; sleep 0.2; done
[ -n "$sku" ] || { echo "no GPU is known to the farm"; exit 1; }
echo "# $sku, $(date -u +%F)"
mkdir -p "$kinds/$sku"
for model in $models; do
    file=$kinds/models/$model.onnx
    [ -e "$file" ] || "$planforge" testmodel "$model" -o "$file" || fail "no model $model"
    timeout 150 "$planforge" build "$file" --sku "$sku" --precision fp16 -o "$kinds/$sku/$model.plan" 2>/dev/null || fail "$model: no engine"
done
for plan in "$kinds"/*/*.plan; do
    of=$(basename "$(dirname "$plan")")
    echo "## $(basename "$plan") of $of on $sku"
    for _ in 1 2 3; do
        timeout 100 "$planforge" bench "$plan" --on "$sku" 2>/dev/null | grep -E '^(engine|foreign|loss|latency|samples|outputs|disturb|warning)' ||
            fail "$plan was not measured"
    done
done
"$planforge" jobs
exit $failed
