#!/bin/bash
# What hostile holders of good tokens tried, again, as large as it was: 20,000 identities of one token, a flood of words,
# 100,000 jobs of one project while another submits. Takes minutes; CI runs the same tests at a twentieth.
set -euo pipefail
cd "$(dirname "$0")/.."
export PLANFORGE_ATTACK_SCALE=${PLANFORGE_ATTACK_SCALE:-20}
cargo nextest run --locked --workspace --test it --test confine -E 'test(attacks::) or binary(confine)' "$@"
