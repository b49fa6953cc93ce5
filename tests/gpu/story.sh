#!/bin/bash
# The story of a detector on a GPU host, from PyTorch eager on, exported there: story.sh PLANFORGE OUT
#
# As examples/story/detector-h200.json and its page were made.
set -u
here=$(realpath "$(dirname "$0")"); planforge=$(realpath "$1"); mkdir -p "$2"; out=$(realpath "$2")
work=$(mktemp -d)
cp -r "$here/../../deploy/baselines" "$work/baselines"; chmod -R go-w,+x "$work/baselines"
export NO_COLOR=1 PLANFORGE_DATA=$work/data PLANFORGE_BASELINES=$work/baselines
python3 "$here/export.py" detector "$work" || exit 1
sku=$("$planforge" devices --json | python3 -c '
import json, sys
print(next(sku for device in json.load(sys.stdin)["devices"] for sku in device["skus"] if not sku.startswith("cpu")))')
"$planforge" report --story "$work/detector.onnx" --sku "$sku" --toolchain native --shapes images:1..1..16x3x640x640 \
    --beside "torch-eager=$work/detector.pt2" --json >"$out/detector.json" || exit 1
"$planforge" report --story "$out/detector.json" -o "$out/detector.html"
"$planforge" report --story "$out/detector.json"
