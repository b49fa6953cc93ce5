#!/bin/bash
# What compiling ahead of the device brings: compile-first.sh PLANFORGE OUT [MODEL...]
#
# Each model is built twice, from nothing, in a farm of its own: as usual, and with what can be compiled made before by a
# job that holds no device. How long each job ran, and its build within, is in OUT/compile-first.csv; what jobs said lies beside.
set -u
. "$(dirname "$0")/farm.sh"
planforge=$(realpath "$1"); mkdir -p "$2"; out=$(realpath "$2"); shift 2
models=${*:-resnet50 efficientnet-b0 bert-base}
work=$(mktemp -d); cd "$work" || exit 1
export NO_COLOR=1
failed=0
trap end_farm EXIT
echo "model,way,kind,state,seconds,of which the build,job" >"$out/compile-first.csv"
# built MODEL WAY FLAGS...: in a new data folder and a new home, so that no library finds what it compiled before.
built() {
    local model=$1 way=$2; shift 2
    export PLANFORGE_DATA=$work/$model-$way HOME=$work/home-$model-$way
    mkdir -p "$HOME"
    start_farm "$planforge" up.txt || exit 1
    timeout 280 "$planforge" submit "$model.onnx" --sku "$sku" --precision fp16 --wait "$@" >"$out/$model-$way.txt" 2>&1 ||
        { echo "FAILED: $model, $way: exit $?"; tail -n 5 "$out/$model-$way.txt"; failed=1; }
    "$planforge" jobs --json >"$out/$model-$way.json" 2>>"$out/$model-$way.txt"
    python3 - "$out/$model-$way.json" "$model,$way" >>"$out/compile-first.csv" <<'PY'
import json, sys
for job in json.load(open(sys.argv[1]))["jobs"]:
    seconds = ((job["ended_ms"] or 0) - (job["started_ms"] or 0)) / 1000
    compile_s = ((job["report"] or {}).get("build_ms") or 0) / 1000
    print(f"{sys.argv[2]},{job['kind']},{job['state']},{seconds:.1f},{compile_s:.1f},{job['id']}")
PY
    for id in $(tail -n +2 "$out/compile-first.csv" | grep "^$model,$way," | cut -d, -f7); do
        "$planforge" logs "$id" >"$out/$model-$way-$id.log" 2>&1
    done
    end_farm
}
for model in $models; do
    "$planforge" testmodel "$model" -o . >/dev/null || exit 1
    built "$model" usual
    built "$model" ahead --compile-first
done
cat "$out/compile-first.csv"
exit $failed
