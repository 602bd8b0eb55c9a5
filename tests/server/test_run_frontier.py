"""What another budget would buy: a frontier of a run's own documents, through the API and on the run's page."""

from __future__ import annotations

import html
import json
import pathlib
import re
import subprocess
from typing import Any

from databases import choice
from server_support import PROGRAM, Client, Server, first_team, make_token, sign_up
from test_artifacts import put
from test_frontiers import ended, large, wait_for_worker
from test_services import DATA, program_of

CONFIG = {"version": 1, "mode": "conservative"}


def stored_run(client: Client, key: str, *kinds: str) -> str:
    """A run with these documents."""
    files = {"graph": DATA / "graph_small.json", "hardware": DATA / "hardware_disk.json"}
    run = client.begin_run(key)
    for kind in kinds:
        body = files[kind].read_bytes() if kind in files else json.dumps(CONFIG).encode()
        assert put(client, run, kind, body).status == 201
    return run


def begin(client: Client, run: str, points: Any) -> Any:
    return client.send("POST", f"/api/v1/runs/{run}/frontier", {"points": points})


def of_program(points: int, folder: pathlib.Path | None = None) -> bytes:
    line = [program_of(PROGRAM), "plan", "--sweep", str(points), "--json"]
    line += ["--graph", str(DATA / "graph_small.json"), "--hardware", str(DATA / "hardware_disk.json")]
    if folder is not None:
        (folder / "config.json").write_text(json.dumps(CONFIG))
        line += ["--config", str(folder / "config.json")]
    return subprocess.run(line, capture_output=True, check=True).stdout


def test_a_frontier_of_a_run_is_that_of_the_program_byte_for_byte(program: Client, key, tmp_path: pathlib.Path) -> None:
    for kinds, expected in (
        (("graph", "hardware"), of_program(5)), (("graph", "hardware", "config"), of_program(5, tmp_path)),
    ):  # fmt: skip
        run = stored_run(program, key(), *kinds)
        answer = begin(program, run, 5)
        assert answer.status == 202 and answer.json["run"] == run, answer.text
        assert answer.headers["location"] == f"/api/v1/frontiers/{answer.json['id']}"
        shown = ended(program, answer.json["id"])
        assert (shown["state"], shown["points_done"], shown["run"]) == ("done", 5, run)
        assert program.get(f"/api/v1/frontiers/{shown['id']}/result").body == expected


def test_what_a_run_begins_with_is_enough(program: Client, key, tmp_path: pathlib.Path) -> None:
    graph, hardware = (json.loads((DATA / name).read_text()) for name in ("graph_small.json", "hardware_disk.json"))
    run = program.begin_run(key(), graph=graph, hardware=hardware, config=CONFIG)
    shown = program.get(f"/api/v1/runs/{run}").json
    assert [artifact["kind"] for artifact in shown["artifacts"]] == ["graph", "hardware"]
    assert program.get(f"/api/v1/runs/{run}/artifacts/graph").json == graph
    job = ended(program, begin(program, run, 5).json["id"])
    assert program.get(f"/api/v1/frontiers/{job['id']}/result").body == of_program(5, tmp_path)


def test_without_graph_or_hardware_there_is_none(program: Client, key) -> None:
    for kinds in ((), ("graph",), ("hardware",), ("hardware", "config")):
        run = stored_run(program, key(), *kinds)
        assert begin(program, run, 5).status == 409, kinds
    run = stored_run(program, key(), "graph", "hardware")
    for bad in (0, 201, -1, "5", None, 1.5):
        assert begin(program, run, bad).status == 422, bad
    assert program.send("POST", f"/api/v1/runs/{run}/frontier", {"points": 1, "graph": {}}).status == 422


def test_the_page_begins_one_and_shows_it_without_a_script(owner: Client, program: Client, key) -> None:
    bare = program.begin_run(key())
    assert "another budget" not in owner.get(f"/runs/{bare}").text
    run = stored_run(program, key(), "graph", "hardware")
    page = owner.get(f"/runs/{run}").text
    assert f'action="/runs/{run}/frontier"' in page and "<progress" not in page
    assert owner.form(f"/runs/{run}/frontier", csrf="wrong", points="5").status == 403
    for bad in ("", "0", "201", "5x", "-1"):
        assert owner.form(f"/runs/{run}/frontier", points=bad).status == 422, bad
    assert owner.form(f"/runs/{bare}/frontier", points="5").status == 409
    begun = owner.form(f"/runs/{run}/frontier", points="5")
    assert begun.status == 303 and begun.headers["location"] == f"/runs/{run}#frontier"
    page = owner.get(f"/runs/{run}").text
    found = re.search(r'data-job="(\w+)"', page)
    assert found is not None
    ended(program, found[1])
    page = owner.get(f"/runs/{run}").text
    table = page.split('aria-label="Budgets"')[1].split("</table>")[0]
    rows = [html.unescape(re.sub("<[^>]*>", "|", row)) for row in re.findall(r"<tr><th scope=\"row\".*", table)]
    points = json.loads(of_program(5))["points"]
    assert len(rows) == len(points) == 5
    for row, point in zip(rows, points, strict=True):
        layers = [f"{count} {technique}" for technique, count in point["layers"].items() if count > 0]
        assert layers and f"|{', '.join(layers)}|" in row, (row, point)
    assert f'id="frontier-chart" class="chart" data-job="{found[1]}"' in page
    assert f'action="/runs/{run}/frontier"' in page  # and once more


def test_a_failed_one_says_why(owner: Client, program: Client, key) -> None:
    run = program.begin_run(key())
    for kind in ("graph", "hardware"):
        put(program, run, kind, b"{}")
    assert ended(program, begin(program, run, 2).json["id"])["state"] == "failed"
    assert re.search("It failed: .*graph", owner.get(f"/runs/{run}").text)


def test_progress_is_shown_and_a_deleted_run_takes_its_frontiers_along(data: pathlib.Path) -> None:
    server = Server(data, "--limits", "1000000")
    try:
        owner = sign_up(server, server.first_key(), "owner")
        program = Client(server, make_token(owner, first_team(owner), "runs:read", "runs:write"))
        run = stored_run(program, "one", "graph", "hardware")
        job = begin(program, run, large()["points"]).json["id"]
        wait_for_worker(server)
        page = owner.get(f"/runs/{run}").text
        assert re.search(r'<progress [^>]*max="200" value="\d+"', page) and "Look again" in page
        assert f'action="/runs/{run}/frontier"' not in page  # one at a time
        assert owner.send("DELETE", f"/api/v1/runs/{run}").status == 204
        assert program.get(f"/api/v1/frontiers/{job}").status == 404
        assert choice.now.sql(data, "SELECT count(*) FROM job") == "0"
        run = stored_run(program, "two", "graph", "hardware")
        assert ended(program, begin(program, run, 1).json["id"])["state"] == "done"  # the next one is made
    finally:
        server.stop()
