#!/bin/sh
# Runs the CPU kernels at the edges of their buffers, and on arguments that no engine gives, and the reader of models and
# plans on the fuzzers' seeds and on what lies near them, under AddressSanitizer.
#
#   fuzz/sanitize.sh [CARGO-TEST-ARGUMENTS]
#
# A stable compiler has the sanitizer but does not let one use it; RUSTC_BOOTSTRAP=1 says that we know. To look
# further with it: FUZZ_SANITIZER=address fuzz/run.sh, which takes many minutes to build.
set -eu
cd "$(dirname "$0")/sanitized"
# With --target, the flag does not reach build scripts.
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address
# In the fuzz targets' folder, whose macros and build scripts serve here.
cargo test --release --quiet --locked --no-fail-fast --target "$(rustc -vV | sed -n 's/^host: //p')" \
    --target-dir "${CARGO_TARGET_DIR:-../target}" "$@"
