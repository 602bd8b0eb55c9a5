#!/usr/bin/env bash
# Runs every loop of tests/loops, unwrapped and wrapped, each time in a process of its own. Takes a few minutes on two
# cores; `make test` runs the quickest loops. Prints a line for each loop; fails if a loop broke a promise.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/build.sh"
mkdir -p "$ROOT/build/pytest"
cd "$ROOT/build/pytest"
python -W ignore "$ROOT/tests/loops/run.py" "$@"
