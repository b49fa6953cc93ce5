#!/bin/bash
# Applies the recipes' patches to a copy of the tree, in target/, and compiles what comes of them: a recipe that names
# other places than those that a thing takes fails here. Their own tests run, too. With `--applies` nothing is compiled,
# which takes a second: that a patch no longer applies is seen before everything else is built. A patch has one line of
# context (`git diff -U1`): it outlives what happens to lines that are not its neighbours.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD copy=$PWD/target/recipes target=${CARGO_TARGET_DIR:-$PWD/target}

stale() {
    echo "$0: $1 does not apply any more: make the change by hand and write the patch anew" >&2
    exit 1
}
if [ "${1:-}" = --applies ]; then
    for patch in docs/recipes/*.patch; do
        git apply --check "$patch" || stale "$patch"
    done
    exit
fi

rm -rf "$copy"
mkdir -p "$copy"
trap 'rm -rf "$copy"' EXIT
# With their times, by which cargo tells that a file is the one it has compiled.
git ls-files -z | xargs -0 cp --parents --no-dereference --preserve=timestamps --target-directory "$copy"
# Cargo names a crate's artefacts by where it lies in its workspace, not by where that is: those of the tree are good for
# what no patch touches, and those of patched crates would pass for the tree's. So the copy begins with links to what is
# compiled and writes beside it. What cargo and the compiler write in place is copied, or not taken along.
mkdir -p "$copy/target/debug"
if [ -d "$target/debug/.fingerprint" ]; then
    cp --archive "$target/debug/.fingerprint" "$copy/target/debug/"
    cp --archive --link "$target/debug/build" "$target/debug/deps" "$copy/target/debug/"
    find "$copy/target/debug/deps" -name '*.d' -delete
fi
# What the tree's artefacts are, to see that they stay.
artefacts() { find "$target/debug/deps" -name 'libplanforge_*' -printf '%p %i %s %T@\n' 2>/dev/null | sort; }
before=$(artefacts)
cd "$copy"
for patch in "$root"/docs/recipes/*.patch; do
    # Outside of the repository's reach, so that paths count from here.
    GIT_CEILING_DIRECTORIES=$root/target git apply --verbose "$patch" || stale "$patch"
done
export CARGO_TARGET_DIR=$copy/target
# As the documentation's step in .ci/run, whose artefacts serve here.
cargo check --locked --workspace --lib --bins --example transfer
cargo test --locked --package planforge-graph --lib determinant
if [ "$(artefacts)" != "$before" ]; then
    echo "$0: artefacts of the tree changed meanwhile: by another build, or those of patched crates took their place" >&2
    echo "hint: run it again while nothing else is built" >&2
    exit 1
fi
