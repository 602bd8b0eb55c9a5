#!/usr/bin/env bash
# Runs every test: structure, C (plain, under the address and undefined-behaviour sanitizers, threads under
# the thread sanitizer), the program, the fuzz corpora, the CUDA path on a double, Python; and beside them the site, the
# wheel and the server. Stops at the first stage that fails.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/build.sh"
cd "$ROOT"

# The rooms whose tests start threads of ours: only these run under the thread sanitizer.
tsan_suites=(--suite base --suite hostmem --suite offload --suite techniques)

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

setup_asan # installs packages, which only one script can do at a time
# These keep one processor busy.
beside scripts/docs.sh scripts/wheel.sh

# The next stage replays the fuzz corpora.
say "C tests, the program"
setup_plain
meson_tests test --no-suite fuzz

say "C tests, the program, the fuzz corpora under the address and undefined-behaviour sanitizers"
meson_tests asan --no-suite server
join_beside

# Trainers that memscale runs under. Only tests need them, so building and the demo don't install them.
wanted="$(tree_digest scripts/requirements-test.txt scripts/locked/requirements-test.txt) $(python -c 'import sys; print(sys.prefix)')"
if ! stamp_is test-packages "$wanted"; then
    say "installing the trainers that tests use"
    install_requirements -test
    stamp_set test-packages "$wanted"
fi

# The server's tests wait for most of their time.
beside scripts/test_server.sh

say "threads under the thread sanitizer"
setup_tsan
meson_tests tsan "${tsan_suites[@]}"

scripts/test_cuda.sh
join_beside

# promtool checks the metrics. Its package is only unpacked, because installing it would start a server.
# Chromium, which the server's stage has installed if it could, checks the report's page.
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
run_pytest --durations 15 "$ROOT/tests/python" "$@"
