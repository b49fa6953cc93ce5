#!/bin/bash
# A farm on all GPUs of one host: fleet.sh PLANFORGE OUT
#
# One agent has every GPU; more builds than GPUs are submitted at once. While they run, the driver is asked which process
# is on which GPU: no worker may be on any but its own, and no GPU may have two. What was seen is in OUT/fleet-seen.csv.
set -u
. "$(dirname "$0")/farm.sh"
planforge=$(realpath "$1"); out=$(realpath "$2")
work=$(mktemp -d); cd "$work" || exit 1
export PLANFORGE_DATA=$work/data NO_COLOR=1
failed=0
fail() { echo "FAILED: $*"; failed=1; }
gpus=$(nvidia-smi -L | wc -l)
models="mobilenet-v3-large efficientnet-b0 resnet50 vit-b-16 bert-base digits"
for model in $models; do "$planforge" testmodel "$model" -o . >/dev/null || fail "no model $model"; done
watch=
trap '[ -z "$watch" ] || kill "$watch" 2>/dev/null; end_farm; tail -c 4000 up.txt' EXIT
start_farm "$planforge" up.txt || exit 1
"$planforge" devices
while :; do
    nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv,noheader | sed "s/^/$(date +%s.%N),/"
    sleep 0.2
done >"$out/fleet-seen.csv" 2>/dev/null & watch=$!
began=$(date +%s)
timeout 120 "$planforge" build ./*.onnx --precision fp16 -o plans/ || fail "builds ended with $?"
echo "all built in $(($(date +%s) - began)) s on $gpus GPUs"
kill $watch; watch=
"$planforge" jobs
awk -F', *' '
    { on[$3] = on[$3] == "" || on[$3] == $2 ? $2 : "several"; at[$1, $2]++; used[$2] = 1 }
    END {
        for (pid in on) { processes++; if (on[pid] == "several") spread++ }
        for (moment in at) if (at[moment] > 1) shared++
        for (gpu in used) busy++
        printf "%d processes seen on %d GPUs; on more than one GPU: %d; moments with two on one GPU: %d\n", \
            processes, busy, spread, shared
        exit !(processes > 0 && spread == 0 && shared == 0)
    }' "$out/fleet-seen.csv" || fail "processes on GPUs that are not theirs"
exit $failed
