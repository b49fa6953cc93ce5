#!/bin/bash
# How much cold builds of one model differ: builds.sh PLANFORGE OUT BUILDS [MODEL|FILE.onnx...]
#
# Builds every model so many times, each time in an empty folder, in turns, and measures each plan in the job that built
# it; only the device's ceilings and the models' right outputs are taken along, which no search reads. A line for each
# build is in OUT/builds.txt (model, number, median in us, seconds of the build), what the search said of its stages in
# OUT/stages.txt. Run again it goes on where it ended. With KEEP_CACHES the tactics that each build knew are kept in OUT
# too.
set -u
planforge=$(realpath "$1"); mkdir -p "$2"; out=$(realpath "$2"); builds=$3; shift 3
models=${*:-mobilenet-v3-large efficientnet-b0 resnet50 bert-base vit-b-16 yolo-s}
work=${WORK:-$(mktemp -d)}; mkdir -p "$work"; cd "$work" || exit 1
export NO_COLOR=1
# What is looked for is what searches differ by, and each takes longer than that.
export PLANFORGE_MEASURE_BUDGET_S=${PLANFORGE_MEASURE_BUDGET_S:-4}
touch "$out/builds.txt"
for number in $(seq "$builds"); do
    for model in $models; do
        name=$(basename "$model" .onnx)
        grep -q "^$name $number " "$out/builds.txt" && continue
        [ -e "$name.onnx" ] || "$planforge" testmodel "$name" -o "$name.onnx" >/dev/null || continue
        export PLANFORGE_DATA=$work/data-$name-$number
        mkdir -p known "$PLANFORGE_DATA"
        cp -r known/. "$PLANFORGE_DATA"
        PLANFORGE_LOG=info timeout 150 "$planforge" build "$name.onnx" --precision fp16 -o "$name-$number.plan" >last.txt 2>&1 || {
            echo "FAILED: $name: $(tail -c 300 last.txt)"
            continue
        }
        us=$(sed -n 's/^latency *\([0-9.]*\) us median.*/\1/p' last.txt)
        seconds=$(sed -n 's/^build *\([0-9.]*\) s, .*/\1/p' last.txt)
        echo "$name $number $us $seconds" | tee -a "$out/builds.txt"
        job=$("$planforge" jobs | grep -oE '^[0-9a-z]{12}' | head -1)
        { echo "## $name $number"; "$planforge" logs "$job" | grep -aE 'candidates are|kernels without|in the process that|spread over|exchanged again|those tactics'; } >>"$out/stages.txt"
        [ -z "${KEEP_CACHES:-}" ] || find "$PLANFORGE_DATA" -name '*.cache' -exec gzip -c {} + >"$out/$name-$number.cache.gz"
        (cd "$PLANFORGE_DATA" && find . -type d \( -name ceilings -o -name oracles \) -exec cp -r --parents {} "$work/known" \;)
        rm -rf "$PLANFORGE_DATA"
    done
done
awk '{ if (!($1 in least) || $3 < least[$1]) least[$1] = $3; if ($3 > most[$1]) most[$1] = $3; count[$1]++; if ($4 > slow[$1]) slow[$1] = $4 }
     END { for (name in count) printf "%-20s %d builds, %.1f to %.1f us, %.1f %% apart, the slowest in %.1f s\n", name, count[name], least[name], most[name], 100 * (most[name] / least[name] - 1), slow[name] }' "$out/builds.txt" | sort
