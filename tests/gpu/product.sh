#!/bin/bash
# The whole path on a GPU host, as a user walks it: product.sh PLANFORGE OUT [MODEL...]
#
# Coordinator and agent in one process, builds from the command line, plans inspected, run and measured. Every command has
# a limit; what each said is in OUT/transcript.txt.
set -u
. "$(dirname "$0")/farm.sh"
planforge=$(realpath "$1"); out=$2; shift 2
models=${*:-resnet50}
work=$(mktemp -d); cd "$work" || exit 1
log=$out/transcript.txt; mkdir -p "$out"
export PLANFORGE_DATA=$work/data NO_COLOR=1
say() { echo "$@" | tee -a "$log"; }
# try NAME LIMIT COMMAND...: runs it, keeps what it said, tells how long it took and how it ended.
try() {
    local name=$1 limit=$2 began status; shift 2
    began=$(date +%s%3N)
    { echo; echo "## $name"; echo "\$ ${*/$planforge/planforge}"; } >>"$log"
    timeout "$limit" "$@" >last.txt 2>&1; status=$?
    head -c 12000 last.txt >>"$log"
    say "$(printf '%-34s exit %d, %d ms' "$name" "$status" "$(($(date +%s%3N) - began))")"
    return $status
}

try version 10 "$planforge" --version
try libraries 60 "$planforge" doctor
try devices 60 "$planforge" devices
trap 'end_farm; tail -c 4000 up.txt >>"$log"' EXIT
start_farm "$planforge" up.txt || exit 1
for model in $models; do
    try "$model: generate" 60 "$planforge" testmodel "$model" -o "$work/"
    try "$model: cold build" 170 "$planforge" build "$model.onnx" --precision fp16 -o "$model.plan" || continue
    cp last.txt "$out/$model.report.txt"
    try "$model: warm build" 120 "$planforge" build "$model.onnx" --precision fp16 --force -o "$model.plan"
    try "$model: stored answer" 60 "$planforge" build "$model.onnx" --precision fp16
    try "$model: inspect" 30 "$planforge" inspect "$model.plan"
    ls -l "$model.plan" >>"$log"
done
