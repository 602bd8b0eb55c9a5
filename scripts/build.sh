#!/usr/bin/env bash
# Installs memscale from this folder into .venv, as a normal install. Does nothing if no source
# has changed since the last time.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/setup.sh"

sources=(meson.build meson.options pyproject.toml README.md LICENSE LICENSES assets include src ext cli python
    bench/meson.build)
wanted=$(tree_digest "${sources[@]}")
installed=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/memscale

if stamp_is build "$wanted" && [ -e "$installed/_core.abi3.so" ] && [ -x "$VENV/bin/memscale" ]; then
    exit 0
fi

say "building memscale"
cd "$ROOT"
# meson can't add a new option to a build folder that is already configured.
options=$(tree_digest meson.options pyproject.toml)
if [ "$(cat build/python/.options 2>/dev/null)" != "$options" ]; then
    rm -rf build/python
    mkdir -p build/python
    printf '%s\n' "$options" >build/python/.options
fi
quietly python -m pip install --no-build-isolation --no-deps --no-index --force-reinstall \
    --config-settings=build-dir=build/python .
stamp_set build "$wanted"
