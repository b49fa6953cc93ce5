#!/bin/bash
# Contention around timed windows, provoked on a GPU host: contention.sh PLANFORGE CONTENTION OUT
#
# CONTENTION is planforge-cuda's example of that name. A foreign process that really uses the GPU is there when a window
# starts, when one ends, and only inside one: the first two have to be seen, and whatever is seen has to be measured
# again; the third is reported as what it is. FOREIGN=torch takes matrix products of PyTorch for the foreign process.
set -u
planforge=$(realpath "$1"); contention=$(realpath "$2"); out=$3; mkdir -p "$out"; out=$(realpath "$out")
log=$out/contention.txt
work=$(mktemp -d); cd "$work" || exit 1
export PLANFORGE_DATA=$work/data NO_COLOR=1
"$planforge" testmodel digits -o . >/dev/null
timeout 40 "$planforge" build digits.onnx --precision fp16 --optimization-level 0 -o digits.plan >build.txt 2>&1 ||
    { echo "FAILED to build a plan"; tail -5 build.txt; exit 1; }
foreign=()
if [ "${FOREIGN:-}" = torch ]; then
    cat >foreign.py <<'PY'
import sys, threading, torch
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
(a @ a).sum().item()
print("ready", flush=True)
while not over.is_set():
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
PY
    foreign=(python3 foreign.py)
fi
timeout 120 "$contention" digits.plan ${foreign[@]+"${foreign[@]}"} 2>&1 | tee "$log"
exit "${PIPESTATUS[0]}"
