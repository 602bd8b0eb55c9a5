#!/usr/bin/env bash
# Trains every layer and loop of tests/python/nasty twice unwrapped and once under each of five plans, then interrupts
# a step at every line of memscale's Python. Takes about an hour on two cores; `make test` runs a sample. Prints the
# runs that were not exact, and a summary. Fails if a number was wrong.
#   NASTY_STRIDE   interrupt only every n-th line (1)
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/build.sh"
mkdir -p "$ROOT/build/pytest"
cd "$ROOT/build/pytest"
export OMP_NUM_THREADS=1

say "layers and loops"
python -W ignore "$ROOT/tests/python/nasty/run.py" --output "$ROOT/build/nasty.txt"

say "interrupts"
python -W ignore "$ROOT/tests/python/nasty/interrupts.py" --stride "${NASTY_STRIDE:-1}"
