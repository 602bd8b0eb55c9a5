#!/usr/bin/env bash
# Builds the wheel again from the sdist of dist/, in another folder, and compares the bytes with those of dist/.
set -euo pipefail
. "$(dirname "$0")/common.sh"

cd "$ROOT"
wheel=$(compgen -G "$ROOT/dist/memscale-*.whl") || die "dist/ has no wheel; run make wheel first."
sdist=$(compgen -G "$ROOT/dist/memscale-*.tar.gz") || die "dist/ has no sdist; run make wheel first."
folder=$(mktemp -d)
tar -C "$folder" -xzf "$sdist"
build_wheel_in "$folder"/memscale-* "$folder/dist"
cmp "$wheel" "$folder/dist/$(basename "$wheel")" || die "two builds of the wheel differ."
rm -rf "$folder"
say "two builds of the wheel are equal, byte for byte: $(sha256sum "$wheel" | cut -c -64)"
