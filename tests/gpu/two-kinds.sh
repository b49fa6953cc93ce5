#!/bin/bash
# What an engine loses on another kind of GPU: two-kinds.sh PLANFORGE DATA OUT [MODEL...]
#
# Builds the models for the GPU that is here into the farm at DATA and keeps the plans in DATA/kinds. Then every plan there
# is measured here again: the own ones, which have to be as quick as in the job that built them, and as foreign ones those
# that another kind of GPU left. Run it on one host, carry DATA to a host with another GPU of the same architecture, run
# it there. What was said is in OUT/kinds.txt.
set -u
. "$(dirname "$0")/farm.sh"
planforge=$(realpath "$1"); mkdir -p "$2" "$3"; data=$(realpath "$2"); out=$(realpath "$3"); shift 3
models=${*:-mobilenet-v3-large efficientnet-b0}
export PLANFORGE_DATA=$data NO_COLOR=1
kinds=$data/kinds; mkdir -p "$kinds/models"
exec > >(tee -a "$out/kinds.txt") 2>&1
failed=0
fail() { echo "FAILED: $*"; failed=1; }
trap end_farm EXIT
start_farm "$planforge" "$out/kinds-up.txt" || exit 1
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
