#!/usr/bin/env bash
# On a machine with an NVIDIA GPU, in one command: is training under budgets bit-exact, are the budgets kept and
# the peaks as predicted, how close is the engine to a plain pinned copy, and how much of the transfers hides under
# compute. Installs the self-contained wheel beside a torch that is already there; needs no compiler, writes
# nothing but the results. Ends with RESULTS.json, RESULTS.md, and exit status 1 if a goal was missed (the page
# says which).
#
#   bench/gpu/offload.sh WHEEL [RESULTS]
#   PYTHON   the interpreter that has torch with CUDA, and transformers (default: python3)
set -euo pipefail

wheel=$(realpath "${1:?the wheel: make wheel leaves it in dist/}")
results=$(realpath -m "${2:-gpu-offload}")
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "no GPU here: $python has no torch that sees one" >&2
    exit 1
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m pip install --quiet --no-index --no-deps --target "$folder/site" "$wheel"
cd "$folder"
status=0
PYTHONPATH="$folder/site" "$python" "$here/offload.py" "$results" || status=$?
echo "results: $results.json, $results.md"
exit "$status"
