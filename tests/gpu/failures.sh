#!/bin/bash
# Failures for real on a GPU host: failures.sh PLANFORGE OUT
#
# PARTS (spoil, memory, stub; all by default) says which. One coordinator with one agent goes through them and has to
# build again after each. Needs gcc, or the two
# libraries built from the C files here in the folder LIBS; NVRTC 13 under /usr/local/cuda, or its path in NVRTC; and python3 with torch, which takes the device's memory.
set -u
here=$(dirname "$(realpath "$0")"); planforge=$(realpath "$1"); out=$2; mkdir -p "$out"
log=$out/failures.txt; : >"$log"
work=$(mktemp -d); cd "$work" || exit 1
export PLANFORGE_DATA=$work/data NO_COLOR=1 PLANFORGE_SKUS=${SKU:-h200-sxm}
shim=$work/shim; mkdir -p "$shim" "$work/stub"
if [ -n "${LIBS:-}" ]; then cp "$LIBS/libnvrtc.so.13" "$shim/"; cp "$LIBS/libcudnn.so.9" "$work/stub/"; else
    gcc -shared -fPIC -o "$shim/libnvrtc.so.13" -Wl,-soname,libnvrtc-shim.so "$here/nvrtc_shim.c" -ldl
    gcc -shared -fPIC -o "$work/stub/libcudnn.so.9" -Wl,-soname,libcudnn.so.9 "$here/stub.c"
fi
real=${NVRTC:-$(find /usr/local/cuda*/ -name 'libnvrtc.so.13' 2>/dev/null | head -1)}
[ -e "$real" ] || { echo "no NVRTC under /usr/local/cuda: name one in NVRTC"; exit 2; }
spoil=$work/spoil; echo none >"$spoil"
failed=0
part() { case " ${PARTS:-spoil memory stub} " in *" $1 "*) true;; *) false;; esac; }
# expect WHAT TEXT...: the last command said every text.
expect() {
    local what=$1 text; shift
    for text in "$@"; do
        if grep -qi -- "$text" last.txt; then continue; fi
        echo "FAILED $what: did not say '$text'" | tee -a "$log"; failed=1; return
    done
    echo "ok     $what" | tee -a "$log"
}
try() {
    local limit=$1; shift
    { echo; echo "\$ ${*/$planforge/planforge}"; } >>"$log"
    timeout "$limit" "$@" >last.txt 2>&1; echo "exit $?" >>last.txt
    tail -c 3000 last.txt >>"$log"
}
last_job() { "$planforge" --json jobs 2>/dev/null | grep -o '"id": *"[^"]*"' | head -1 | cut -d'"' -f4; }

PLANFORGE_CUDA_LIBS=$shim${PLANFORGE_CUDA_LIBS:+:$PLANFORGE_CUDA_LIBS} PLANFORGE_TEST_NVRTC=$real PLANFORGE_TEST_SPOIL=$spoil \
    setsid "$planforge" up --listen 127.0.0.1:0 >up.txt 2>&1 & up=$!
trap 'kill $up 2>/dev/null; tail -c 3000 up.txt >>"$log"' EXIT
for _ in $(seq 100); do "$planforge" jobs >/dev/null 2>&1 && break; sleep 0.2; done
"$planforge" testmodel digits -o . >/dev/null 2>&1
"$planforge" testmodel mobilenet-v3-large -o . >/dev/null 2>&1
build() { try "${LIMIT:-90}" "$planforge" build "$@"; }

build digits.onnx --precision fp16;                    expect "a build before anything is spoilt" "succeeded" "exit 0"

if part spoil; then
echo error >"$spoil"
build digits.onnx --precision bf16;                    expect "a kernel that does not compile" "does not compile" "this_does_not_compile"
try 20 "$planforge" logs "$(last_job)";                expect "its source and log are kept" "source of kernel" "this_does_not_compile"

echo fault >"$spoil"
build digits.onnx --precision tf32;                    expect "a kernel that faults" "faulty kernel" "illegal"
try 20 "$planforge" logs "$(last_job)";                expect "the device is looked at after it" "looked at again and can be used"
echo none >"$spoil"
build digits.onnx --precision tf32 --force;            expect "the device serves the next job" "succeeded" "exit 0"
fi

if part memory; then
python3 - <<'PY' &
import torch, time
free, total = torch.cuda.mem_get_info()
hold = torch.empty(free - (700 << 20), dtype=torch.uint8, device="cuda")
open("held", "w").write("x")
time.sleep(45)
PY
holder=$!
for _ in $(seq 150); do [ -e held ] && break; sleep 0.2; done
build mobilenet-v3-large.onnx --precision fp32 --shapes input:1x3x224x224; cp last.txt crowded.txt
try 30 "$planforge" doctor;                            expect "another process on the device is named" "other processes"
"$planforge" testmodel bert-base --batch 64 -o . >/dev/null 2>&1
build bert-base.onnx --precision fp32;                 expect "out of device memory" "out of device memory" "MiB"
kill $holder 2>/dev/null; wait $holder 2>/dev/null
build digits.onnx --precision fp32;                    expect "memory is free again" "succeeded" "exit 0"
fi

kill -0 $up && echo "ok     the agent lived through all of it" | tee -a "$log"
kill $up; wait $up 2>/dev/null; trap - EXIT; tail -c 3000 up.txt >>"$log"

part stub || exit $failed
# A library without its functions, in the place of every real one.
cat >stubbed.sh <<STUB
for real in \$(find / -name 'libcudnn.so.9*' -type f -not -path '/proc/*' -not -path '$work/*' -not -path '*/.gpu*' 2>/dev/null); do
    mount --bind $work/stub/libcudnn.so.9 \$real
done
PLANFORGE_DATA=$work/stubbed $planforge doctor
PLANFORGE_DATA=$work/stubbed timeout 90 $planforge build digits.onnx --precision fp16
STUB
try 120 unshare -m bash stubbed.sh;                    expect "a stub of cuDNN is told and done without" "lacks the function" "succeeded"
exit $failed
