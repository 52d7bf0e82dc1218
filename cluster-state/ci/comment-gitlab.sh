#!/bin/sh
# Puts plan.md up as the one note of a merge request: the one of before is edited.
# Needs MUSTER_GITLAB_TOKEN (role Reporter, scope api) as a masked variable. A note of anybody else
# that begins alike is left alone: its author could change it after the plan is there.
# Where the notes can't be listed it ends, rather than putting up a second one.
set -eu
url="$CI_API_V4_URL/projects/$CI_PROJECT_ID/merge_requests/$CI_MERGE_REQUEST_IID/notes"
# the token goes by a file, so that it stands in no list of processes
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
printf 'PRIVATE-TOKEN: %s\n' "$MUSTER_GITLAB_TOKEN" >"$folder/token"
ask() {
  curl --fail --silent --show-error --header "@$folder/token" --dump-header "$folder/answer" "$@"
}
MARKER="$(head -n 1 plan.md)"
self="$(ask "$CI_API_V4_URL/user")"
AUTHOR="$(printf '%s' "$self" | jq -er .id)"
export MARKER AUTHOR
known=""
page=1
while [ -n "$page" ] && [ -z "$known" ]; do
  listed="$(ask "$url?sort=asc&per_page=100&page=$page")"
  known="$(printf '%s' "$listed" | jq -r 'map(select((.author.id | tostring) == env.AUTHOR
    and (.body | startswith(env.MARKER)))) | .[0].id // empty')"
  page="$(tr -d '\r' <"$folder/answer" | sed -n 's/^[Xx]-[Nn]ext-[Pp]age: *//p')"
done
if [ -n "$known" ]; then
  ask --request PUT --data-urlencode body@plan.md "$url/$known" >/dev/null
else
  ask --data-urlencode body@plan.md "$url" >/dev/null
fi
