#!/usr/bin/env bash
# All loops of tests/loops, each unwrapped and wrapped in processes of their own. A few minutes on two cores; the
# quickest are part of the tests. Prints a line a loop; fails if a promise was not kept.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/build.sh"
mkdir -p "$ROOT/build/pytest"
cd "$ROOT/build/pytest"
python -W ignore "$ROOT/tests/loops/run.py" "$@"
