#!/usr/bin/env bash
# Tests the CUDA path on a double of torch's CUDA (tests/torch_double). Needs a C++ compiler and torch 2.13 without CUDA;
# otherwise it says so and skips the tests.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/build.sh"
cd "$ROOT"
build_plain
if [ ! -e build/test/tests/torch_double/libtorch_double.so ]; then
    say "skipped: the CUDA path (it needs a C++ compiler, and torch 2.13 without CUDA)"
    exit 0
fi
say "the CUDA path on a double of torch's CUDA"
# A test that hangs for five minutes prints where it hangs. The longest takes two on a slow machine.
run_pytest --durations 5 -o faulthandler_timeout=300 "$ROOT/tests/python_cuda" "$@"
