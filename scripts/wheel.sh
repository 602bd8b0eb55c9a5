#!/usr/bin/env bash
# Builds the one wheel in dist/, with its C libraries inside, and tries it out in
# clean environments without torch. Does nothing where the sources have not
# changed since the last time.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/setup.sh"
cd "$ROOT"

build_wheel() {
    local raw=build/wheel-raw static=false
    rm -rf "$raw" dist
    # The program can hold jansson itself; then it stays a plain executable in the
    # wheel. Only the extension needs the library beside it.
    if printf 'int main(void){return 0;}' |
        cc -x c - -pie -o /dev/null -l:libjansson.a 2>/dev/null; then
        static=true
    fi
    quietly python -m build --wheel --no-isolation --outdir "$raw" \
        --config-setting=build-dir=build/wheel \
        --config-setting=setup-args=-Dprogram_static_jansson=$static .
    quietly python -m auditwheel repair --wheel-dir dist "$raw"/*.whl
}

# Installs the wheel with the given interpreter into a new environment that holds
# nothing else, and uses it there.
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

# Another CPython >= 3.11 than the one of .venv, or nothing.
other_python() {
    local own candidate version
    own=$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    for candidate in $(compgen -c python3. | LC_ALL=C sort -u) \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3 /opt/python/cp3*/bin/python3; do
        version=$("$candidate" -c 'import sys, venv, ensurepip
if sys.implementation.name == "cpython" and sys.version_info >= (3, 11) and (
        not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled()):
    print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        if [ -n "$version" ] && [ "$version" != "$own" ]; then
            command -v "$candidate"
            return
        fi
    done
}

wanted=$(tree_digest meson.build meson.options pyproject.toml README.md LICENSE LICENSES include src ext cli \
    python bench/meson.build scripts/wheel.sh scripts/check_wheel.py scripts/elf_hardening.py)
wheel=$(compgen -G "dist/memscale-*.whl" || true)
if [ -n "$wheel" ] && stamp_is wheel "$wanted"; then
    say "$wheel is up to date and was tried"
    exit 0
fi

say "building the wheel"
build_wheel
wheel=$(compgen -G "$ROOT/dist/memscale-*.whl")
try_wheel "$VENV/bin/python" "$wheel"
other=$(other_python)
if [ -n "$other" ]; then
    try_wheel "$other" "$wheel"
else
    say "skipped: the wheel under another CPython >= 3.11 (none found)"
fi
stamp_set wheel "$wanted"
say "${wheel#"$ROOT/"}"
