#!/usr/bin/env bash
# Tests memscale-server (server/): C units, and HTTP tests against the real program, all under the address
# and undefined-behaviour sanitizers. If the server's libraries are missing and can't be installed, it says
# so and skips the tests. Passes its arguments to pytest.
set -euo pipefail
. "$(dirname "$0")/common.sh"

# Prints the Debian packages that the server needs and that are missing.
missing_packages() {
    pkg-config --exists 'libmicrohttpd >= 0.9.71' 2>/dev/null || echo libmicrohttpd-dev
    pkg-config --exists 'sqlite3 >= 3.37' 2>/dev/null || echo libsqlite3-dev
    pkg-config --exists libsodium 2>/dev/null || echo libsodium-dev
}

# Never fails, unlike setup.sh, because only the server needs these packages.
try_to_install() {
    local as_root=
    if [ "$(id -u)" -ne 0 ]; then
        as_root="sudo -n"
    fi
    say "installing system packages for the server: $*"
    export DEBIAN_FRONTEND=noninteractive
    command -v apt-get >/dev/null 2>&1 && { $as_root apt-get update &&
        $as_root apt-get install -y --no-install-recommends "$@"; } >/dev/null 2>&1 || true
}

# Puts what the browser test needs beside the build; the test itself says what is missing.
try_to_prepare_browser() {
    local wanted=$ROOT/tests/server/browser/package.json folder=$ROOT/build/browser
    command -v npm >/dev/null 2>&1 && command -v chromium >/dev/null 2>&1 || return 0
    cmp -s "$wanted" "$folder/package.json" && [ -d "$folder/node_modules/axe-core" ] && return 0
    mkdir -p "$folder"
    cp "$wanted" "$folder/"
    (cd "$folder" && timeout 120 npm install --no-audit --no-fund --no-package-lock) >/dev/null 2>&1 || true
}

"$ROOT/scripts/build.sh" # the client that test_push.py runs
cd "$ROOT"
missing=$(missing_packages | tr '\n' ' ')
if [ -n "${missing// /}" ]; then
    # shellcheck disable=SC2086  # a list of words
    try_to_install $missing
    missing=$(missing_packages | tr '\n' ' ')
fi
if [ -n "${missing// /}" ]; then
    say "skipped: the server's tests; missing packages: $missing"
    exit 0
fi

say "the server: C tests and fuzz corpora under the address and undefined-behaviour sanitizers"
folder=$ROOT/build/server
options="-Dserver=enabled -Dpython=disabled -Dshared=false -Dwerror=true -Db_sanitize=address,undefined -Db_lundef=false"
if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/.options" 2>/dev/null)" != "$options" ]; then
    rm -rf "$folder"
    # shellcheck disable=SC2086  # a list of words
    quietly meson setup "$folder" "$ROOT" $options
    printf '%s\n' "$options" >"$folder/.options"
fi
# Builds only the server's test programs; test.sh builds the others.
targets=$(ninja -C "$folder" -t targets all 2>/dev/null |
    sed -n 's#^\(tests/server/test_server_[a-z]*\|tests/fuzz/replay_\(request\|steps\)\): .*#\1#p')
# shellcheck disable=SC2086  # a list of words
quietly ninja -C "$folder" -j "$JOBS" memscale server/memscale-server $targets
meson test -C "$folder" --no-rebuild --print-errorlogs --timeout-multiplier 6 --suite server
for name in request steps; do
    quietly "$folder/tests/fuzz/replay_$name" "tests/fuzz/corpus/$name"
done

say "the server over HTTP"
try_to_prepare_browser
# Sends what the API's document allows and forbids; its test says if it is missing.
command -v st >/dev/null 2>&1 || timeout 120 python -m pip install -q schemathesis >/dev/null 2>&1 || true
mkdir -p build/pytest
cd build/pytest
export MEMSCALE_SERVER_PROGRAM=$folder/server/memscale-server
python -m pytest -n 2 --dist worksteal --durations 5 -c "$ROOT/pyproject.toml" --rootdir "$ROOT" "$ROOT/tests/server" "$@"
