#!/usr/bin/env bash
# Measures speed: the micro-benchmarks in C, AdamW compared with other optimizers, then whole training
# steps compared with the unmodified run and Hugging Face checkpointing. No test runs this.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/build.sh"
cd "$ROOT"
meson_build bench --buildtype=release -Doptimization=2 -Dpython=disabled -Dtests=false
if [ -n "$(meson introspect build/bench --benchmarks | tr -d '[] \n')" ]; then
    say "micro-benchmarks"
    meson test -C build/bench --benchmark --verbose
fi
cd build
say "optimizers"
python -m memscale.benchmarks.optimizers
say "training steps"
python -m memscale.benchmarks "$@"
