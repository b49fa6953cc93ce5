#!/bin/bash
# Builds the release packages from this checkout: build.sh OUT [GLIBC]
#
# OUT gets the tarball, the Debian package, the wheel, the list of what is inside (CycloneDX) and SHA256SUMS. The same
# commit is meant to give the same bytes wherever it is checked out: paths are taken out of the binary, times are the
# commit's.
#
# With GLIBC, 2.28 for instance, the binary is linked against that version, so that it runs on every system with it or a
# newer one: by zig's linker, which comes as a Python package. Without it the binary needs this machine's version, and
# the packages' names and dependencies say so. Needs Rust, a C compiler and Python with venv.
set -euo pipefail

out=${1:?build.sh OUT [GLIBC]}
glibc=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root"

[ -z "$(git status --porcelain)" ] || { echo "build.sh: this checkout has changes that no commit holds" >&2; exit 1; }
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
machine=$(uname -m)
target=$machine-unknown-linux-gnu
cargo_home=${CARGO_HOME:-$HOME/.cargo}
sysroot=$(rustc --print sysroot)
work=$root/target/release-packages
mkdir -p "$work"

# Where sources lay is nobody's business, and differs from machine to machine.
export RUSTFLAGS="--remap-path-prefix=$root=/planforge --remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$sysroot=/rust"
export CFLAGS="-ffile-prefix-map=$root=/planforge -ffile-prefix-map=$cargo_home=/cargo"
build=(cargo build)
full=$target
if [ -n "$glibc" ]; then
    venv=$work/venv
    [ -x "$venv/bin/python3" ] || python3 -m venv "$venv"
    "$venv/bin/python3" -m pip install --quiet --disable-pip-version-check ziglang==0.17.1 cargo-zigbuild==0.24.0 auditwheel==6.8.2
    PATH=$venv/bin:$PATH
    build=(cargo-zigbuild zigbuild)
    full=$target.$glibc
fi
"${build[@]}" --release --locked --bin planforge --target "$full" --target-dir "$work/target"
python3 "$here/sbom.py" --target "$target" >"$work/sbom.cdx.json"
cp "$work/target/$target/release/planforge" "$work/planforge"
# The small client: the same commit without this machine's own farm.
"${build[@]}" --release --locked --bin planforge --no-default-features --target "$full" --target-dir "$work/target"
python3 "$here/pack.py" "$work/planforge" --client "$work/target/$target/release/planforge" --out "$out" \
    --sbom "$work/sbom.cdx.json"
if [ -n "$glibc" ]; then
    auditwheel show "$out"/planforge-*.whl
fi
