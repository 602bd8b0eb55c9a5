#!/usr/bin/env bash
# Runs every libFuzzer target of tests/fuzz for FUZZ_SECONDS (60), starting from
# its corpus. Inputs that it finds are left in build/fuzz-found. Once a bug is
# fixed, add the input that found it to tests/fuzz/corpus.
set -euo pipefail
. "$(dirname "$0")/common.sh"

find_clang() {
    local name
    for name in clang clang-{25..14}; do
        if command -v "$name" >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
}

"$ROOT/scripts/setup.sh"
cd "$ROOT"
clang=$(find_clang)
[ -n "$clang" ] || die "make fuzz needs clang: apt-get install clang"

say "building with $clang"
export CC=$clang
meson_build fuzz -Dfuzz=true -Dtests=false -Dpython=disabled -Dshared=false \
    -Db_sanitize=address,undefined -Db_lundef=false
for target in build/fuzz/tests/fuzz/fuzz_*; do
    [ -x "$target" ] && [ -f "$target" ] || continue
    name=${target##*/fuzz_}
    say "$name"
    mkdir -p "build/fuzz-found/$name"
    "$target" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="build/fuzz-found/$name/" -print_final_stats=1 \
        "build/fuzz-found/$name" "tests/fuzz/corpus/$name" 2>&1 | tail -n 12
done
