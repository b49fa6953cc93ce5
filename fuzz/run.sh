#!/bin/sh
# Builds the fuzz targets with a stable compiler and runs them side by side, each for so many seconds.
#
#   fuzz/run.sh [SECONDS] [TARGET...]       60 seconds and all targets by default
#
# FUZZ_SEED=N draws the same inputs again, as far as the time allows; another seed is drawn each time without it.
#
# libFuzzer needs coverage counters only, which are flags of LLVM. FUZZ_SANITIZER=address adds AddressSanitizer, a flag
# that a stable compiler has but does not let one use; RUSTC_BOOTSTRAP=1 says that we know. It takes minutes more to
# build, and makes inputs fewer. What a run finds lies in fuzz/artifacts/TARGET.
set -eu
cd "$(dirname "$0")"

seconds=${1:-60}
[ $# -eq 0 ] || shift
host=$(rustc -vV | sed -n 's/^host: //p')
# With --target, these flags do not reach build scripts.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=16"
if [ -n "${FUZZ_SANITIZER:-}" ]; then
    RUSTFLAGS="$RUSTFLAGS -Zsanitizer=$FUZZ_SANITIZER"
    export RUSTC_BOOTSTRAP=1
fi
export RUSTFLAGS
# Memory that cannot be had is an answer that readers must take. Leaks are looked for by nobody: signal stacks, thread
# pools and statics live as long as the process.
export ASAN_OPTIONS="allocator_may_return_null=1:detect_leaks=0:quarantine_size_mb=64${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
targets=${*:-$(sed -n '/^\[\[bin/,/^path/s/^name = "\(.*\)"/\1/p' Cargo.toml)}
bins=""
for target in $targets; do bins="$bins --bin $target"; done
# shellcheck disable=SC2086
cargo build --release --target "$host" $bins
built=${CARGO_TARGET_DIR:-target}/$host/release

# Plans are files: in memory, where there is such a place.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm

running=""
for target in $targets; do
    found=target/corpus/$target
    mkdir -p "$found" "artifacts/$target" "corpus/$target" target/logs
    "$built/$target" "$found" "corpus/$target" -max_total_time="$seconds" -timeout=30 \
        -rss_limit_mb=3072 -malloc_limit_mb=131072 -max_len=65536 -use_value_profile=1 -print_final_stats=1 -verbosity=0 \
        "-seed=${FUZZ_SEED:-0}" \
        "-artifact_prefix=artifacts/$target/" >"target/logs/$target" 2>&1 &
    running="$running $!:$target"
done
failed=""
for each in $running; do
    target=${each#*:}
    status=0
    wait "${each%%:*}" || status=$?
    if [ "$status" -eq 0 ]; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "target/logs/$target")
        echo "fuzz: $target: $runs inputs in ${seconds}s, none failed"
    else
        echo "fuzz: $target failed, exit status $status:" >&2
        tail -n 40 "target/logs/$target" >&2
        failed="$failed $target"
    fi
done
[ -z "$failed" ] || { echo "fuzz: inputs that failed lie in fuzz/artifacts:$failed" >&2; exit 1; }
