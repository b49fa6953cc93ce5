#!/bin/sh
# Passes the tests: installs what they need when it may, otherwise says exactly what is missing.
# Needs Rust, a C compiler (for SQLite and ring) and a C++ compiler (for kernels on the host).
set -eu
cd "$(dirname "$0")"

missing=""
have() { command -v "$1" >/dev/null 2>&1; }

have cargo || { echo "test.sh: Rust is missing: install it with rustup, then run this again" >&2; exit 1; }
have cc || missing="$missing gcc libc6-dev"
# CUDA kernels are run on the host, compiled as C++.
have "${CXX:-c++}" || missing="$missing g++"
have chromium || missing="$missing chromium"
# Pictures of the pages are drawn with these fonts.
[ -f /usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf ] || missing="$missing fonts-dejavu-core"
have curl || missing="$missing curl"
# The store of several coordinators is tested against a real server, which each test starts for itself.
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
# The ONNX backend cases come out of a Python package, which gets an environment of its own.
{ have python3 && python3 -c 'import ensurepip, venv' 2>/dev/null; } || missing="$missing python3-venv"

if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && have apt-get; then
        echo "test.sh: installing$missing" >&2
        apt-get update -qq >/dev/null
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null
    else
        echo "test.sh: missing:$missing" >&2
        echo "hint: on Debian or Ubuntu: sudo apt-get install$missing" >&2
        exit 1
    fi
fi
if ! cargo nextest --version >/dev/null 2>&1; then
    echo "test.sh: installing cargo-nextest" >&2
    cargo install --locked cargo-nextest
fi

cases=target/onnx-cases
if [ ! -f "$cases/cases.json" ]; then
    echo "test.sh: making the ONNX backend cases" >&2
    python=target/onnx-venv/bin/python3
    packages=$(sed -n 's/^REQUIREMENTS = "\(.*\)"/\1/p' tests/conformance/generate.py)
    # shellcheck disable=SC2086
    if ! { [ -x "$python" ] || python3 -m venv target/onnx-venv; } \
        || ! "$python" -m pip install --quiet --disable-pip-version-check $packages \
        || ! "$python" -W ignore tests/conformance/generate.py "$cases" >&2; then
        echo "test.sh: missing: the ONNX backend cases; they need the Python packages $packages" >&2
        echo "hint: where those are installed: python3 tests/conformance/generate.py $cases" >&2
        [ -z "${CI:-}" ] || exit 1
    fi
fi

# Templates for CI services are held to their schemas.
if [ ! -x target/onnx-venv/bin/check-jsonschema ]; then
    echo "test.sh: installing check-jsonschema" >&2
    if ! { [ -x target/onnx-venv/bin/python3 ] || python3 -m venv target/onnx-venv; } \
        || ! target/onnx-venv/bin/python3 -m pip install --quiet --disable-pip-version-check check-jsonschema==0.39.0; then
        echo "test.sh: missing: check-jsonschema; the templates in deploy/ci are not checked" >&2
        [ -z "${CI:-}" ] || exit 1
    fi
fi

# The tests of the onnxruntime backend need its library, which the Python package carries; of that nothing else is used.
if [ -z "${PLANFORGE_ONNXRUNTIME:-}" ]; then
    runtime=target/onnxruntime-package
    if [ ! -d "$runtime" ]; then
        echo "test.sh: installing onnxruntime into $runtime" >&2
        if ! { [ -x target/onnx-venv/bin/python3 ] || python3 -m venv target/onnx-venv; } \
            || ! target/onnx-venv/bin/python3 -m pip install --quiet --disable-pip-version-check --no-deps \
                --target "$runtime.part" onnxruntime==1.31.1; then
            echo "test.sh: missing: libonnxruntime; its tests are skipped" >&2
            echo "hint: set PLANFORGE_ONNXRUNTIME to libonnxruntime.so or the folder that holds it" >&2
            [ -z "${CI:-}" ] || exit 1
        else
            mv "$runtime.part" "$runtime"
        fi
    fi
    [ ! -d "$runtime" ] || export PLANFORGE_ONNXRUNTIME="$PWD/$runtime/onnxruntime/capi"
fi
[ -z "${PLANFORGE_ONNXRUNTIME:-}" ] || export PLANFORGE_TEST_ONNXRUNTIME=required

# The page is held to the rules of axe, which comes in a Python package, too.
if [ ! -d target/axe-package ]; then
    echo "test.sh: installing axe into target/axe-package" >&2
    if ! { [ -x target/onnx-venv/bin/python3 ] || python3 -m venv target/onnx-venv; } \
        || ! target/onnx-venv/bin/python3 -m pip install --quiet --disable-pip-version-check --no-deps \
            --target target/axe-package.part axe-playwright-python==0.1.8; then
        echo "test.sh: missing: axe; the page is not held to its rules" >&2
        [ -z "${CI:-}" ] || exit 1
    else
        mv target/axe-package.part target/axe-package
    fi
fi

# Programs out of Debian's packages: unpacked, not installed, which would start services.
unpack() {
    folder=target/$1-package
    [ ! -d "$folder" ] || return 0
    echo "test.sh: unpacking $1 into $folder" >&2
    rm -rf "$folder.part"
    mkdir -p "$folder.part"
    if ! { have apt-get && have dpkg-deb; } \
        || ! (cd "$folder.part" \
            && { apt-get download -qq "$1" || { apt-get update -qq && apt-get download -qq "$1"; }; } \
            && dpkg-deb -x "$1"_*.deb . && rm "$1"_*.deb) >/dev/null; then
        echo "test.sh: missing: $1; $2" >&2
        [ -z "${CI:-}" ] || exit 1
    else
        mv "$folder.part" "$folder"
    fi
}
unpack prometheus "what the farm tells it is not scraped"
unpack kubernetes-client "manifests in deploy/kubernetes are not rendered"
if [ ! -x target/onnx-venv/bin/kubernetes-validate ]; then
    echo "test.sh: installing kubernetes-validate" >&2
    if ! target/onnx-venv/bin/python3 -m pip install --quiet --disable-pip-version-check kubernetes-validate==1.36.0; then
        echo "test.sh: missing: kubernetes-validate; manifests in deploy/kubernetes are not held to schemas" >&2
        [ -z "${CI:-}" ] || exit 1
    fi
fi

# Beside the server that tests of S3 bring along, blobs are stored in one more.
if [ ! -x target/onnx-venv/bin/moto_server ]; then
    echo "test.sh: installing moto" >&2
    if ! { [ -x target/onnx-venv/bin/python3 ] || python3 -m venv target/onnx-venv; } \
        || ! target/onnx-venv/bin/python3 -m pip install --quiet --disable-pip-version-check 'moto[server]==5.2.5'; then
        echo "test.sh: missing: moto; blobs are stored in one S3 server only" >&2
        [ -z "${CI:-}" ] || exit 1
    fi
fi

# The CUDA kernels are compiled for every architecture, which takes NVRTC and no GPU; it comes as a Python package.
nvrtc=target/nvrtc-package
if [ ! -d "$nvrtc" ]; then
    echo "test.sh: installing NVRTC into $nvrtc" >&2
    if ! { [ -x target/onnx-venv/bin/python3 ] || python3 -m venv target/onnx-venv; } \
        || ! target/onnx-venv/bin/python3 -m pip install --quiet --disable-pip-version-check --no-deps \
            --target "$nvrtc.part" 'nvidia-cuda-nvrtc==13.0.*'; then
        echo "test.sh: missing: NVRTC; the CUDA kernels are compiled only where another is found" >&2
        [ -z "${CI:-}" ] || exit 1
    else
        mv "$nvrtc.part" "$nvrtc"
    fi
fi
if [ -d "$nvrtc" ]; then
    PLANFORGE_CUDA_LIBS="$PWD/$nvrtc/nvidia/cu13/lib${PLANFORGE_CUDA_LIBS:+:$PLANFORGE_CUDA_LIBS}"
    export PLANFORGE_CUDA_LIBS PLANFORGE_NEED_NVRTC=1
fi

# Tests that lack a device, a library or a right pass all the same: each leaves its reasons here, and all are told at the
# end, however that comes.
export PLANFORGE_SKIPPED_TESTS="$PWD/target/skipped-tests"
rm -rf "$PLANFORGE_SKIPPED_TESTS"
mkdir -p "$PLANFORGE_SKIPPED_TESTS"
tell_skipped() {
    count=$(find "$PLANFORGE_SKIPPED_TESTS" -type f | wc -l)
    [ "$count" -gt 0 ] || { echo "test.sh: no test skipped anything"; return; }
    echo "test.sh: $count tests skipped what they need a device, a library or a right for; how often, and why:"
    cat "$PLANFORGE_SKIPPED_TESTS"/* | sort | uniq -c | sort -rn
    echo "test.sh: which: ls $PLANFORGE_SKIPPED_TESTS"
}
trap tell_skipped EXIT

# Benches and examples are held to what clippy says of every target; tests start one of them.
cargo build --locked --workspace --lib --bins --tests --example other-release
# The end-to-end tests start this binary; one built for them alone has other features of its dependencies, which takes
# minutes.
[ -n "${PLANFORGE_BIN:-}" ] || export PLANFORGE_BIN="$PWD/target/debug/planforge"
cargo nextest run --locked --workspace --lib --bins --tests --profile "${NEXTEST_PROFILE:-default}" "$@"
cargo test --locked --workspace --doc
