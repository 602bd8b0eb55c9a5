#!/usr/bin/env bash
# Tests the CUDA path on a double of torch's CUDA (tests/torch_double). Needs a C++ compiler and torch 2.13 without CUDA;
# otherwise it says so and skips the tests.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/build.sh"
cd "$ROOT"
meson_build test -Dpython=disabled -Dwerror=true -Dtorch_double=auto
if [ ! -e build/test/tests/torch_double/libtorch_double.so ]; then
    say "skipped: the CUDA path (it needs a C++ compiler, and torch 2.13 without CUDA)"
    exit 0
fi
mkdir -p build/pytest
cd build/pytest
say "the CUDA path on a double of torch's CUDA"
# A test that hangs for two minutes prints where it hangs.
python -m pytest -n auto --dist worksteal --durations 5 -o faulthandler_timeout=120 -c "$ROOT/pyproject.toml" --rootdir "$ROOT" "$ROOT/tests/python_cuda" "$@"
