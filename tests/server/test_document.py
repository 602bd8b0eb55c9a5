"""Schemathesis sends what the API's document allows and what it forbids; answers are as the document says.

Skipped by name if schemathesis is not installed (scripts/test_server.sh installs it). `MEMSCALE_SERVER_EXAMPLES` makes
more of them (`make soak-server`).
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from server_support import Client, Server, first_team, make_token, sign_up, steps

EXAMPLES = os.environ.get("MEMSCALE_SERVER_EXAMPLES", "3")
CHECKS = [
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "unsupported_method", "use_after_free",
]  # fmt: skip


def test_answers_are_as_the_document_says(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    program = shutil.which("st", path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("schemathesis is not installed")
    server = Server(data, "--limits", "1000000")
    try:
        owner = sign_up(server, server.first_key(), "owner")
        team = first_team(owner)
        token = make_token(owner, team, "runs:write", "runs:read", "admin")
        client = Client(server, token)
        run, other = client.begin_run("one"), client.begin_run("other")
        client.append(run, 1, steps(1, 20))
        # Objects that are there, so that requests get past "not found".
        names = {"team": team, "run": run, "other": other, "account": owner.account}
        lines = [f"{kind}.{name} = {json.dumps(value)}" for name, value in names.items() for kind in ("path",)]
        (tmp_path / "schemathesis.toml").write_text(
            "[parameters]\n" + "\n".join(f'"{x.split(" = ")[0]}" = {x.split(" = ")[1]}' for x in lines) + "\n"
        )
        url = f"http://127.0.0.1:{server.port}/api/v1/openapi.json"
        ran = subprocess.run(
            [program, "run", url, "-H", f"Authorization: Bearer {token}", "--phases", "examples,coverage,fuzzing",
             "--max-examples", EXAMPLES, "--seed", "7", "--continue-on-failure", "--checks", ",".join(CHECKS),
             "--exclude-path-regex", "/events$", "--exclude-method", "DELETE"],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert ran.returncode == 0, re.sub(r"\n{2,}", "\n", ran.stdout)[-6000:] + ran.stderr
        assert [line for line in server.log() if line.get("status", 0) >= 500] == []
    finally:
        server.stop()
