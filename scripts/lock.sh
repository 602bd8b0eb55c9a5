#!/usr/bin/env bash
# Writes scripts/locked/*.txt from scripts/requirements*.txt: the newest versions, with the hash of each file, for every
# Python from 3.11 on and every platform. torch is left out, because TORCH_SPEC chooses it.
set -euo pipefail
. "$(dirname "$0")/common.sh"

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    quietly python -m venv "$ROOT/build/uv"
    quietly "$ROOT/build/uv/bin/python" -m pip install uv
    uv=$ROOT/build/uv/bin/uv
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "torch; python_version < '3'" >"$work/without-torch.txt"
mkdir -p "$ROOT/scripts/locked"
for list in "$ROOT"/scripts/requirements*.txt; do
    say "locking $(basename "$list")"
    locked=$ROOT/scripts/locked/$(basename "$list")
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
        --override "$work/without-torch.txt" \
        --output-file "$work/locked.txt" "$list" >/dev/null
    {
        echo "# Written by scripts/lock.sh from $(basename "$list")."
        cat "$work/locked.txt"
    } >"$locked"
    rm "$work/locked.txt"
done
