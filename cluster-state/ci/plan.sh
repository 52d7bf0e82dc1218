#!/bin/sh
# Plans HEAD against BASE, writes plan.md and plan.json, and tells how it went:
# 0 nothing changes or something does, 3 something of it is refused or will be held, anything else an error.
# With MUSTER_SERVER (and MUSTER_TOKEN_FILE), or a file of `muster snapshot` named by
# MUSTER_SNAPSHOT, it looks ahead; without, it says that it could not.
set -u
base="${1:?usage: ci/plan.sh BASE [HEAD]}"
head="${2:-HEAD}"
set -- plan --base "$base" --head "$head"
if [ -n "${MUSTER_SNAPSHOT:-}" ]; then set -- "$@" --against "$MUSTER_SNAPSHOT"; fi
muster "$@" -o json >plan.json
status=$?
case $status in 0 | 2 | 3) ;; *) exit "$status" ;; esac
muster "$@" -o markdown >plan.md
status=$?
case $status in 0 | 2) exit 0 ;; *) exit "$status" ;; esac
