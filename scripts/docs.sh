#!/usr/bin/env bash
# Makes the site build/docs/html: the guide, the results, the formats, and the references of Python and
# C. Installs Sphinx (into .venv) and doxygen if they are missing. Fails on every warning, also on a
# public declaration without a comment and on a broken link.
set -euo pipefail
. "$(dirname "$0")/common.sh"

"$ROOT/scripts/setup.sh"
cd "$ROOT"

command -v doxygen >/dev/null 2>&1 || install_packages doxygen

wanted="$(tree_digest scripts/requirements-docs.txt scripts/locked/requirements-docs.txt) $(python -c 'import sys; print(sys.prefix)')"
if ! stamp_is docs-packages "$wanted"; then
    say "installing the tools that make the site"
    install_requirements -docs
    stamp_set docs-packages "$wanted"
fi

wanted=$(tree_digest docs include python scripts/docs.sh scripts/requirements-docs.txt meson.build)
if ! stamp_is docs "$wanted" || [ ! -f build/docs/html/index.html ]; then
    say "making the site"
    # -E reads every page again: Sphinx repeats no warning of a page that it has cached.
    python -m sphinx -q -E -W --keep-going -d build/docs/doctrees docs build/docs/html
    stamp_set docs "$wanted"
fi
say "the site: build/docs/html/index.html"
