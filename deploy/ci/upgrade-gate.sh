#!/bin/sh
# Asks a Planforge farm whether a model gets slower with a new toolchain, on every device kind that matters.
#
#   upgrade-gate.sh [-p PERCENT] OLD NEW MODEL.onnx SKU [SKU...]
#
# OLD and NEW are toolchain constraints, such as tensorrt=10.13 and tensorrt=11.1. What is not built yet is built and
# measured first; stored engines answer at once. Then every SKU's new engine is compared with its old one.
# Environment: PLANFORGE_SERVER (required), PLANFORGE_TOKEN of role submit, PLANFORGE_CA, PLANFORGE_PROJECT; PLANFORGE_BIN
# names the binary when it is not `planforge` on the PATH.
#
# Prints the comparison and the gate's answer on stdout. Exit codes: 0 every engine is shown to be at most PERCENT
# slower (5 by default); 9 one is slower, or nobody can tell; 1 a build failed; 2 a mistake in the call; others are those
# of `planforge`.
set -eu

usage() {
    echo "usage: upgrade-gate.sh [-p PERCENT] OLD NEW MODEL.onnx SKU [SKU...]" >&2
    exit 2
}

percent=5
while getopts p: flag; do
    case $flag in
    p) percent=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -ge 4 ] || usage
old=$1
new=$2
model=$3
shift 3

planforge=${PLANFORGE_BIN:-planforge}
command -v "$planforge" >/dev/null 2>&1 || {
    echo "upgrade-gate: cannot find '$planforge': install it or set PLANFORGE_BIN" >&2
    exit 2
}
[ -n "${PLANFORGE_SERVER:-}" ] || {
    echo "upgrade-gate: PLANFORGE_SERVER is not set: it names the coordinator, such as https://farm.example:8443" >&2
    exit 2
}

skus=""
for sku in "$@"; do
    skus="$skus${skus:+,}$sku"
done
"$planforge" submit "$model" --sku "$skus" --toolchain "$old" --toolchain "$new" --wait >&2
exec "$planforge" compare --model "$model" --sku "$skus" --toolchain "$old" --toolchain "$new" --gate "$percent"
