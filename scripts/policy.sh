#!/usr/bin/env bash
# Makes the shipped policy again from its manifest: corpus, training, artifact. Fails if a byte differs.
#   scripts/policy.sh FOLDER            the corpus goes to (or is continued in) FOLDER
#   POLICY_UPDATE=1 POLICY_ROWS=5000 scripts/policy.sh FOLDER   replaces manifest and artifact by new ones
set -euo pipefail
. "$(dirname "$0")/common.sh"

[ $# -eq 1 ] || die "usage: scripts/policy.sh FOLDER"
folder=$(realpath -m "$1")
manifest=$ROOT/src/policy/manifest.json
"$ROOT/scripts/build.sh"
install_requirements -training || die "the packages of scripts/requirements-training.txt could not be installed."
cd /tmp
export OMP_NUM_THREADS=1

seed=$(python -c "import json; print(json.load(open('$manifest'))['seed'])")
rows=${POLICY_ROWS:-$(python -c "import json; print(json.load(open('$manifest'))['rows'])")}
say "corpus: $rows runs"
python -m memscale.policy.corpus "$folder" --seed "$seed" --rows "$rows"
say "training"
python -m memscale.policy.training "$folder" --output "$folder/policy.json"
if [ -n "${POLICY_UPDATE:-}" ]; then
    cp "$folder/manifest.json" "$manifest"
    cp "$folder/policy.json" "$ROOT/src/policy/shipped.json"
    python -m memscale.policy.evaluation "$folder" "$folder/policy.json" --output "$ROOT/docs/results" --time 200
    say "replaced $manifest and shipped.json; put the table into docs/results/policy.md"
    exit 0
fi
cmp "$folder/manifest.json" "$manifest" || die "the corpus differs from the manifest's."
cmp "$folder/policy.json" "$ROOT/src/policy/shipped.json" || die "the artifact differs from the shipped one."
say "corpus and artifact are those that are shipped, byte for byte"
