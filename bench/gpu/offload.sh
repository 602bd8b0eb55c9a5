#!/usr/bin/env bash
# Checks and measures memscale on a machine with an NVIDIA GPU: whether training under budgets is bit-exact, whether
# peaks keep to their budgets and predictions, how close the engine comes to a plain pinned copy, and how much of the
# transfers hides under compute. Uses the self-contained wheel with the torch of PYTHON; needs no compiler. Leaves only
# RESULTS.json and RESULTS.md. Exits with status 1 if a goal was missed; RESULTS.md lists the missed goals.
#
#   bench/gpu/offload.sh WHEEL [RESULTS] [OPTIONS of offload.py]
#   PYTHON   the interpreter that has torch with CUDA, and transformers (default: python3)
set -euo pipefail

wheel=$(realpath "${1:?the wheel: make wheel leaves it in dist/}")
results=$(realpath -m "${2:-gpu-offload}")
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "no GPU: $python has no torch that finds one" >&2
    exit 1
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m zipfile -e "$wheel" "$folder/site" # as an installation would; environments made by uv have no pip
cd "$folder"
status=0
PYTHONPATH="$folder/site${PYTHONPATH:+:$PYTHONPATH}" "$python" "$here/offload.py" "$results" "${@:3}" || status=$?
echo "results: $results.json, $results.md"
exit "$status"
