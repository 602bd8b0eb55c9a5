#!/usr/bin/env bash
# The tests of memscale-server (server/): C units and HTTP tests against the real program, all under the
# address and undefined-behaviour sanitizers. Skipped, with a line that says so, where the server's
# libraries are missing and can't be installed. Arguments go to pytest.
set -euo pipefail
. "$(dirname "$0")/common.sh"

# Prints the Debian packages that the server needs and this machine lacks.
missing_packages() {
    pkg-config --exists 'libmicrohttpd >= 0.9.71' 2>/dev/null || echo libmicrohttpd-dev
    pkg-config --exists 'sqlite3 >= 3.37' 2>/dev/null || echo libsqlite3-dev
    pkg-config --exists libsodium 2>/dev/null || echo libsodium-dev
}

# Unlike setup.sh this never fails: everything but the server does without these packages.
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

"$ROOT/scripts/setup.sh"
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
# Of the tests' programs only the server's: test.sh builds the others.
targets=$(ninja -C "$folder" -t targets all 2>/dev/null |
    sed -n 's#^\(tests/server/test_server_[a-z]*\|tests/fuzz/replay_\(request\|steps\)\): .*#\1#p')
# shellcheck disable=SC2086  # a list of words
quietly ninja -C "$folder" -j "$JOBS" memscale server/memscale-server $targets
meson test -C "$folder" --no-rebuild --print-errorlogs --timeout-multiplier 6 --suite server
for name in request steps; do
    quietly "$folder/tests/fuzz/replay_$name" "tests/fuzz/corpus/$name"
done

say "the server over HTTP"
mkdir -p build/pytest
cd build/pytest
export MEMSCALE_SERVER_PROGRAM=$folder/server/memscale-server
python -m pytest -n 2 --dist worksteal --durations 5 -c "$ROOT/pyproject.toml" --rootdir "$ROOT" "$ROOT/tests/server" "$@"
