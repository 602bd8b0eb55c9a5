#!/usr/bin/env bash
# All layers and loops of tests/python/nasty, each unwrapped twice and under five plans, then an interrupt at every
# line of memscale's Python in a step. About an hour on two cores; a sample is part of the tests. Prints what
# was not exact, and a summary; fails where a number was wrong.
#   NASTY_STRIDE   every n-th line only (1)
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
