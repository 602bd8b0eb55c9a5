#!/usr/bin/env bash
# Tries the built wheel with one Python and one PyTorch: installs both in a new environment outside the source, and runs the
# tests of exactness, of the documented interface and of torch's private names there.
#
#   scripts/matrix.sh PYTHON TORCH    PYTHON is an interpreter, TORCH a version; empty for the newest
#   scripts/matrix.sh                 every CPython from 3.10 on that is found, with the newest PyTorch of each
#
# pip's own settings say where packages come from (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS). A CUDA build of PyTorch
# works too, without a GPU. MATRIX_TESTS names other test files.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
TESTS="test_execute_exact.py test_documented_interface.py test_torch_names.py test_selective.py test_loss_head.py test_settings.py"
TESTS=${MATRIX_TESTS:-$TESTS test_environment.py test_generators.py}

wheel=$(compgen -G "$ROOT/dist/memscale-*.whl") || {
    echo "matrix: dist/ has no wheel; run make wheel first" >&2
    exit 1
}

try() {
    local python=$1 torch=$2 folder files=()
    folder=$(mktemp -d)
    for name in $TESTS; do
        files+=("$ROOT/tests/python/$name")
    done
    "$python" -m venv "$folder/venv"
    "$folder/venv/bin/python" -m pip install --quiet --upgrade pip
    "$folder/venv/bin/python" -m pip install --quiet "torch${torch:+==$torch}" numpy pytest jsonschema referencing transformers
    "$folder/venv/bin/python" -m pip install --quiet --no-index --no-deps "$wheel"
    "$folder/venv/bin/python" -c 'import sys, torch; print("matrix: Python %d.%d.%d," % sys.version_info[:3], "torch", torch.__version__)'
    local status=0
    (cd "$folder" && venv/bin/python -m pytest -q -x -c "$ROOT/pyproject.toml" --rootdir "$ROOT" -p no:cacheprovider "${files[@]}") ||
        status=$?
    rm -rf "$folder"
    return "$status"
}

if [ $# -gt 0 ]; then
    try "$1" "${2:-}"
    exit
fi
failed=()
for minor in 10 11 12 13 14; do
    for python in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python3; do
        if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
            try "$python" "" || failed+=("$python")
            break
        fi
    done
done
[ ${#failed[@]} -eq 0 ] || {
    echo "matrix: failed with ${failed[*]}" >&2
    exit 1
}
