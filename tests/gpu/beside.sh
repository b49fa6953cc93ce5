#!/bin/bash
# Engines beside PyTorch on a GPU host: ResNet-50 and BERT-base at batch 1, exported there: beside.sh PLANFORGE OUT
#
# As docs/measurements/baselines.md was made. Of each build OUT keeps the report as JSON and Markdown, and what the command said.
set -u
here=$(realpath "$(dirname "$0")"); planforge=$(realpath "$1"); mkdir -p "$2"; out=$(realpath "$2")
work=$(mktemp -d)
# Programs are taken from folders that nobody else writes.
cp -r "$here/../../deploy/baselines" "$work/baselines"; chmod -R go-w,+x "$work/baselines"
export NO_COLOR=1 PLANFORGE_DATA=$work/data PLANFORGE_BASELINES=$work/baselines
one() { # NAME SHAPES
    python3 "$here/export.py" "$1" "$work" || return
    timeout 240 "$planforge" build "$work/$1.onnx" --precision fp16 --shapes "$2" --toolchain native --no-fallback \
        --beside "torch-eager=$work/$1.pt2" --beside "torch-compile=$work/$1.pt2" --json >"$work/$1.json" 2>"$out/$1.log"
    echo "$1: exit $?"
    python3 -c 'import json, sys; json.dump(json.load(sys.stdin)["jobs"][0]["report"], sys.stdout)' \
        <"$work/$1.json" >"$out/$1.report.json" && "$planforge" report "$out/$1.report.json" -o "$out/$1.md"
    cat "$out/$1.md"
}
one resnet50 images:1x3x224x224
one bert_base input_ids:1x128,attention_mask:1x128
