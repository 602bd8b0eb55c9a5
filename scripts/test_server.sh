#!/usr/bin/env bash
# Tests memscale-server (server/): C units, and HTTP tests against the real program, all under the address
# and undefined-behaviour sanitizers. If the server's libraries are missing and can't be installed, it says
# so and skips the tests. Passes its arguments to pytest.
#   MEMSCALE_SERVER_DATABASES=all  runs every test on PostgreSQL too, not only those of the store
set -euo pipefail
. "$(dirname "$0")/common.sh"

# Puts what the browser test needs beside the build; the test itself says what is missing.
try_to_prepare_browser() {
    local wanted=$ROOT/tests/server/browser/package.json folder=$ROOT/build/browser missing=
    command -v npm >/dev/null 2>&1 || missing="nodejs npm"
    command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
    [ -z "$missing" ] || (install_packages $missing) >/dev/null 2>&1 || true
    command -v npm >/dev/null 2>&1 && command -v chromium >/dev/null 2>&1 || return 0
    cmp -s "$wanted" "$folder/package.json" && [ -d "$folder/node_modules/axe-core" ] && return 0
    mkdir -p "$folder"
    cp "$wanted" "$folder/"
    (cd "$folder" && timeout 120 npm install --no-audit --no-fund --no-package-lock) >/dev/null 2>&1 || true
}

# Unpacks packages of Debian below build/ that are not installed: installing them would start servers. The tests start
# their own, and say what is missing.
try_to_prepare_programs() {
    local folder=$ROOT/build/programs server
    if [ ! -d "$folder/usr" ] && command -v apt-get >/dev/null 2>&1; then
        mkdir -p "$folder"
        (
            cd "$folder"
            server=$(apt-cache depends postgresql | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$/\1/p')
            for package in nginx caddy libfaketime "$server" "${server/postgresql-/postgresql-client-}"; do
                timeout 120 apt-get download "$package" || continue # the others may be there
            done
            for package in *.deb; do
                dpkg-deb --extract "$package" .
            done
            rm ./*.deb
        ) >"$folder/log" 2>&1 || say "some of the tests' programs could not be fetched: see build/programs/log"
    fi
    export PATH=$PATH:/usr/sbin:$folder/usr/bin:$folder/usr/sbin
}

"$ROOT/scripts/build.sh" # the client that test_push.py runs
cd "$ROOT"
if ! server_libraries; then
    say "skipped: the server's tests; missing packages: $(missing_server_packages)"
    exit 0
fi

say "the server: C tests and fuzz corpora under the address and undefined-behaviour sanitizers"
setup_asan
quietly ninja -C build/asan -j "$JOBS" memscale server/memscale-server server/memscale-server.cdx.json
meson_tests asan --suite server

say "the server over HTTP"
try_to_prepare_browser
try_to_prepare_programs
# Sends what the API's document allows and forbids; its test says if it is missing.
command -v st >/dev/null 2>&1 || timeout 120 python -m pip install -q schemathesis >/dev/null 2>&1 || true
export MEMSCALE_SERVER_PROGRAM=$ROOT/build/asan/server/memscale-server
run_pytest --durations 5 "$ROOT/tests/server" "$@"
