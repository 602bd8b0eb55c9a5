#!/usr/bin/env bash
# Builds the sdist and one self-contained wheel in dist/, with its C libraries inside and its bill of materials (CycloneDX)
# beside it, and tries the wheel out in clean environments without torch. Does nothing if the sources have not changed since the
# last time.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/setup.sh"
cd "$ROOT"

build_all() {
    rm -rf dist
    quietly python -m build --sdist --no-isolation --outdir dist .
    build_wheel_in "$ROOT" "$ROOT/dist"
    wheel=$(compgen -G "$ROOT/dist/memscale-*.whl")
    python scripts/sbom.py "$wheel" "${wheel%.whl}.cdx.json"
}

# Makes a new environment with the given interpreter, installs only the wheel there, and
# uses it.
try_wheel() {
    local python=$1 wheel=$2 folder
    folder=$(mktemp -d)
    quietly "$python" -m venv "$folder/venv"
    quietly "$folder/venv/bin/python" -m pip install --no-index --no-deps "$wheel"
    (
        cd "$folder"
        unset PYTHONPATH
        quietly venv/bin/python "$ROOT/scripts/check_wheel.py" "$wheel"
    )
    rm -rf "$folder"
    say "the wheel works with $("$python" --version) without torch"
}

# Prints a CPython >= 3.10 of another version than that of .venv, if there is one.
other_python() {
    local own candidate version
    own=$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    for candidate in $(compgen -c python3. | LC_ALL=C sort -u) \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3 /opt/python/cp3*/bin/python3; do
        version=$("$candidate" -c 'import sys, venv, ensurepip
if sys.implementation.name == "cpython" and sys.version_info >= (3, 10) and (
        not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled()):
    print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        if [ -n "$version" ] && [ "$version" != "$own" ]; then
            command -v "$candidate"
            return
        fi
    done
}

wanted=$(tree_digest meson.build meson.options pyproject.toml README.md LICENSE LICENSES assets include src ext cli \
    python bench/meson.build scripts/wheel.sh scripts/check_wheel.py scripts/elf_hardening.py scripts/sbom.py scripts/common.sh)
wheel=$(compgen -G "dist/memscale-*.whl" || true)
if [ -n "$wheel" ] && stamp_is wheel "$wanted"; then
    say "$wheel is up to date and was tried"
    exit 0
fi

say "building sdist and wheel"
build_all
wheel=$(compgen -G "$ROOT/dist/memscale-*.whl")
try_wheel "$VENV/bin/python" "$wheel"
other=$(other_python)
if [ -n "$other" ]; then
    try_wheel "$other" "$wheel"
else
    say "skipped: trying the wheel under another CPython >= 3.10 (none found)"
fi
stamp_set wheel "$wanted"
say "${wheel#"$ROOT/"}"
