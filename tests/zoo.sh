#!/usr/bin/env bash
# Builds the models of the zoo by the native compiler and holds them against ONNX Runtime (docs/models.md).
#
#   tests/zoo.sh                 those of every push
#   tests/zoo.sh all             all of them
#   tests/zoo.sh bert,swin_t.ts  these
#   tests/zoo.sh --write [bert,swin_t.ts]   all of them or these, and what was found into docs/models.md
#   tests/zoo.sh --times         the same with times beside ONNX Runtime, of an optimised build; on a quiet machine
#   tests/zoo.sh --files DIR [bert,swin_t.ts]   nothing but the models' files, with their weights
#
# The graphs are committed without weights, which are drawn as they are read; tests/zoo/export.py makes them. A
# libonnxruntime has to be found (docs/onnxruntime.md).
set -euo pipefail
cd "$(dirname "$0")/.."

profile=()
case "${1:-}" in
--write) export PLANFORGE_ZOO="${2:-all}" PLANFORGE_WRITE_ZOO=1 ;;
--times)
    export PLANFORGE_ZOO=all PLANFORGE_WRITE_ZOO=1 PLANFORGE_ZOO_TIMES=1
    profile=(--release)
    ;;
--files)
    export PLANFORGE_ZOO_FILES="${2:?name a folder}" PLANFORGE_ZOO="${3:-all}"
    mkdir -p "$PLANFORGE_ZOO_FILES"
    ;;
*) export PLANFORGE_ZOO="${1:-}" ;;
esac
export PLANFORGE_TEST_ONNXRUNTIME=required
exec cargo test --locked "${profile[@]}" -p planforge-onnxruntime --test zoo -- --nocapture
