#!/usr/bin/env bash
# Makes the site build/docs/html of the guide, the results, the formats and the references of Python
# and C. Installs Sphinx into .venv and doxygen where they are missing. Warnings are errors, among
# them a public declaration without a comment and a link that leads nowhere.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/setup.sh"
cd "$ROOT"

command -v doxygen >/dev/null 2>&1 || install_packages doxygen

wanted="$(tree_digest scripts/requirements-docs.txt) $(python -c 'import sys; print(sys.prefix)')"
if ! stamp_is docs-packages "$wanted"; then
    say "installing what the site is made with"
    quietly python -m pip install -r scripts/requirements-docs.txt
    stamp_set docs-packages "$wanted"
fi

wanted=$(tree_digest docs include python scripts/docs.sh scripts/requirements-docs.txt meson.build)
if ! stamp_is docs "$wanted" || [ ! -f build/docs/html/index.html ]; then
    say "making the site"
    # -E: a page that is read once only would give its warnings once only.
    python -m sphinx -q -E -W --keep-going -d build/docs/doctrees docs build/docs/html
    stamp_set docs "$wanted"
fi
say "the site: build/docs/html/index.html"
