"""One server for the tests that leave it as it was: its owner, a stranger, and programs with tokens."""

from __future__ import annotations

import itertools
import os
import pathlib
import signal
from collections.abc import Callable, Iterator

import pytest
from databases import Postgres, Sqlite, choice
from server_support import PROGRAM, Client, Server, first_team, invite, make_token, sign_up

_names = itertools.count()

# These run on both databases, and all of them if MEMSCALE_SERVER_DATABASES is "all".
OF_THE_STORE = {
    "test_durability", "test_entry", "test_permissions", "test_postgresql", "test_runs", "test_second_factor",
    "test_two_servers",
}  # fmt: skip

# A shell's background job ignores SIGINT, and so would every process that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what was not asked for."""
    if os.environ.get("MEMSCALE_SERVER_DATABASES") == "all":
        return

    def is_left_out(item: pytest.Item) -> bool:
        call = getattr(item, "callspec", None)
        on_postgres = call is not None and call.params.get("database") == "postgresql"
        return on_postgres and item.path.stem not in OF_THE_STORE

    config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
    items[:] = [item for item in items if not is_left_out(item)]


@pytest.fixture(scope="session", autouse=True)
def _cluster() -> Iterator[None]:
    yield
    choice.close()


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Sqlite | Postgres:
    """The database of the test's servers. A test of one database alone is marked on_sqlite or on_postgresql."""
    return choice.use(request.param, PROGRAM)


@pytest.fixture(scope="session")
def server(database: Sqlite | Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Limits are out of the way, but for the tests of limits."""
    started = Server(tmp_path_factory.mktemp("server"), "--limits", "1000000")
    yield started
    assert started.stop() == 0


@pytest.fixture(scope="session")
def owner(server: Server) -> Client:
    """The first account: owner of the first team and operator."""
    return sign_up(server, server.first_key(), "owner")


@pytest.fixture(scope="session")
def team(owner: Client) -> str:
    return first_team(owner)


@pytest.fixture
def join(server: Server, owner: Client, team: str) -> Callable[[str], Client]:
    """Makes an account that has this role in the first team."""
    return lambda role: sign_up(server, invite(owner, team, role), f"{role}{next(_names)}")


@pytest.fixture(scope="session")
def stranger(server: Server, owner: Client) -> Client:
    """An account that is in a team of its own only."""
    other = owner.send("POST", "/api/v1/teams", {"name": "Elsewhere"}).json["id"]
    client = sign_up(server, invite(owner, other, "owner"), "stranger")
    assert owner.send("DELETE", f"/api/v1/teams/{other}/members/{owner.account}").status == 204
    return client


@pytest.fixture
def program(server: Server, owner: Client, team: str) -> Client:
    """A training process: a token that writes and reads runs."""
    return Client(server, make_token(owner, team, "runs:write", "runs:read"))


@pytest.fixture
def key() -> Callable[[], str]:
    """Idempotency keys that no other test uses."""
    return lambda: f"key{next(_names)}"


@pytest.fixture
def data(database: Sqlite | Postgres, tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Where a server of one's own keeps its database, or what stands for it."""
    yield tmp_path / "data"
    database.forget(tmp_path / "data")
