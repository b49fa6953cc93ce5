#!/bin/sh
# Runs the CPU kernels at the edges of their buffers, and on arguments that no engine gives, under AddressSanitizer.
#
#   fuzz/sanitize.sh [CARGO-TEST-ARGUMENTS]
#
# A stable compiler has the sanitizer but does not let one use it; RUSTC_BOOTSTRAP=1 says that we know. What reads models
# and plans is watched by FUZZ_SANITIZER=address fuzz/run.sh, which takes minutes to build.
set -eu
cd "$(dirname "$0")/kernels"
# With --target, the flag does not reach build scripts.
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address
cargo test --quiet --locked --no-fail-fast --target "$(rustc -vV | sed -n 's/^host: //p')" --target-dir ../target/sanitized "$@"
