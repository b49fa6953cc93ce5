#!/bin/sh
# Fetches the engines of a model from a Planforge coordinator, for a CI job that packs or deploys them.
#
#   fetch-engine.sh [-o DIR] MODEL.onnx SKU [SKU...]
#
# The model file itself names the engine: it is hashed here, so a job that changed the model never gets an old engine.
# Environment: PLANFORGE_SERVER (required), PLANFORGE_TOKEN, PLANFORGE_CA, PLANFORGE_PROJECT; PLANFORGE_BIN names the
# binary when it is not `planforge` on the PATH.
#
# Prints one "SHA-256  FILE" line an engine on stdout, as sha256sum does. Exit codes are those of `planforge fetch`:
# 3 an engine is missing, 4 the coordinator cannot be reached, 5 the token does not allow it, 2 a mistake in the call.
# Every SKU is tried, so that one run names everything that is missing.
set -eu

usage() {
    echo "usage: fetch-engine.sh [-o DIR] MODEL.onnx SKU [SKU...]" >&2
    exit 2
}

fail() {
    code=$1
    shift
    echo "fetch-engine: $*" >&2
    exit "$code"
}

folder=.
while getopts o: flag; do
    case $flag in
    o) folder=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -ge 2 ] || usage
model=$1
shift

planforge=${PLANFORGE_BIN:-planforge}
command -v "$planforge" >/dev/null 2>&1 || fail 2 "cannot find '$planforge': install it or set PLANFORGE_BIN"
[ -n "${PLANFORGE_SERVER:-}" ] || fail 2 "PLANFORGE_SERVER is not set: it names the coordinator, such as https://farm.example:8443"
[ -f "$model" ] || fail 2 "no model file $model"
mkdir -p "$folder"

answer=$(mktemp)
trap 'rm -f "$answer"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The value of a top-level text in the command's JSON, which has one member a line.
member() {
    sed -n "s/^ *\"$1\": \"\(.*\)\",\{0,1\}\$/\1/p" "$answer" | head -n 1
}

status=0
for sku in "$@"; do
    code=0
    "$planforge" --json fetch "$model" --sku "$sku" -o "$folder/" >"$answer" || code=$?
    case $code in
    0) ;;
    3)
        echo "fetch-engine: MISSING: no engine of $model for $sku" >&2
        status=3
        continue
        ;;
    4) fail 4 "the coordinator at $PLANFORGE_SERVER cannot be reached" ;;
    5) fail 5 "the coordinator at $PLANFORGE_SERVER refused the token: check PLANFORGE_TOKEN" ;;
    *) fail "$code" "fetching the engine of $model for $sku failed (exit code $code)" ;;
    esac
    file=$(member path)
    digest=$(member plan_digest)
    # `planforge fetch` verified the bytes while they streamed; this checks what really lies on the disk.
    printf '%s  %s\n' "$digest" "$file" | sha256sum -c --quiet - >&2 ||
        fail 70 "$file is not what the coordinator promised for $sku"
    printf '%s  %s\n' "$digest" "$file"
done
exit $status
