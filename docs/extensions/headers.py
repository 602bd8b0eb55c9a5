"""Sphinx extension: `{header} plan.h` shows a public C header, in the order in which it is written.

Doxygen reads the headers once a build, Breathe shows what it found; scripts/docs.sh has every page made
anew. Every warning of Doxygen is one of the build, among them each declaration without a comment; members
of structs and enumerators may do without. A header that no page shows is a warning too.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

from breathe.directives.file import DoxygenFileDirective
from docutils import nodes
from header_filter import SHARED
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util import logging

DOCS = pathlib.Path(__file__).resolve().parent.parent
HEADERS = DOCS.parent / "include" / "memscale"
SECTION = re.compile(r"/\* -{2,} (.*?) -{2,} ?\*/")
# Macros that only make other declarations: a table goes by the enumerators that it makes.
MAKER = re.compile(r"MS_\w+_(TABLE|ROWS|ENUM)\b")
# `"name" "_rest": "text"`, `name: "text"` or `"name" text`, as the row's columns are joined by header_filter.py.
ROW = re.compile(r'((?:"[^"]*"\s*)+|\w+(?=: "))(?::\s+)?(.*)', re.DOTALL)
JOINT = re.compile(r'"\s*"|"')
MAY_GO_WITHOUT = re.compile(r"\(variable\) of |Member MS_\w+_ENUM\(")

# What Breathe shows of a file besides its opening comment.
DECLARATIONS = (addnodes.desc, addnodes.index, nodes.container, nodes.target)

logger = logging.getLogger(__name__)

# ---- Doxygen --------------------------------------------------------------------------------


def xml_folder(app: Sphinx) -> pathlib.Path:
    return pathlib.Path(app.doctreedir).parent / "doxygen"


def run_doxygen(app: Sphinx) -> None:
    """Reads all headers; what Doxygen complains of becomes warnings."""
    if shutil.which("doxygen") is None:
        raise ExtensionError("doxygen is not installed; `make docs` installs it")
    folder = xml_folder(app)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    program = pathlib.Path(__file__).with_name("header_filter.py")
    settings = f"""{(DOCS / "Doxyfile").read_text(encoding="utf-8")}
INPUT = "{HEADERS}"
INPUT_FILTER = "'{sys.executable}' '{program}'"
STRIP_FROM_PATH = "{HEADERS.parent}"
OUTPUT_DIRECTORY = "{folder}"
XML_OUTPUT = .
"""
    done = subprocess.run(["doxygen", "-"], input=settings, capture_output=True, text=True, check=True)
    for line in done.stderr.splitlines():
        if line.strip() and not MAY_GO_WITHOUT.search(line):
            logger.warning("%s", line)


# ---- the directive --------------------------------------------------------------------------


def name_of(declaration: addnodes.desc) -> str:
    return str(next(declaration.findall(addnodes.desc_signature)).get("_toc_name", ""))


def content_of(declaration: addnodes.desc) -> addnodes.desc_content:
    return next(child for child in declaration.children if isinstance(child, addnodes.desc_content))


def line_of(name: str, lines: list[str]) -> int:
    """The line that declares a name: the first that mentions it, since C declares before use."""
    declares = re.compile(rf"(?:MS_API|typedef|struct|enum|#define)\b.*\b{name}\b")
    return next(number for number, line in enumerate(lines) if declares.match(line))


def is_member(node: nodes.Element) -> bool:
    """Whether it stands inside of another declaration."""
    parent = node.parent
    while parent is not None and not isinstance(parent, addnodes.desc):
        parent = parent.parent
    return parent is not None


def merge_shared(declarations: list[addnodes.desc]) -> list[addnodes.desc]:
    """Gathers what one comment describes: signatures in a row, a table's comment at its enumerators."""
    merged: list[addnodes.desc] = []
    carried: list[nodes.Node] = []
    for declaration in declarations:
        content = content_of(declaration)
        is_shared = content.astext().strip() == SHARED
        if MAKER.fullmatch(name_of(declaration)):
            carried += [] if is_shared or name_of(declaration).endswith("_ENUM") else content.children
        elif carried:
            content.children[: 1 if content.astext().startswith(SHARED) else 0] = []
            content.insert(0, carried)
            carried = []
            merged.append(declaration)
        elif is_shared and merged and merged[-1]["objtype"] == declaration["objtype"]:
            place = merged[-1].index(content_of(merged[-1]))
            merged[-1].insert(place, [one for one in declaration.children if one is not content])
        else:
            merged.append(declaration)
    return merged


def show_row(enumerator: addnodes.desc) -> None:
    """The strings of a table's row as text: the name that documents use, and what it means."""
    content = content_of(enumerator)
    row = ROW.fullmatch(content.astext().strip())
    if row is not None:
        name, text = (JOINT.sub("", part).strip() for part in row.groups())
        content.children = []
        content += nodes.paragraph("", "", nodes.literal(name, name), nodes.Text(f": {text}" if text else ""))


class HeaderDirective(DoxygenFileDirective):
    """`{header} plan.h`: the header's opening comment, then its sections with all declarations."""

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        self.env.memscale_headers.add(name)
        holder = nodes.container("", *super().run())
        if not (HEADERS / name).exists():
            return list(holder.children)  # a warning
        top = self.make_section(f"memscale/{name}", name.replace("_", "__").replace(".", "_8"))
        top["names"] = top["ids"]  # the label that Doxygen gives to references to the file
        self.state.document.note_explicit_target(top, top)
        top += [entry for entry in holder.findall(addnodes.index) if not is_member(entry)]
        top += [child for child in holder.children if not isinstance(child, DECLARATIONS)]
        self.place(top, name, holder)
        return [top]

    def make_section(self, title: str, key: str) -> nodes.section:
        return nodes.section("", nodes.title("", title), ids=[key])

    def in_order(self, holder: nodes.Element, lines: list[str]) -> list[tuple[int, addnodes.desc]]:
        """The header's own declarations with the lines they are on, first line first."""
        for rubric in list(holder.findall(nodes.rubric)):
            rubric.parent.remove(rubric)
        # Not by Doxygen's numbers: behind a table they are too large.
        anonymous = (number for number, line in enumerate(lines) if line.startswith("enum {"))
        found: list[tuple[int, addnodes.desc]] = []
        for declaration in holder.findall(addnodes.desc):
            name = name_of(declaration)
            # Members would crowd the page's table of contents, and "@1" says nothing there.
            declaration["no-contents-entry"] = is_member(declaration) or name.startswith("@")
            if declaration["objtype"] == "enumerator":
                show_row(declaration)
            elif not is_member(declaration):
                found.append((next(anonymous) if name.startswith("@") else line_of(name, lines), declaration))
        return sorted(found, key=lambda pair: pair[0])

    def place(self, top: nodes.section, name: str, holder: nodes.Element) -> None:
        """Puts declarations into the sections that the header's headings make."""
        lines = (HEADERS / name).read_text(encoding="utf-8").splitlines()
        found = self.in_order(holder, lines)
        headings = [(number, match[1]) for number, line in enumerate(lines) if (match := SECTION.match(line))]
        for begin, end in zip([(0, ""), *headings], [*headings, (len(lines), "")], strict=True):
            here = [declaration for number, declaration in found if begin[0] <= number < end[0]]
            goal = top
            if begin[1] and here:
                goal = self.make_section(begin[1][0].upper() + begin[1][1:], nodes.make_id(f"{name}-{begin[1]}"))
                top += goal
            goal += merge_shared(here)


# ---- the build ------------------------------------------------------------------------------


def prepare(app: Sphinx) -> None:
    run_doxygen(app)
    app.env.memscale_headers = set()


def check_complete(app: Sphinx, env: BuildEnvironment) -> None:
    for name in sorted({path.name for path in HEADERS.glob("*.h")} - env.memscale_headers):
        logger.warning("no page of docs/api/c shows %s", name)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", prepare)
    app.connect("env-check-consistency", check_complete)
    app.add_directive("header", HeaderDirective)
    app.config.breathe_projects = {"memscale": str(xml_folder(app))}
    app.config.breathe_default_project = "memscale"
    return {"parallel_read_safe": False, "parallel_write_safe": True}
