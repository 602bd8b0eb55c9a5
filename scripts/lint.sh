#!/usr/bin/env bash
# Static checks: structure; clang-tidy for C, or the compiler's analyzer if clang-tidy is not
# installed; the layout of C and Python; ruff and mypy for Python.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/setup.sh"
cd "$ROOT"

say "structure"
python scripts/check_structure.py

if command -v clang-tidy >/dev/null 2>&1; then
    say "clang-tidy"
    meson_build lint -Dpython=disabled -Dtests=false
    find src cli server -name '*.c' -print0 |
        xargs -0 -n 8 -P "$JOBS" clang-tidy --quiet -p build/lint \
            --checks='-*,bugprone-*,clang-analyzer-*,-bugprone-easily-swappable-parameters,-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling,-bugprone-reserved-identifier'
else
    say "the compiler's analyzer (clang-tidy is not installed)"
    meson_build lint -Dpython=disabled -Dtests=false -Dshared=false -Dwerror=true \
        -Dc_args=-fanalyzer
fi

# The formatters' versions are pinned, because each version lays out lines differently.
install_requirements -lint || {
    say "skipped: ruff, mypy and clang-format could not be installed"
    exit 0
}
say "layout of C and Python"
git ls-files '*.c' '*.h' | xargs clang-format --dry-run --Werror
python -m ruff format --check python tests scripts bench server docs/conf.py docs/extensions
say "ruff"
python -m ruff check python tests scripts bench server docs/conf.py docs/extensions
say "mypy"
MYPYPATH=python python -m mypy --python-executable "$VENV/bin/python" --exclude tests python/memscale
