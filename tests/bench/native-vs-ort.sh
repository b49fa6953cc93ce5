#!/bin/sh
# Native CPU engines beside ONNX Runtime: same files, same threads, in turns. Needs python3 with onnxruntime and numpy.
# usage: native-vs-ort.sh [ROUNDS] [SKU]; prints one line of JSON per model and number of threads.
set -eu
cd "$(dirname "$0")/../.."
rounds=${1:-40}
sku=${2:-cpu-x86-64-v4}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo build --quiet --package planforge --package planforge-engine-core --example native_engine --bin planforge
engine=target/debug/examples/native_engine
for model in resnet50 bert-base; do
    target/debug/planforge testmodel "$model" -o "$work/$model.onnx" >&2
    for threads in 1 2; do
        "$engine" build "$work/$model.onnx" "$sku" "$threads" "$work/$model-$threads" >&2
        python3 tests/bench/ort_baseline.py "$engine" "$work/$model.onnx" "$work/$model-$threads/engine.plan" "$threads" "$rounds"
    done
done
