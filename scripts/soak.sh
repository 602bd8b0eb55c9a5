#!/usr/bin/env bash
# Runs random use for ten minutes: schedules of the offload engine from a new seed; threads on every backend,
# with and without faults; then random models under random plans, faults and interrupts, each beside an
# unwrapped twin. No test runs this. If a schedule or model fails, it prints the command that repeats it.
#   SOAK_SECONDS   total time in seconds (600)
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/build.sh"
cd "$ROOT"
build_plain
seconds=${SOAK_SECONDS:-600}
backends=9
seed=$(date +%s)

say "schedules, from seed $seed"
build/test/tests/c/offload/test_offload_explore "$seed" $((seconds / 3))

say "threads"
export MEMSCALE_TEST_LIBCUDA=$ROOT/build/test/tests/cuda_double/libcuda_double.so
MEMSCALE_SOAK_SECONDS=$((seconds / 3 / backends)) build/test/tests/c/test_offload_random

say "models, from seed $seed"
mkdir -p build/pytest
cd build/pytest # a folder without the sources, so that the installed package is tried
"$VENV/bin/python" -W ignore "$ROOT/tests/python/soak.py" "$seed" $((seconds / 3))
