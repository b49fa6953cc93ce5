#!/bin/sh
# Tells the story of the detector on this machine's processor anew: make.sh [PLANFORGE], run while nothing else runs.
#
# The model is written from a seed. What is kept is the JSON, with the raw samples of every report; the page is made of it.
# SHAPES names other sizes, for example SHAPES=images:1x3x640x640 where batches take too long.
set -eu
planforge=$(command -v "${1:-planforge}")
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$planforge" testmodel yolo-s --batch dynamic -o "$work/yolo-s.onnx"
# A farm of its own: nothing that was built before answers.
PLANFORGE_DATA="$work/data" "$planforge" report --story "$work/yolo-s.onnx" --toolchain native \
    --shapes "${SHAPES:-images:1..1..4x3x640x640}" --json >"$work/detector-cpu.json"
"$planforge" report --story "$work/detector-cpu.json" -o "$here/detector-cpu.html"
cp "$work/detector-cpu.json" "$here/detector-cpu.json"
"$planforge" report --story "$here/detector-cpu.json"
