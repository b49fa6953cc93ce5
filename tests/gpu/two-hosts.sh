#!/bin/bash
# What two hosts that build at once learn, joined: two-hosts.sh PLANFORGE OUT
#
# One coordinator and two agents that know nothing of each other, each with a folder of its own and one of two GPUs. Each
# builds a model; the later one's timing cache has to wait beside the newest, the next build has to join both, and then
# neither model's tactics may be timed again, on either host. What was said is in OUT/two-hosts.txt.
set -u
planforge=$(realpath "$1"); mkdir -p "$2"; out=$(realpath "$2")
work=$(mktemp -d); cd "$work" || exit 1
export PLANFORGE_DATA=$work/farm NO_COLOR=1
exec > >(tee -a "$out/two-hosts.txt") 2>&1
failed=0
fail() { echo "FAILED: $*"; failed=1; }
started=()
# shellcheck disable=SC2317 # the trap calls it
end() {
    kill "${started[@]}"
    sleep 2
    kill -9 "${started[@]}" 2>/dev/null
    [ "$failed" = 0 ] || tail -c 3000 ./*.log
}
trap end EXIT
"$planforge" coordinator --listen 127.0.0.1:0 >coordinator.log 2>&1 & started=($!)
for _ in $(seq 50); do url=$(sed -n 's/^url *//p' coordinator.log); [ -n "$url" ] && break; sleep 0.2; done
number=0
for host in one two; do
    "$planforge" token create $host --role agent -o $host.token >/dev/null || fail "no token for $host"
    CUDA_VISIBLE_DEVICES=$number "$planforge" agent --name $host --state "$work/$host" --server "$url" \
        --token-file $host.token >$host.log 2>&1 & started+=($!)
    number=$((number + 1))
done
online() { "$planforge" devices --json | python3 -c '
import json, sys
here = [device for device in json.load(sys.stdin)["devices"] if device["online"]]
skus = [sku for device in here for sku in device["skus"] if not sku.startswith("cpu")]
print(len(skus), skus[0] if skus else "")'; }
for _ in $(seq 100); do read -r count sku < <(online); [ "$count" = 2 ] && break; sleep 0.2; done
"$planforge" devices
[ "$count" = 2 ] || { fail "not two GPUs of one kind: $count"; exit 1; }
for model in resnet50 bert-base vit-b-16; do "$planforge" testmodel $model -o . >/dev/null || fail "no model $model"; done
# Submits builds, waits for their end, and says what each log has of the timing cache and of the search.
build() { # LABEL MODEL...
    echo "## $1"; shift
    local id ids
    ids=$(for model in "$@"; do "$planforge" submit "$model.onnx" --sku "$sku" --precision fp16 --force --json 2>/dev/null |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["jobs"][0]["id"])'; done)
    for id in $ids; do
        timeout 150 "$planforge" watch "$id" >/dev/null 2>&1 || fail "job $id"
        "$planforge" logs "$id" >"$out/$id.log"
        echo "$id: $(grep -aE 'timing cache|steps:|were known|timed' "$out/$id.log" | tr '\n' ';')"
    done
    "$planforge" caches list --sku "$sku"
}
beside() { "$planforge" caches list --json | python3 -c '
import json, sys
print(sum(len(cache["beside"]) for cache in json.load(sys.stdin)["caches"]))'; }
build "two models at once" resnet50 bert-base
[ "$(beside)" = 1 ] || fail "$(beside) caches wait beside the newest, not one"
build "a third" vit-b-16
[ "$(beside)" = 0 ] || fail "$(beside) caches still wait"
build "the first two again" resnet50 bert-base
"$planforge" jobs
exit $failed
