#!/bin/sh
# Runs engines of fixed and of varying plans under valgrind's memcheck: built, loaded, bound to shapes and run, so that
# what reads memory that nobody wrote, or memory beyond what was asked for, is found.
#
#   tests/valgrind.sh [TEST...]       one test of each by default; tests are those of planforge-cpu
#
# Valgrind knows instructions up to AVX2 and says so to the program, which stays below: kernels of higher levels are
# watched by AddressSanitizer (fuzz/sanitize.sh).
set -eu

# As the runner of a test binary: what only lists its tests need not be watched.
if [ "${1:-}" = --run ]; then
    shift
    case " $* " in *" --list "*) exec "$@" ;; esac
    exec valgrind --quiet --error-exitcode=99 --track-origins=yes --num-callers=30 "$@"
fi

cd "$(dirname "$0")/.."
if ! command -v valgrind >/dev/null 2>&1; then
    echo "tests/valgrind.sh: missing: valgrind" >&2
    echo "hint: on Debian or Ubuntu: sudo apt-get install valgrind" >&2
    exit 1
fi
host=$(rustc -vV | sed -n 's/^host: //p')
runner=CARGO_TARGET_$(echo "$host" | tr 'a-z-' 'A-Z_')_RUNNER
export "$runner=$PWD/tests/valgrind.sh --run"
[ $# -gt 0 ] || set -- every_tactic_can_be_forced_and_agrees shapes_that_follow_from_shapes_are_right_everywhere
# One after another, so that a name that no test has any more is an error. Of the package alone, so that the binaries of
# others are not asked for their tests; they are built, for without them features, and all artefacts, would be others.
for test in "$@"; do
    cargo nextest run --locked --workspace -E "package(planforge-cpu) & test(/(^|::)$test\$/)"
done
