# Sourced by the other scripts. Defines folders, output functions, stamps that say which work is up to
# date, and the build with meson. Sets only functions and the variables below.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
STAMPS=$ROOT/.stamps
JOBS=$(nproc)
export PATH="$VENV/bin:$PATH"
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() {
    printf '== %s\n' "$*"
}

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# Runs a command and shows its output only if it fails.
quietly() {
    local log rc=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 || rc=$?
    if [ "$rc" -ne 0 ]; then
        cat "$log" >&2
    fi
    rm -f "$log"
    return "$rc"
}

# Installs Debian packages, or ends with a message that says how to.
install_packages() {
    local line="apt-get install -y --no-install-recommends $*" as_root=
    if ! command -v apt-get >/dev/null 2>&1; then
        die "Missing system packages. On Debian, install them with: sudo $line"
    fi
    if [ "$(id -u)" -ne 0 ]; then
        # -n: never ask for a password in the middle of a build.
        if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
            as_root="sudo -n"
        else
            die "Missing system packages. Install them with: sudo $line"
        fi
    fi
    say "installing system packages: $*"
    export DEBIAN_FRONTEND=noninteractive
    quietly $as_root apt-get update
    quietly $as_root $line
}

# Installs the packages that scripts/requirements$1.txt names, exactly the files that scripts/locked/ names by hash;
# further arguments go to pip. Some indexes rebuild wheels: if this one has other files, the packages are installed by
# version and without hashes, which is said. With LOCKED=only, that is an error.
install_requirements() {
    local list=requirements$1.txt log=$STAMPS/pip.log
    shift
    mkdir -p "$STAMPS"
    if python -m pip install "$@" --require-hashes --no-deps -r "$ROOT/scripts/locked/$list" >"$log" 2>&1; then
        return
    fi
    if [ "${LOCKED:-}" = only ]; then
        cat "$log" >&2
        die "LOCKED=only: this index does not have the files that scripts/locked/$list names."
    fi
    say "not locked: this index lacks files of scripts/locked/$list ($(grep -m 1 -i error "$log"));" \
        "installing by version, without hashes"
    quietly python -m pip install "$@" -r "$ROOT/scripts/$list"
}

# True if the text of the stamp $1 is exactly $2.
stamp_is() {
    [ -f "$STAMPS/$1" ] && [ "$(cat "$STAMPS/$1")" = "$2" ]
}

stamp_set() {
    mkdir -p "$STAMPS"
    printf '%s\n' "$2" >"$STAMPS/$1"
}

# Prints one hash of the given files and folders, except bytecode. The hash covers
# names too, so that it also changes if a file is removed or renamed.
tree_digest() {
    (cd "$ROOT" && find "$@" -type f -not -path '*/__pycache__/*' -print0 2>/dev/null |
        LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1)
}

# Makes the folder build/$1 with the meson options that follow. If the options have changed since the last time, it
# starts from an empty folder.
meson_setup() {
    local folder=$ROOT/build/$1
    shift
    if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/.options" 2>/dev/null)" != "$*" ]; then
        rm -rf "$folder"
        quietly meson setup "$folder" "$ROOT" "$@"
        printf '%s\n' "$*" >"$folder/.options"
    fi
}

# The same, and builds everything in it.
meson_build() {
    meson_setup "$@"
    quietly ninja -C "$ROOT/build/$1" -j "$JOBS"
}

# Builds what the tests of the folder build/$1 need that the further arguments choose, and runs these tests. Time limits
# are for hangs, so they are long enough for a busy machine. Tests of the offload engine wait for the disk and for each
# other for most of their time, so twice as many run at once as there are processors.
meson_tests() {
    local folder=$ROOT/build/$1
    shift
    meson test -C "$folder" --print-errorlogs --timeout-multiplier 6 --num-processes "$((2 * JOBS))" "$@"
}

# The folders of the C tests: plain with the double of torch's CUDA, and two under sanitizers, for which -O2 would take
# half as long again to compile.
setup_plain() {
    meson_setup test -Dpython=disabled -Dserver=disabled -Dwerror=true -Dtorch_double=auto
}

build_plain() {
    setup_plain
    quietly ninja -C "$ROOT/build/test" -j "$JOBS"
}

setup_asan() {
    local server=disabled postgresql=disabled
    server_libraries && server=enabled
    pkg-config --exists libpq 2>/dev/null && postgresql=auto
    meson_setup asan -Db_sanitize=address,undefined -Doptimization=1 -Dpython=disabled -Dserver=$server \
        -Dpostgresql=$postgresql -Dwerror=true -Dshared=false -Db_lundef=false
}

setup_tsan() {
    meson_setup tsan -Db_sanitize=thread -Doptimization=1 -Dpython=disabled -Dserver=disabled -Dshared=false \
        -Db_lundef=false
}

# Prints the Debian packages that the server needs and that are missing.
missing_server_packages() {
    pkg-config --exists 'libmicrohttpd >= 0.9.75' 2>/dev/null || printf '%s ' libmicrohttpd-dev
    pkg-config --exists 'sqlite3 >= 3.37' 2>/dev/null || printf '%s ' libsqlite3-dev
    pkg-config --exists libsodium 2>/dev/null || printf '%s ' libsodium-dev
    pkg-config --exists 'liboath >= 2.6' 2>/dev/null || printf '%s ' liboath-dev
    pkg-config --exists 'libqrencode >= 4' 2>/dev/null || printf '%s ' libqrencode-dev
    pkg-config --exists 'libseccomp >= 2.5' 2>/dev/null || printf '%s ' libseccomp-dev
}

# True if the server can be built. Installs its libraries if it can; never ends the script, because only the server
# needs them. Without libpq it is built without PostgreSQL, and its tests say so.
server_libraries() {
    local missing
    missing=$(missing_server_packages)
    if [ -n "$missing" ]; then
        # shellcheck disable=SC2086 # a list of words
        (install_packages $missing) >&2 || true
    fi
    pkg-config --exists libpq 2>/dev/null || (install_packages libpq-dev) >/dev/null 2>&1 || true
    [ -z "$(missing_server_packages)" ]
}

# Runs pytest in a folder without the sources, so that the installed package is tested. Threads of torch that wait sleep
# instead of spinning: as many processes run as there are processors, and spinning took 40% of their time.
run_pytest() {
    mkdir -p "$ROOT/build/pytest"
    (
        cd "$ROOT/build/pytest"
        OMP_WAIT_POLICY=passive python -m pytest -n auto --dist worksteal -c "$ROOT/pyproject.toml" --rootdir "$ROOT" "$@"
    )
}

# Builds the wheel of the sources in $1 into $2. The bytes depend on the sources alone: times are the last commit's, or
# the changelog's in an sdist, and no path of this machine gets in.
build_wheel_in() {
    local source raw static=false
    source=$(cd "$1" && pwd)
    raw=$(mktemp -d)
    # If a static jansson is installed, link it into the program, so that the program stays a
    # plain executable in the wheel. Then only the extension needs the library beside it.
    if printf 'int main(void){return 0;}' |
        cc -x c - -pie -o /dev/null -l:libjansson.a 2>/dev/null; then
        static=true
    fi
    (
        cd "$source"
        SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct -- . 2>/dev/null || stat -c %Y CHANGELOG.md)}
        export SOURCE_DATE_EPOCH CFLAGS="-g0 -ffile-prefix-map=$source=. -ffile-prefix-map=$raw=."
        chmod -R u+rw,go+r,go-w python LICENSE LICENSES # a wheel keeps modes, and a tar's depend on the umask
        quietly python -m build --wheel --no-isolation --outdir "$raw" \
            --config-setting=build-dir="$raw/build" \
            --config-setting=setup-args=-Dprogram_static_jansson=$static .
        # meson-python names the Python that builds; the extension keeps to the limited API of 3.10 (meson.build).
        quietly python -m wheel tags --python-tag cp310 --remove "$raw"/*.whl
        quietly python -m auditwheel repair --wheel-dir "$2" "$raw"/*.whl
    )
    rm -rf "$raw"
}
