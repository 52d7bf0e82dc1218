#!/bin/sh
# Puts plan.md up as the one comment of a pull request: the one of before is edited.
# Needs GH_TOKEN, REPOSITORY (owner/name) and NUMBER; AUTHOR is as whom the token comments. A comment
# of anybody else that begins alike is left alone: its author could change it after the plan is there.
# Where the comments can't be listed it ends, rather than putting up a second one.
set -eu
MARKER="$(head -n 1 plan.md)"
AUTHOR="${AUTHOR:-github-actions[bot]}"
export MARKER AUTHOR
listed="$(gh api --paginate "repos/$REPOSITORY/issues/$NUMBER/comments?per_page=100" \
  --jq '.[] | select(.user.login == env.AUTHOR and (.body | startswith(env.MARKER))) | .id')"
known="$(printf '%s\n' "$listed" | head -n 1)"
if [ -n "$known" ]; then
  gh api --method PATCH "repos/$REPOSITORY/issues/comments/$known" --field body=@plan.md >/dev/null
else
  gh api "repos/$REPOSITORY/issues/$NUMBER/comments" --field body=@plan.md >/dev/null
fi
