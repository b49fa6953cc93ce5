#!/bin/bash
# Applies the recipes' patches to a copy of the tree, in target/, and compiles what comes of them: a recipe that names
# other places than those that a thing takes fails here. Their own tests run, too.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD copy=$PWD/target/recipes

rm -rf "$copy"
mkdir -p "$copy"
git ls-files -z | xargs -0 cp --parents --no-dereference --target-directory "$copy"
cd "$copy"
for patch in "$root"/docs/recipes/*.patch; do
    # Outside of the repository's reach, so that paths count from here.
    GIT_CEILING_DIRECTORIES=$root/target git apply --verbose "$patch" || {
        echo "$0: $patch does not apply any more: make the change by hand and write the patch anew" >&2
        exit 1
    }
done
# The same artefacts of other people's crates; those of this copy are its own.
export CARGO_TARGET_DIR=$root/target
cargo check --locked --workspace
cargo test --locked --package planforge-graph determinant
cd "$root"
rm -rf "$copy"
