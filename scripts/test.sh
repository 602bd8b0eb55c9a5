#!/usr/bin/env bash
# Runs every test: structure, C (plain, under the address and undefined-behaviour sanitizers, threads under
# the thread sanitizer), the program, the fuzz corpora, the CUDA path on a double, Python; and beside the C tests the
# server, the site and the wheel. Stops at the first stage that fails.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/build.sh"
cd "$ROOT"

# The rooms whose tests start threads of ours: only these run under the thread sanitizer.
tsan_suites=(--suite base --suite hostmem --suite offload --suite techniques)
sanitized=(-Dpython=disabled -Dshared=false -Db_lundef=false)

run_meson_tests() {
    local folder=$1
    shift
    # Time limits are for hangs, so they are long enough for a busy machine. Tests of the offload engine wait for the disk
    # and for each other for most of their time, so twice as many run at once as there are processors.
    meson test -C "build/$folder" --no-rebuild --print-errorlogs --timeout-multiplier 6 \
        --num-processes "$((2 * $(nproc)))" "$@"
}

# Starts scripts, one after the other, beside the following stages; join_beside waits for them and prints their output.
beside_pid=
beside() {
    setsid bash -ec 'for script; do "$script"; done' beside "$@" >build/beside.log 2>&1 &
    beside_pid=$!
}

join_beside() {
    local rc=0
    wait "$beside_pid" || rc=$?
    beside_pid=
    cat build/beside.log
    return "$rc"
}

# If a stage fails, or at Ctrl-C, the scripts beside it end too.
trap '[ -z "$beside_pid" ] || kill -- -"$beside_pid" 2>/dev/null || true' EXIT

say "structure"
python scripts/check_structure.py

# Only the double of torch's CUDA needs a C++ compiler.
if ! command -v c++ >/dev/null 2>&1 && command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ]; then
    say "installing g++"
    quietly apt-get install -y --no-install-recommends g++ || say "g++ could not be installed"
fi

# These mostly wait, or keep one processor busy.
beside scripts/test_server.sh scripts/docs.sh scripts/wheel.sh

# The next stage replays the fuzz corpora.
say "C tests, the program"
meson_build test -Dpython=disabled -Dwerror=true -Dtorch_double=auto
run_meson_tests test --no-suite fuzz

say "C tests, the program, the fuzz corpora under the address and undefined-behaviour sanitizers"
meson_build asan -Db_sanitize=address,undefined -Dwerror=true "${sanitized[@]}"
run_meson_tests asan

say "threads under the thread sanitizer"
meson_build tsan -Db_sanitize=thread "${sanitized[@]}"
run_meson_tests tsan "${tsan_suites[@]}"

join_beside

scripts/test_cuda.sh

# Trainers that memscale runs under. Only tests need them, so building and the demo don't install them.
wanted="$(tree_digest scripts/requirements-test.txt scripts/locked/requirements-test.txt) $(python -c 'import sys; print(sys.prefix)')"
if ! stamp_is test-packages "$wanted"; then
    say "installing the trainers that tests use"
    install_requirements -test
    stamp_set test-packages "$wanted"
fi

# promtool checks the metrics. Its package is only unpacked, because installing it would start a server.
# Chromium checks the report's page if it is on the PATH; at 300 MB it is too large to fetch for a test.
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
# Run in a folder without the sources, so that the installed package is tested.
mkdir -p build/pytest
cd build/pytest
python -m pytest -n auto --dist worksteal --durations 15 -c "$ROOT/pyproject.toml" --rootdir "$ROOT" \
    "$ROOT/tests/python" "$@"
