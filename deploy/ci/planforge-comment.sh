#!/bin/sh
# Puts the summary that planforge-ci.sh wrote under the pull or merge request, in place of the one before.
#
#   planforge-comment.sh [FILE]
#
# On GitHub with `gh` and GH_TOKEN (pull-requests: write) for the pull request whose number PLANFORGE_CI_PULL_REQUEST is; on GitLab with
# curl and PLANFORGE_CI_GITLAB_TOKEN (api) for CI_MERGE_REQUEST_IID. Elsewhere, or without a request, it says so and ends
# well: a summary that nobody gets fails no build.
set -eu

file=${1:-${PLANFORGE_CI_MARKDOWN:-planforge-ci.md}}
[ -f "$file" ] || {
    echo "planforge-comment: no summary $file: planforge-ci.sh writes it" >&2
    exit 2
}
mark=$(head -n 1 "$file")
if [ -n "${PLANFORGE_CI_PULL_REQUEST:-}" ]; then
    comments=repos/$GITHUB_REPOSITORY/issues
    before=$(MARK=$mark gh api --paginate "$comments/$PLANFORGE_CI_PULL_REQUEST/comments" \
        --jq '.[] | select(.body | startswith(env.MARK)) | .id' | tail -n 1)
    if [ -n "$before" ]; then
        exec gh api --silent --method PATCH "$comments/comments/$before" --field "body=@$file"
    fi
    exec gh api --silent --method POST "$comments/$PLANFORGE_CI_PULL_REQUEST/comments" --field "body=@$file"
fi
if [ -z "${CI_MERGE_REQUEST_IID:-}" ] || [ -z "${PLANFORGE_CI_GITLAB_TOKEN:-}" ]; then
    echo "planforge-comment: no pull or merge request to comment on"
    exit 0
fi
notes="$CI_API_V4_URL/projects/$CI_PROJECT_ID/merge_requests/$CI_MERGE_REQUEST_IID/notes"
# From a file that only this user can read: a command line is everybody's.
umask 077
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'header = "PRIVATE-TOKEN: %s"\n' "$PLANFORGE_CI_GITLAB_TOKEN" >"$work/curl"
ask() { curl --silent --show-error --fail --config "$work/curl" "$@"; }
ask "$notes?per_page=100&order_by=created_at&sort=desc" >"$work/notes"
# Of every note its id stands before its body.
before=$(tr '{' '\n' <"$work/notes" | MARK=$mark awk 'index($0, ENVIRON["MARK"]) && match($0, /"id":[0-9]+/) {
    print substr($0, RSTART + 5, RLENGTH - 5); exit }')
if [ -n "$before" ]; then
    ask --request PUT --data-urlencode "body@$file" "$notes/$before" >/dev/null
else
    ask --request POST --data-urlencode "body@$file" "$notes" >/dev/null
fi
