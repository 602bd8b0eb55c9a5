"""Every page in a real browser, by browser/walk.mjs: what people do, axe's findings, widths, light and dark.

Skipped by name without Chromium, Node or the packages that scripts/test_server.sh puts into build/browser.
Screenshots are kept in build/browser/screenshots, for a person to look at.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable

import pytest
from server_support import ROOT, Server, steps
from test_dashboard import PLAN, Dashboard, line

BROWSER = ROOT / "build" / "browser"
CHROMIUM = shutil.which("chromium")


def skip_without_browser() -> None:
    for name, is_there in (
        ("chromium", CHROMIUM is not None),
        ("node", shutil.which("node") is not None),
        ("playwright-core", (BROWSER / "node_modules/playwright-core").is_dir()),
        ("axe-core", (BROWSER / "node_modules/axe-core").is_dir()),
    ):
        if not is_there:
            pytest.skip(f"{name} is not installed")


def walk(server: Server, key: str, between: Callable[[], None]) -> None:
    """Runs walk.mjs, which finds nothing; `between` happens where it asks for it."""
    command = ["node", str(ROOT / "tests/server/browser/walk.mjs"), f"http://127.0.0.1:{server.port}", key]
    command += [str(BROWSER / "screenshots"), str(CHROMIUM)]
    variables = {**os.environ, "NODE_MODULES_PARENT": str(BROWSER)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdin is not None and process.stdout is not None
        findings = []
        for said in process.stdout:
            if said != "restart\n":
                findings.append(said)
                continue
            between()
            process.stdin.write("done\n")
            process.stdin.flush()
    assert findings == [] and process.returncode == 0, "".join(findings)


def test_every_page_in_a_browser(data: pathlib.Path) -> None:
    skip_without_browser()
    servers = [Server(data, "--limits", "1000000")]

    def restart() -> None:
        servers[-1].stop()
        servers.append(Server(data, "--limits", "1000000", "--port", str(servers[-1].port)))

    try:
        walk(servers[0], servers[0].first_key(), restart)
        assert [entry for server in servers for entry in server.log() if entry.get("status", 0) >= 500] == []
    finally:
        servers[-1].stop()


def test_the_dashboard_in_a_browser(tmp_path: pathlib.Path) -> None:
    skip_without_browser()
    folder, temporary = tmp_path / "logs", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()

    def add(first: int, count: int) -> None:
        with (folder / "run.log").open("a") as file:
            file.write("".join(line("step", step=step) for step in steps(first, count)))

    (folder / "run.log").write_text(line("plan", plan=PLAN))
    add(1, 50)
    dashboard = Dashboard(folder, temporary)
    try:
        walk(dashboard, "dashboard", lambda: add(51, 30))
    finally:
        dashboard.stop()
