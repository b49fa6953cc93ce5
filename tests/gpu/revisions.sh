#!/bin/bash
# Two builds of the program make engines of the same networks on a GPU host, in turns: revisions.sh OLD NEW
#
# Says whether a revision of the compiler made engines slower: medians in ms, a row a build.
set -u
old=$(realpath "$1"); new=$(realpath "$2"); work=$(mktemp -d)
export NO_COLOR=1
one() { # NAME BATCH PRECISION
    "$new" testmodel "$1" --batch "$2" -o "$work/$1-$2.onnx" >/dev/null 2>&1 || return
    for program in "$old" "$new"; do
        data=$work/data-$(basename "$program")-$(stat -c %i "$program")
        PLANFORGE_DATA=$data timeout 120 "$program" build "$work/$1-$2.onnx" --precision "$3" --toolchain native \
            --no-fallback --json 2>"$work/said" | python3 -c '
import json, sys
stats = json.load(sys.stdin)["jobs"][0]["report"]["latency_ms"]
print(*sys.argv[1:], stats["median"], stats.get("ci_low"), stats.get("ci_high"), flush=True)' "$1" "$2" "$3" "$program" ||
            tail -3 "$work/said"
    done
}
one resnet50 1 fp16
one resnet50 32 fp32
one mobilenet-v3-large 8 fp16
one yolo-s 1 fp16
one vit-b-16 1 fp16
one efficientnet-b0 1 fp16
