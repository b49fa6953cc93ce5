#!/bin/sh
# Runs planforge commands as the steps of a CI job: grouped in the job's log, with annotations, a summary and a comment in
# Markdown, and results as JUnit.
#
#   planforge-ci.sh [STEP...]
#
# Each STEP is what stands behind `planforge` on a command line, in one word: planforge-ci.sh check 'fetch -o engines/'.
# Without any, PLANFORGE_CI_STEPS has them, a line each (lines that begin with # say nothing); without that, `check`. The
# first step that fails ends the run with its exit code; those behind it are skipped.
#
# Environment: PLANFORGE_SERVER (required), PLANFORGE_TOKEN, PLANFORGE_CA, PLANFORGE_PROJECT; PLANFORGE_BIN, the binary
# where it is not `planforge` on the PATH; PLANFORGE_CI_TITLE, what the summary is called; PLANFORGE_CI_MARKDOWN and
# PLANFORGE_CI_JUNIT, files to write (planforge-ci.md and planforge-ci.xml). GitHub's and GitLab's own variables say whose
# log it is. Nothing asks a question, and nothing is coloured.
set -eu

title=${PLANFORGE_CI_TITLE:-planforge}
markdown=${PLANFORGE_CI_MARKDOWN:-planforge-ci.md}
junit=${PLANFORGE_CI_JUNIT:-planforge-ci.xml}
planforge=${PLANFORGE_BIN:-planforge}
# Lines of a failed step's end that summary and results repeat.
shown=40

fail() {
    echo "planforge-ci: $1" >&2
    exit 2
}

command -v "$planforge" >/dev/null 2>&1 || fail "cannot find '$planforge': install it or set PLANFORGE_BIN"
[ -n "${PLANFORGE_SERVER:-}" ] || fail "PLANFORGE_SERVER is not set: it names the coordinator, such as https://farm.example:8443"
if [ $# -eq 0 ]; then
    steps=$(printf '%s\n' "${PLANFORGE_CI_STEPS:-check}" | sed 's/^[[:space:]]*//; s/[[:space:]]*$//; /^#/d; /^$/d')
    [ -n "$steps" ] || fail "PLANFORGE_CI_STEPS names no step"
    line_feed='
'
    old=$IFS
    IFS=$line_feed
    set -f
    # shellcheck disable=SC2086
    set -- $steps
    set +f
    IFS=$old
fi
export NO_COLOR=1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# What a text is in XML and HTML: without what neither may hold.
escaped() {
    LC_ALL=C tr -d '\000-\010\013\014\016-\037' | sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g; s/"/\&quot;/g'
}

# What a text is in a workflow command of GitHub's, a line.
annotated() {
    sed 's/%/%25/g' | tr -d '\r\n'
}

group_begins() {
    if [ "${GITHUB_ACTIONS:-}" = true ]; then
        printf '::group::%s\n' "$2"
    elif [ "${GITLAB_CI:-}" = true ]; then
        printf '\033[0Ksection_start:%s:planforge_%s\r\033[0K%s\n' "$(date +%s)" "$1" "$2"
    else
        printf '\n== %s\n' "$2"
    fi
}

group_ends() {
    if [ "${GITHUB_ACTIONS:-}" = true ]; then
        echo '::endgroup::'
    elif [ "${GITLAB_CI:-}" = true ]; then
        printf '\033[0Ksection_end:%s:planforge_%s\r\033[0K\n' "$(date +%s)" "$1"
    fi
}

# Errors and warnings of a step, where the service shows such things.
annotate() {
    [ "${GITHUB_ACTIONS:-}" = true ] || return 0
    level=$1 label=$2 name=$3 log=$4
    sed -n "s/^$label: //p" "$log" | head -n 10 | while IFS= read -r line; do
        printf '::%s title=%s::%s\n' "$level" "$(printf %s "$name" | annotated | sed 's/:/%3A/g; s/,/%2C/g')" \
            "$(printf %s "$line" | annotated)"
    done
}

# What an exit code of planforge means, in a word or two; `planforge --help` has them all.
meaning() {
    case $1 in
    1) echo "a job failed, or an engine that is declared is missing or stale" ;;
    2) echo "a mistake in the call" ;;
    3) echo "something is missing" ;;
    4) echo "the coordinator cannot be reached" ;;
    5) echo "the token does not allow it" ;;
    6) echo "refused" ;;
    7) echo "conflict" ;;
    8) echo "something is full" ;;
    9) echo "slower than allowed, or nobody can tell" ;;
    70) echo "a bug or a broken store" ;;
    *) echo "ended badly" ;;
    esac
}

status=0 number=0 failed=0 skipped=0
: >"$work/rows"
: >"$work/details"
: >"$work/cases"
for step in "$@"; do
    number=$((number + 1))
    name="planforge $step"
    told=$(printf %s "$name" | escaped)
    if [ "$status" -ne 0 ]; then
        skipped=$((skipped + 1))
        printf '| :white_circle: | <code>%s</code> | skipped | |\n' "$told" >>"$work/rows"
        printf '    <testcase classname="planforge" name="%s" time="0"><skipped/></testcase>\n' "$told" >>"$work/cases"
        continue
    fi
    log=$work/$number.log
    group_begins "$number" "$name"
    began=$(date +%s)
    {
        code=0
        # The step's own quotes hold, as on a command line.
        (eval "set -- $step" && exec "$planforge" "$@") </dev/null 2>&1 || code=$?
        echo "$code" >"$work/code"
    } | tee "$log"
    code=$(cat "$work/code")
    took=$(($(date +%s) - began))
    group_ends "$number"
    annotate warning warning "$name" "$log"
    if [ "$code" -eq 0 ]; then
        printf '| :white_check_mark: | <code>%s</code> | done | %s s |\n' "$told" "$took" >>"$work/rows"
        printf '    <testcase classname="planforge" name="%s" time="%s"/>\n' "$told" "$took" >>"$work/cases"
        continue
    fi
    status=$code failed=$((failed + 1))
    why="exit code $code: $(meaning "$code")"
    annotate error error "$name" "$log"
    if [ "${GITHUB_ACTIONS:-}" = true ]; then
        printf '::error title=planforge::%s: %s\n' "$(printf %s "$name" | annotated)" "$why"
    else
        echo "planforge-ci: $name: $why" >&2
    fi
    printf '| :x: | <code>%s</code> | %s | %s s |\n' "$told" "$why" "$took" >>"$work/rows"
    {
        printf '\n<details open><summary><code>%s</code></summary>\n\n<pre>\n' "$told"
        tail -n "$shown" "$log" | escaped
        printf '</pre>\n</details>\n'
    } >>"$work/details"
    {
        printf '    <testcase classname="planforge" name="%s" time="%s">\n      <failure message="%s">' "$told" "$took" "$why"
        tail -n "$shown" "$log" | escaped
        printf '</failure>\n    </testcase>\n'
    } >>"$work/cases"
done

{
    # By this line a later run finds the comment that it takes the place of.
    printf '<!-- planforge-ci: %s -->\n' "$(printf %s "$title" | tr -d '<>-')"
    printf '### %s: %s\n\n| | step | result | time |\n|---|---|---|---|\n' "$(printf %s "$title" | escaped)" \
        "$([ "$status" -eq 0 ] && echo passed || echo failed)"
    cat "$work/rows" "$work/details"
} >"$markdown"
{
    printf '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n'
    printf '  <testsuite name="%s" tests="%s" failures="%s" skipped="%s">\n' "$(printf %s "$title" | escaped)" "$number" "$failed" "$skipped"
    cat "$work/cases"
    printf '  </testsuite>\n</testsuites>\n'
} >"$junit"
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
    cat "$markdown" >>"$GITHUB_STEP_SUMMARY"
fi
if [ -n "${GITHUB_OUTPUT:-}" ]; then
    printf 'exit-code=%s\nmarkdown=%s\njunit=%s\n' "$status" "$markdown" "$junit" >>"$GITHUB_OUTPUT"
fi
exit "$status"
