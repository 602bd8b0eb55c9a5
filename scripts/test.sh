#!/usr/bin/env bash
# Every test: structure, C (plain, under address and undefined-behaviour
# sanitizers, threads under the thread sanitizer), the program, the fuzz corpora,
# the CUDA path on a double, the site, the wheel, Python. Stops at the first stage that fails.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/build.sh"
cd "$ROOT"

# Only rooms whose tests start threads of ours are worth the thread sanitizer.
tsan_suites=(--suite base --suite hostmem --suite offload --suite techniques)
sanitized=(-Dpython=disabled -Dshared=false -Db_lundef=false)

run_meson_tests() {
    local folder=$1
    shift
    # Time limits are for hangs, not for busy machines. Tests of the offload engine wait for the disk most of their
    # time, so one more than the processors runs at once.
    meson test -C "build/$folder" --no-rebuild --print-errorlogs --timeout-multiplier 6 \
        --num-processes "$(($(nproc) + 1))" "$@"
}

say "structure"
python scripts/check_structure.py

# Only the double of torch's CUDA is C++.
if ! command -v c++ >/dev/null 2>&1 && command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ]; then
    say "installing g++"
    quietly apt-get install -y --no-install-recommends g++ || say "g++ could not be installed"
fi

say "C tests, the program, the fuzz corpora"
meson_build test -Dpython=disabled -Dwerror=true -Dtorch_double=auto
run_meson_tests test

say "the same under the address and undefined-behaviour sanitizers"
meson_build asan -Db_sanitize=address,undefined -Dwerror=true "${sanitized[@]}"
run_meson_tests asan

say "threads under the thread sanitizer"
meson_build tsan -Db_sanitize=thread "${sanitized[@]}"
run_meson_tests tsan "${tsan_suites[@]}"

scripts/test_cuda.sh

scripts/docs.sh

say "the wheel"
scripts/wheel.sh

scripts/test_server.sh

# Trainers that memscale trains under: used by tests alone, so that building and the demo do without them.
wanted="$(tree_digest scripts/requirements-test.txt) $(python -c 'import sys; print(sys.prefix)')"
if ! stamp_is test-packages "$wanted"; then
    say "installing the trainers that are tested with"
    quietly python -m pip install -r scripts/requirements-test.txt
    stamp_set test-packages "$wanted"
fi

# Judges the metrics. Only unpacked: installed, the package would start a server. Chromium, which
# looks at the report's page where it is on the PATH, is 300 MB, more than a test may bring along.
judge=$ROOT/build/promtool
if ! command -v promtool >/dev/null 2>&1 && [ ! -x "$judge/usr/bin/promtool" ] &&
    command -v apt-get >/dev/null 2>&1; then
    say "fetching promtool"
    mkdir -p "$judge"
    (cd "$judge" && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } &&
        dpkg-deb --extract prometheus_*.deb . && rm prometheus_*.deb) >"$judge/log" 2>&1 ||
        say "skipped: promtool could not be fetched"
fi
export PATH="$PATH:$judge/usr/bin"

say "Python tests"
# From a folder without the sources, so that the installed package is tested.
mkdir -p build/pytest
cd build/pytest
python -m pytest -n auto --dist worksteal --durations 15 -c "$ROOT/pyproject.toml" --rootdir "$ROOT" \
    "$ROOT/tests/python" "$@"
