"""Pages without a script: the operator's, projects, and links that keep what was asked for."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

from server_support import ROOT, Client, Server, make_token
from test_artifacts import put
from test_frontiers import ended
from test_services import EVENT, documents, send_event


def test_the_operator_sees_accounts_teams_and_storage(
    server: Server, owner: Client, join: Callable[[str], Client], program: Client, key: Callable[[], str]
) -> None:
    program.begin_run(key())
    email = join("viewer").get("/api/v1/account").json["account"]["email"]
    page = owner.get("/operator")
    assert page.status == 200 and email in page.text and "My team" in page.text
    assert re.search(r"<dt>Database</dt><dd>[\d.]+ [kMG]?B</dd>", page.text)
    assert 'href="/operator"' in owner.get("/account").text
    assert 'href="/operator"' not in join("admin").get("/account").text


def test_a_run_shows_its_documents(owner: Client, program: Client, key: Callable[[], str]) -> None:
    sent = {
        "graph_digest": "ab12<i>",
        "versions": {"memscale": "9.9<i>", "torch": "8"},
        "config": {"mode": "fast", "a": [1, {"b": None}]},
    }
    run = program.begin_run(key(), **sent)
    bare = owner.get(f"/runs/{program.begin_run(key())}").text
    for part in ("Counters", "Versions", "Configuration", "Documents", "Graph digest"):
        assert part not in bare, part
    program.send("POST", f"/api/v1/runs/{run}/finish", {"outcome": "finished", "counters": {"moved_bytes": 123456}})
    assert put(program, run, "graph", b'{"x": 1}').status == put(program, run, "report", b"<p>").status == 201
    page = owner.get(f"/runs/{run}").text
    assert "<dt>Graph digest</dt><dd>ab12&lt;i&gt;</dd>" in page and "<i>" not in page
    for label, name, value in (
        ("Counters", "moved_bytes", "123456"), ("Versions", "memscale", "9.9&lt;i&gt;"),
        ("Configuration", "mode", "fast"),
        ("Configuration", "a", "[1,{&quot;b&quot;:null}]"),
    ):  # fmt: skip
        table = page.split(f'aria-label="{label}"')[1].split("</table>")[0]
        assert f'<th scope="row">{name}</th><td>{value}</td>' in table, table
    for kind in ("graph", "report"):
        assert f'href="/api/v1/runs/{run}/artifacts/{kind}"' in page
    assert owner.get(f"/api/v1/runs/{run}/artifacts/graph").status == 200


def test_the_operator_sees_frontiers(owner: Client, program: Client) -> None:
    def states() -> dict[str, int]:
        page = owner.get("/operator").text
        found = re.search(r"(\d+) waiting, (\d+) running, (\d+) failed, (\d+) done", page)
        assert found is not None
        return dict(zip(("waiting", "running", "failed", "done"), map(int, found.groups()), strict=True))

    before = states()
    for graph in (documents()["graph"], {}):
        job = program.send("POST", "/api/v1/frontiers", {**documents(), "graph": graph, "points": 2}).json["id"]
        ended(program, job)
    after = states()
    assert (after["done"], after["failed"]) == (before["done"] + 1, before["failed"] + 1)
    assert after["waiting"] == after["running"] == 0
    rows = owner.get("/operator?limit=2").text.split('aria-label="Frontiers"')[1].split("</table>")[0]
    assert "<td>My team</td><td>failed</td>" in rows and "graph" in rows and '<td class="number">2 of 2</td>' in rows
    assert owner.get("/operator?frontiers=x").status == 400


def test_accounts_are_paged_by_address(owner: Client, join: Callable[[str], Client]) -> None:
    emails = sorted(join("viewer").get("/api/v1/account").json["account"]["email"] for _ in range(3))
    page = owner.get(f"/operator?after={emails[0]}").text
    assert f'<th scope="row">{emails[0]}</th>' not in page and f'<th scope="row">{emails[1]}</th>' in page


def test_the_operator_deletes_telemetry_by_age(server: Server, owner: Client) -> None:
    def count() -> int:
        return int(
            re.search(r"events (\d+)", owner.get("/metrics").text.split("# TYPE memscale_server_telemetry")[1])[1]
        )

    before = count()
    assert send_event(server, EVENT) == 204 and count() == before + 1
    assert owner.form("/operator/telemetry", days="0").status == 303
    assert count() == before + 1  # today's stay
    for bad in ("", "-1", "1e3", "36501", "9999999999"):
        assert owner.form("/operator/telemetry", days=bad).status == 422


def test_projects_lead_to_their_runs(program: Client, owner: Client, team: str, key: Callable[[], str]) -> None:
    project = f'a&b "{key()}" 50% <i>/é+'
    for _ in range(2):
        program.begin_run(key(), project=project)
    page = owner.get(f"/projects?team={team}").text
    link = re.search(rf'href="(/runs[^"]*)">{re.escape(html.escape(project))}<', page.replace("&#39;", "&#x27;"))
    assert link is not None, page
    runs = owner.get(html.unescape(link[1])).text
    assert runs.count(f"<td>{html.escape(project)}</td>") == 2


def test_older_runs_keep_the_filter(owner: Client, team: str, key: Callable[[], str]) -> None:
    program = Client(owner.server, make_token(owner, team, "runs:write"))
    project = key()
    for number in range(60):
        program.begin_run(key(), project=project if number % 30 else "another")
    page = owner.get(f"/runs?team={team}&project={project}").text
    assert page.count(f"<td>{project}</td>") == 50
    older = re.search(r'href="([^"]*)">Older runs', page)
    assert older is not None
    rest = owner.get(html.unescape(older[1])).text
    assert rest.count(f"<td>{project}</td>") == 8 and "<td>another</td>" not in rest


def test_the_reference_names_every_operation_and_member(server: Server) -> None:
    """Made of the document, so that it can't fall behind it."""
    client = Client(server)
    page, document = client.get("/api").text, client.get("/api/v1/openapi.json").json
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert f"<code>{method.upper()} {path}</code>" in page
            assert html.escape(operation["summary"], quote=False).split("'")[0] in page.replace("&quot;", '"')
    assert page.count(html.escape(document["info"]["description"].split(";")[0])) == 1
    for name in ("Idempotency-Key", "sequence", "columns", "graph", "points", "outcome"):
        assert f"<code>{name}</code>" in page, name


def test_the_privacy_page_names_every_table(server: Server, owner: Client) -> None:
    """A table that is added here has to be told of there."""
    told = Client(server).get("/privacy").text.lower()
    schema = (ROOT / "server/store/migrations.h").read_text()
    tables = set(re.findall(r"CREATE TABLE (\w+)", schema)) - {"member", "project", "batch"}
    names = {
        "job": "frontier", "second_factor": "second factor", "recovery_code": "recovery code",
        "pending_sign_in": "sign-in that waits",
    }  # fmt: skip
    assert len(tables) > 6
    for table in tables:
        assert names.get(table, table) in told, table
