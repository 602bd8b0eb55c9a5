"""Shows Doxygen a public header as it wants it: `header_filter.py FILE` prints the file.

Doxygen (INPUT_FILTER) runs it on every header. The headers' comments are plain; here they get
Doxygen's marks. No line is added or removed, so that Doxygen's warnings name lines of the header.
"""

from __future__ import annotations

import pathlib
import re
import sys

# What stands for the comment of a declaration that shares the comment of the one before it.
SHARED = "Described above."
_NOTE = f"/** {SHARED} */ "

_SECTION = re.compile(r"^/\* -{2,} .* -{2,} ?\*/$", re.MULTILINE)
_ENUMERATORS = re.compile(r"^(#define MS_\w+_ENUM\(([^)]*)\) .*,)$", re.MULTILINE)
_DECLARATION = re.compile(r"MS_API |typedef |enum |struct |#define (?!MS_\w+_ENUM|MEMSCALE_)")
# An enumeration that a table makes: the table's comment is its own, with or without a blank line between them.
_MADE = re.compile(r"^(?=(?:typedef )?enum .*\n#define MS_\w+_ENUM\()", re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_BY_HAND = re.compile(r" \* {3,}(?!- )\S")
# Columns of a table that tell readers what an enumerator means.
_TOLD_COLUMNS = ("name", "exception", "text")


def _say_texts(macro: re.Match[str]) -> str:
    """Gives each enumerator of a table the texts of its row as a comment."""
    columns = [column.strip() for column in macro[2].split(",")][1:]
    return f"{macro[1]} /**< {': '.join(column for column in columns if column in _TOLD_COLUMNS)} */"


def _mark_comments(text: str) -> str:
    text = re.sub(r"\A/\*\n \* \w+\.h - (\w)", lambda match: f"/** @file\n * {match[1].upper()}", text)
    text = _ENUMERATORS.sub(_say_texts, _MADE.sub(_NOTE, _SECTION.sub("", text)))
    text = _COMMENT.sub(_keep_layout, text)
    text = re.sub(r"^(\s*)/\*(?!\*)", r"\1/**", text, flags=re.MULTILINE)
    return re.sub(r"(\S[ \t]+)/\*(?!\*)", r"\1/**<", text)


def _keep_layout(comment: re.Match[str]) -> str:
    """Makes paragraphs of a comment that are laid out by hand code to Markdown, which keeps their lines."""
    paragraphs = re.split(r"(\n \*\n)", comment[0])
    return "".join(
        re.sub(r"^ \* ", " *     ", paragraph, flags=re.MULTILINE) if _BY_HAND.match(paragraph) else paragraph
        for paragraph in paragraphs
    )


def _share_comments(text: str) -> str:
    """Marks declarations that follow a described one without a blank line between them."""
    lines = text.splitlines()
    is_described = in_comment = False
    for number, line in enumerate(lines):
        if line.startswith(_NOTE):
            is_described = True
        elif line.startswith("/**"):
            in_comment = is_described = True
        elif _DECLARATION.match(line) and is_described and not lines[number - 1].endswith("*/"):
            lines[number] = _NOTE + line
        elif not line and not in_comment:
            is_described = False
        in_comment = in_comment and "*/" not in line
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(_share_comments(_mark_comments(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))))
