# Sourced by the other scripts: where things are, how they speak, when work is
# out of date. Sets nothing but functions and the variables below.

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

# Runs a command and shows its output only where it fails.
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

# Installs Debian packages, or says how to.
install_packages() {
    local line="apt-get install -y --no-install-recommends $*" as_root=
    if ! command -v apt-get >/dev/null 2>&1; then
        die "Missing system packages. On Debian they come with: sudo $line"
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

# True where the stamp's text is exactly $2.
stamp_is() {
    [ -f "$STAMPS/$1" ] && [ "$(cat "$STAMPS/$1")" = "$2" ]
}

stamp_set() {
    mkdir -p "$STAMPS"
    printf '%s\n' "$2" >"$STAMPS/$1"
}

# One number for the contents of the given files and folders, bytecode aside.
# Names and order count as well, so that a removed file is noticed.
tree_digest() {
    (cd "$ROOT" && find "$@" -type f -not -path '*/__pycache__/*' -print0 2>/dev/null |
        LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1)
}

# Builds the folder build/$1 with the meson options that follow. Other options than
# last time begin it anew.
meson_build() {
    local folder=$ROOT/build/$1
    shift
    if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/.options" 2>/dev/null)" != "$*" ]; then
        rm -rf "$folder"
        quietly meson setup "$folder" "$ROOT" "$@"
        printf '%s\n' "$*" >"$folder/.options"
    fi
    quietly ninja -C "$folder" -j "$JOBS"
}
