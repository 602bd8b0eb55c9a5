#!/usr/bin/env bash
# Trains every model of tests/compiled, compiled layer by layer, unwrapped and under every technique. Takes a minute a
# model on two idle cores. Prints a line for each model; fails if one lost a bit or was compiled again.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/build.sh"
mkdir -p "$ROOT/build/pytest"
cd "$ROOT/build/pytest"
PYTHONPATH="$ROOT/tests/python" python -W ignore "$ROOT/tests/compiled/run.py" "$@"
