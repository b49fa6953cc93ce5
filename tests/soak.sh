#!/bin/sh
# Runs the tests that draw random inputs again and again, each round with another seed, and keeps what failed. Every
# tenth round are the faults: five minutes of chaos, processes killed, disks full, tokens revoked, clocks set back, logs
# cut, backups of a farm at work, and ten thousand plans changed and sealed again; their processes meet in another order
# each time. PLANFORGE_CHAOS_S says how long the chaos lasts.
#
#   tests/soak.sh [SECONDS] [NEXTEST-FILTER]       600 seconds and every property test by default
#
# A failing round prints the seed that fails again, with the command. Fuzzing has its own loop: fuzz/run.sh SECONDS.
set -eu
cd "$(dirname "$0")/.."

seconds=${1:-600}
filter=${2:-'test(/(^|::)(convolutions|movements|products)$/) or test(/agrees?_with|_is_its_definition$|_never_panic$/)
 or test(/every_history|any_spelling|specs_that_differ|fixed_point$|to_the_nanosecond$|never_overlaps$|graph_digest$/)
 or test(/keeps_its_digests$|changed_weight|changed_meaning/)'}
faults='(package(planforge-tests) and (binary(chaos) or binary(chaos_fleet) or binary(faults) or binary(full_disk)
 or binary(cut_replies) or binary(memory))) or binary(backup)
 or test(/revo[ck]|set_back|ends_at_any_frame|keeps_the_promises|whoever_waits_comes_back|checked_backed_up/)
 or test(mutants_of_plans_that_are_sealed_again_never_panic)'
logs=target/soak
export PLANFORGE_CHAOS_S="${PLANFORGE_CHAOS_S:-300}"
mkdir -p "$logs"
export PROPTEST_DISABLE_FAILURE_PERSISTENCE=1
cargo build --locked
export PLANFORGE_BIN="${PLANFORGE_BIN:-$PWD/target/debug/planforge}"
cargo nextest run --locked --workspace -E "$filter" --no-run
begin=$(date +%s)
rounds=0
failed=0
while [ $(($(date +%s) - begin)) -lt "$seconds" ]; do
    seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
    rounds=$((rounds + 1))
    set -- "$filter"
    if [ $((rounds % 10)) -eq 1 ]; then
        set -- "$faults"
        export PROPTEST_CASES=10000
    else
        unset PROPTEST_CASES
    fi
    if ! PROPTEST_RNG_SEED=$seed cargo nextest run --profile soak --locked --workspace -E "$1" --failure-output=final >"$logs/$seed" 2>&1; then
        failed=$((failed + 1))
        sed -n 's/^ *FAIL .*) *//p' "$logs/$seed" | sort -u
        echo "soak: failed with PROPTEST_RNG_SEED=$seed; its output is $logs/$seed" >&2
    else
        rm "$logs/$seed"
    fi
done
echo "soak: $rounds rounds, $failed failed"
[ "$failed" -eq 0 ]
