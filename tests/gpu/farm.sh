# shellcheck shell=bash
# Sourced by the scripts beside it: a farm of this host's devices, with PLANFORGE_DATA, until the script ends.

# start_farm PLANFORGE LOG: returns once a GPU is online, whose SKU is then in $sku. end_farm ends it.
start_farm() {
    setsid "$1" up --listen 127.0.0.1:0 >"$2" 2>&1 & farm=$!
    sku=
    for _ in $(seq 100); do
        sku=$("$1" devices --json 2>/dev/null | python3 -c '
import json, sys
here = [device for device in json.load(sys.stdin)["devices"] if device["online"]]
print(next((sku for device in here for sku in device["skus"] if not sku.startswith("cpu")), ""))' 2>/dev/null)
        [ -z "$sku" ] || return 0
        sleep 0.2
    done
    echo "FAILED: no GPU joined the farm"; tail -c 4000 "$2"
    return 1
}
end_farm() { kill "$farm" 2>/dev/null; wait "$farm" 2>/dev/null; }
