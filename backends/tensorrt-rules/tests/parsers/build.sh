#!/bin/bash
# Builds the option parser of every TensorRT version from NVIDIA's published sources, each with driver.cpp around it:
#
#     build.sh CLONE FOLDER [TAG...]
#
# CLONE is a clone of github.com/NVIDIA/TensorRT with its tags (a bare one will do), FOLDER gets one program a version.
# CUDA's headers are taken from CUDA_HOME, else from Python
# packages; nlohmann-json3-dev is needed for 11.x. Then, from the repository's root:
#
#     PLANFORGE_TENSORRT_PARSERS=FOLDER cargo nextest run -p planforge-tensorrt-rules --test command_lines --no-capture
set -euo pipefail
clone=$1 folder=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
# Packages of one CUDA, and their headers' folders.
cuda() {
    local release=$1 parts=(cuda_runtime cuda_nvcc cuda_cccl) names=() part
    for part in "${parts[@]}"; do
        names+=("nvidia-${part/_/-}-cu$release")
    done
    if [ -n "${CUDA_HOME:-}" ]; then
        headers=(-I"$CUDA_HOME/include")
        return
    fi
    local packages=$folder/cuda-$release
    [ -d "$packages" ] || python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps \
        --target "$packages" "${names[@]}"
    headers=()
    for part in "${parts[@]}"; do
        headers+=(-I"$packages/nvidia/$part/include")
    done
}
tags=("$@")
[ ${#tags[@]} -gt 0 ] || mapfile -t tags < <(git -C "$clone" tag | grep -E '^(8\.[2-9]|v8\.|v9\.|v1[0-9]\.)')
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
for tag in "${tags[@]}"; do
    rm -rf "${scratch:?}"/*
    # Not every version has every folder.
    for part in include samples/common samples/utils shared parsers/common; do
        git -C "$clone" cat-file -e "$tag:$part" 2>/dev/null || continue
        git -C "$clone" archive "$tag" "$part" | tar -x -C "$scratch"
    done
    # The version whose sources a tag holds: v9.3.0 has those of 9.2.0, and 9.3.0 has none of its own.
    number=${tag#v}
    case $tag in
        *-EA) number=${number%-EA} ;;
        v9.2.0) continue ;;
        v9.3.0) number=9.2.0 ;;
        v*.*.*) ;;
        v*.*) number+=.0 ;;
    esac
    program=$folder/parser-$number
    [ ! -x "$program" ] || continue
    case $tag in
        8.* | v8.*) cuda 11 ;;
        *) cuda 12 ;;
    esac
    # A header of the ONNX parser's own repository; the option parser only passes the name on.
    [ -f "$scratch/include/NvOnnxParser.h" ] || cat >"$scratch/include/NvOnnxParser.h" <<'EOF'
#pragma once
namespace nvonnxparser
{
class IParser;
}
EOF
    # 8.6.0 prints half precision, which the headers of its CUDA could.
    cat >"$scratch/half.h" <<'EOF'
#pragma once
#include <cuda_fp16.h>
#include <ostream>
inline std::ostream& operator<<(std::ostream& os, __half value)
{
    return os << static_cast<float>(value);
}
EOF
    quirks=()
    [ "$tag" != v8.6.0 ] || quirks=(-include "$scratch/half.h")
    sources=("$here/driver.cpp" "$scratch/samples/common/sampleOptions.cpp")
    for extra in sampleUtils bfloat16 logger; do
        source=$scratch/samples/common/$extra.cpp
        [ ! -f "$source" ] || sources+=("$source")
    done
    # The parser calls little of what its files hold; the rest of TensorRT and CUDA is neither there nor needed.
    if c++ -std=c++17 -w -O0 -fno-pie -no-pie -DTRT_STATIC=0 -ffunction-sections -fdata-sections \
        -I"$scratch/include" -I"$scratch/samples/common" -I"$scratch/samples" -I"$scratch/shared" "${headers[@]}" "${quirks[@]}" \
        "${sources[@]}" -Wl,--gc-sections -Wl,--unresolved-symbols=ignore-all -ldl -o "$program" 2>"$folder/$tag.log"; then
        rm "$folder/$tag.log"
        echo "$tag: $program"
    else
        echo "$tag: does not build, see $folder/$tag.log" >&2
        failed=1
    fi
done
[ ! -x "$folder/parser-9.2.0" ] || cp "$folder/parser-9.2.0" "$folder/parser-9.3.0"
exit $failed
