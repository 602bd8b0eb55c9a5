"""Sphinx settings of the site that `make docs` makes."""

from __future__ import annotations

import pathlib
import re
import sys
from unittest.mock import MagicMock

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "docs" / "extensions"), str(ROOT / "python")]

project = "memscale"
version = release = re.findall(r"version: '([^']+)'", (ROOT / "meson.build").read_text(encoding="utf-8"))[0]

extensions = ["breathe", "headers", "myst_parser", "sphinx-jsonschema", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["extensions"]
nitpicky = True
nitpick_ignore_regex = [
    ("c:identifier", r"u?int\d+_t|uintptr_t|s?size_t|FILE|va_list"),
    ("py:.*", r"(torch|transformers|lightning|collections|os)\..*"),
    # Type variables, and what is imported for annotations alone.
    ("py:class", r"(memscale\.api\.)?\w+"),
]

myst_heading_anchors = 4
default_role = "code"
highlight_language = "none"

# Python: read, not run. Neither torch nor the C extension has to be there.
autodoc_mock_imports = ["lightning", "torch", "transformers"]

# The extension need not be built. memscale.device makes its table from the extension's rows.
_core = MagicMock(name="memscale._core")
_core.device_kinds.return_value = [{"name": "cpu", "label": "host memory", "api": "", "torch_module": ""}]
sys.modules["memscale._core"] = _core
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

toc_object_entries_show_parents = "hide"

breathe_domain_by_extension = {"h": "c"}
breathe_show_define_initializer = True
breathe_show_include = False

html_theme = "furo"
html_title = f"memscale {version}"
html_static_path = ["static"]
html_css_files = ["memscale.css"]
html_copy_source = False
html_show_copyright = False

jsonschema_options = {"lift_definitions": True, "auto_reference": True, "lift_description": True}
