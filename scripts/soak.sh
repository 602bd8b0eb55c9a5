#!/usr/bin/env bash
# Ten minutes of the offload engine under random use: schedules from a seed that nobody has
# tried, then threads on every backend, with and without faults. Never part of a test; a
# schedule that fails prints the command that repeats it.
#   SOAK_SECONDS   how long in all (600)
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/build.sh"
cd "$ROOT"
meson_build test -Dpython=disabled -Dwerror=true
seconds=${SOAK_SECONDS:-600}
backends=9
seed=$(date +%s)

say "schedules, from seed $seed"
build/test/tests/c/offload/test_offload_explore "$seed" $((seconds / 2))

say "threads"
export MEMSCALE_TEST_LIBCUDA=$ROOT/build/test/tests/cuda_double/libcuda_double.so
MEMSCALE_SOAK_SECONDS=$((seconds / 2 / backends)) build/test/tests/c/test_offload_random
