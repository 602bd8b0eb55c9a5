#!/usr/bin/env bash
# Branch coverage: of the C library and the program by gcov, from the C tests, the program's and the fuzz corpora's; of the
# Python package by coverage.py, from its tests and those on the double of CUDA. Prints tables in Markdown and fails if
# the C tests take less than 85% of the branches.
#   COVERAGE_TESTS   what pytest runs (all of tests/python and tests/python_cuda; "none" leaves Python out)
set -euo pipefail
. "$(dirname "$0")/common.sh"

# Later versions may count other branches.
coverage_version=7.17.4

"$ROOT/scripts/build.sh"
cd "$ROOT"

say "C"
meson_build coverage -Dpython=disabled -Db_coverage=true -Dserver=disabled -Doptimization=0
find build/coverage -name '*.gcda' -delete
meson test -C build/coverage --no-rebuild --timeout-multiplier 8 >build/coverage.log ||
    say "tests failed under coverage; build/coverage.log names them (their branches count all the same)"
python scripts/coverage.py build/coverage --least 85

[ "${COVERAGE_TESTS:-}" != none ] || exit 0
say "Python"
quietly python -m pip install "coverage==$coverage_version"
mkdir -p build/pytest
cd build/pytest
rm -f .coverage .coverage.*
cat >coverage.rc <<'END'
[run]
branch = true
source_pkgs = memscale
parallel = true
patch =
    subprocess
    _exit
sigterm = true
disable_warnings = module-not-imported, no-data-collected
END
covered() {
    python -m coverage run --rcfile=coverage.rc -m pytest -q -n auto --dist worksteal -c "$ROOT/pyproject.toml" \
        --rootdir "$ROOT" "$@" || say "tests failed under coverage (their branches count all the same)"
}
if [ -n "${COVERAGE_TESTS:-}" ]; then
    # shellcheck disable=SC2086 # several tests
    covered $COVERAGE_TESTS
else
    covered "$ROOT/tests/python"
    build_plain
    # A process has one CUDA, torch's or the double.
    [ ! -e "$ROOT/build/test/tests/torch_double/libtorch_double.so" ] || covered "$ROOT/tests/python_cuda"
fi
python -m coverage combine -q --rcfile=coverage.rc
python -m coverage report --rcfile=coverage.rc --format=markdown
