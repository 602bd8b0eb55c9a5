#!/usr/bin/env bash
# Installs missing system packages, then makes .venv with everything that building and
# testing need. Every other script calls it; it returns at once if nothing is missing.
set -euo pipefail
. "$(dirname "$0")/common.sh"

TORCH_SPEC=${TORCH_SPEC:-torch==2.13.0}

# ---- the interpreter ---------------------------------------------------------

is_suitable() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# Prints the path of the interpreter itself. A launcher such as pyenv's may start another
# interpreter in another folder.
real_python() {
    "$1" -c 'import sys; print(sys.executable)'
}

find_python() {
    local name
    if [ -n "${PYTHON:-}" ]; then
        is_suitable "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11 or later."
        real_python "$PYTHON"
        return
    fi
    # The active environment comes first, because it may hold the torch to use. Our own
    # .venv doesn't count as one.
    PATH=${PATH//"$VENV/bin:"/}
    for name in python3 python python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if command -v "$name" >/dev/null 2>&1 && is_suitable "$name"; then
            real_python "$name"
            return
        fi
    done
}

# ---- system packages ---------------------------------------------------------

have_header() {
    printf '#include <%s>\n' "$1" | cc -E -x c - >/dev/null 2>&1
}

# Prints the missing Debian packages. It tries the tools instead of asking dpkg, because
# they may come from elsewhere.
missing_packages() {
    local python=$1 is_debian_python=no
    command -v cc >/dev/null 2>&1 && have_header stdlib.h || echo gcc libc6-dev
    command -v pkg-config >/dev/null 2>&1 || echo pkg-config
    pkg-config --exists jansson 2>/dev/null || echo libjansson-dev
    pkg-config --exists cmocka 2>/dev/null || echo libcmocka-dev
    have_header xxhash.h || echo libxxhash-dev
    if [ -z "$python" ]; then
        echo python3 python3-venv python3-dev
        return
    fi
    case $(readlink -f "$python") in /usr/bin/*) is_debian_python=yes ;; esac
    if [ "$is_debian_python" = yes ]; then
        local version
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || echo "python$version-venv"
        "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || echo "python$version-dev"
    fi
}

# ---- the environment ---------------------------------------------------------

has_torch() {
    "$1" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' \
        >/dev/null 2>&1
}

make_venv() {
    local python=$1 shared=
    if has_torch "$python"; then
        say "making .venv on top of $python, to use its torch"
        shared=--system-site-packages
    else
        say "making .venv with $python"
    fi
    rm -rf "$VENV"
    quietly "$python" -m venv $shared "$VENV"
    if [ -n "$shared" ] && ! has_torch "$VENV/bin/python"; then
        # A venv made inside another venv sees only the base interpreter's packages,
        # so add the active environment's folders.
        "$python" -c 'import site; print("\n".join(site.getsitepackages()))' \
            >"$("$VENV/bin/python" -c 'import site; print(site.getsitepackages()[0])')/active-environment.pth"
    fi
}

fill_venv() {
    # torch first, so that a package that depends on it doesn't install another build of it.
    if ! has_torch "$VENV/bin/python"; then
        say "installing $TORCH_SPEC (a large download)"
        quietly "$VENV/bin/python" -m pip install "$TORCH_SPEC"
    fi
    say "installing build tools, test tools and transformers"
    local own=()
    if grep -q 'include-system-site-packages = true' "$VENV/pyvenv.cfg"; then
        # If pip found the tools in the environment below, it would put no program in .venv/bin.
        own=(--ignore-installed)
    fi
    install_requirements "" "${own[@]}"
}

main() {
    local python missing wanted
    python=$(find_python)
    missing=$(missing_packages "$python" | tr '\n' ' ')
    if [ -n "${missing// /}" ]; then
        # shellcheck disable=SC2086  # a list of words
        install_packages $missing
        python=$(find_python)
        [ -n "$python" ] || die "No Python 3.11 or later was found."
    fi
    wanted="${PYTHON:-any} $TORCH_SPEC $(tree_digest scripts/setup.sh scripts/requirements.txt scripts/locked/requirements.txt)"
    if stamp_is setup "$wanted" && [ -x "$VENV/bin/python" ]; then
        return
    fi
    if ! "$VENV/bin/python" -c '' >/dev/null 2>&1; then
        make_venv "$python"
    fi
    fill_venv
    stamp_set setup "$wanted"
}

main
