"""The second factor: set-up, sign-in in two steps, codes that count once, recovery codes, turning it off."""

from __future__ import annotations

import html
import pathlib
import re
import threading
import urllib.parse
from collections.abc import Callable

from authenticator import Authenticator, begin, code_of, codes_on, pending_of, send_code, set_up
from databases import Postgres, Sqlite
from server_support import (
    PASSWORD,
    ROOT,
    Client,
    Server,
    check_database,
    first_team,
    make_token,
    on_sqlite,
    run_program,
    sign_up,
)


def email_of(client: Client) -> str:
    return str(client.get("/api/v1/account").json["account"]["email"])


def state_of(client: Client) -> dict | None:
    return client.get("/api/v1/account").json["second_factor"]


# ---- set-up ----------------------------------------------------------------------


def test_a_set_up_shows_secret_address_and_picture_once_and_needs_a_code(join: Callable[[str], Client]) -> None:
    client = join("viewer")
    email = email_of(client)
    assert "Set up a second factor" in client.get("/account").text
    assert client.form("/account/second-factor", password="not the password").status == 403
    page = client.form("/account/second-factor", password=PASSWORD)
    assert page.status == 200
    uri = urllib.parse.urlsplit(html.unescape(re.search(r'href="(otpauth:[^"]+)"', page.text)[1]))
    assert uri.scheme == "otpauth" and uri.netloc == "totp"
    assert urllib.parse.unquote(uri.path) == f"/memscale 127.0.0.1:{email}" and uri.path.count(":") == 1
    fields = urllib.parse.parse_qs(uri.query, strict_parsing=True)
    assert fields.keys() == {"secret", "issuer"} and fields["issuer"] == ["memscale 127.0.0.1"]
    authenticator = Authenticator(fields["secret"][0])
    assert page.text.count(authenticator.base32) == 3  # link, secret, address
    assert re.search(
        r'<svg class="qr" role="img" aria-label="[^"]+" viewBox="-4 -4 \d+ \d+"><path d="[M0-9 hvz-]+"/>', page.text
    )
    assert "style=" not in page.text and "style-src 'self';" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"
    assert state_of(client) is None  # it does not count yet
    assert Client(client.server).sign_in(email).status == 303

    wrong = client.form("/account/second-factor/confirm", code=authenticator.wrong_code())
    assert wrong.status == 422 and 'role="alert"' in wrong.text and authenticator.base32 not in wrong.text
    code = authenticator.code()
    right = client.form("/account/second-factor/confirm", code=f" {code[:3]} {code[3:]}")
    assert right.status == 200 and len(set(codes_on(right))) == 10
    assert state_of(client)["recovery_codes_left"] == 10
    account = client.get("/account").text
    assert "Recovery codes left: 10." in account and "Set up" not in account
    assert not any(code in account for code in codes_on(right)) and authenticator.base32 not in account


def test_a_set_up_ends_all_other_sessions(server: Server, join: Callable[[str], Client]) -> None:
    client = join("viewer")
    other = Client(server)
    assert other.sign_in(email_of(client)).status == 303
    before = client.cookie
    set_up(client)
    assert client.cookie != before and client.get("/account").status == 200
    assert other.get("/account").status == 303
    page = client.form("/account/second-factor", password=PASSWORD)
    assert page.status == 409  # it is on: nobody replaces the secret


def test_the_form_on_the_page_of_the_codes_is_of_the_new_session(join: Callable[[str], Client]) -> None:
    client = join("viewer")
    authenticator = begin(client)
    page = client.form("/account/second-factor/confirm", code=authenticator.code())
    csrf = re.search(r'action="/sign-out"><input type="hidden" name="csrf" value="(\w+)"', page.text)
    assert csrf is not None and client.form("/sign-out", csrf=csrf[1]).status == 303


def test_nothing_is_confirmed_that_has_not_begun(join: Callable[[str], Client]) -> None:
    client = join("viewer")
    assert client.form("/account/second-factor/confirm", code="000000").status == 409
    for path in ("codes", "off"):
        assert client.form(f"/account/second-factor/{path}", password=PASSWORD, code="000000").status == 409


def test_its_forms_need_their_token_and_come_from_here(join: Callable[[str], Client]) -> None:
    client = join("viewer")
    begin(client)
    for path in ("", "/confirm", "/codes", "/off"):
        for csrf in ("", "0" * 64):
            answer = client.form(f"/account/second-factor{path}", csrf=csrf, password=PASSWORD, code="000000")
            assert answer.status == 403 and "out of date" in answer.text
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "cross-site"}
    answer = Client(client.server).request("POST", "/sign-in/code", "pending=x&code=y", headers)
    assert answer.status == 403 and "another site" in answer.text


# ---- sign-in ----------------------------------------------------------------------


def test_signing_in_takes_password_and_code(server: Server, join: Callable[[str], Client]) -> None:
    owner = join("member")
    email = email_of(owner)
    token = Client(server, make_token(owner, first_team(owner), "runs:read"))
    authenticator, _ = set_up(owner)
    client = Client(server)
    page = client.sign_in(email)
    pending = pending_of(page)
    assert page.status == 200 and "set-cookie" not in page.headers
    # Between the two there is nothing that the secret opens.
    for cookie in (None, f"ms_session={pending}"):
        client.cookie = cookie
        assert client.get("/account").status == 303
        assert client.get("/api/v1/account").status == 401
    client.cookie = None
    assert Client(server, pending).get("/api/v1/teams").status == 401
    answer = send_code(client, pending, authenticator.code())
    assert answer.status == 303 and answer.headers["location"] == "/runs"
    assert client.get("/account").status == 200
    assert token.get("/api/v1/runs").status == 200  # tokens work without it
    again = Client(server)
    assert send_code(again, pending, authenticator.code()).status == 401  # it is used up
    assert again.cookie is None


def test_a_new_session_at_the_second_step_ends_the_one_that_came_along(
    server: Server, join: Callable[[str], Client]
) -> None:
    client, holder = join("viewer"), join("viewer")
    authenticator, _ = set_up(holder)
    before, csrf = client.cookie, client.csrf()
    page = client.form("/sign-in", csrf=csrf, email=email_of(holder), password=PASSWORD)
    assert client.cookie == before and client.get("/account").status == 200  # nothing has happened yet
    answer = client.form("/sign-in/code", csrf=csrf, pending=pending_of(page), code=authenticator.code())
    assert answer.status == 303 and client.cookie != before
    assert email_of(client) == email_of(holder)
    fixed = Client(server)
    fixed.cookie = before
    assert fixed.get("/account").status == 303


def test_without_the_password_nobody_learns_of_it(server: Server, join: Callable[[str], Client]) -> None:
    holder, plain = join("viewer"), join("viewer")
    set_up(holder)
    answers = []
    for email in (email_of(holder), email_of(plain), "nobody@example.com"):
        answer = Client(server).sign_in(email, "not the password")
        answers.append((answer.status, answer.text.replace(email, ""), sorted(answer.headers)))
    assert answers[0] == answers[1] == answers[2] and answers[0][0] == 401


def test_a_code_is_accepted_once(server: Server, join: Callable[[str], Client]) -> None:
    holder = join("viewer")
    email = email_of(holder)
    authenticator, _ = set_up(holder)
    set_up_with = code_of(authenticator.base32, authenticator.last_step)
    client = Client(server)
    assert send_code(client, pending_of(client.sign_in(email)), set_up_with).status == 401
    code = authenticator.code()
    assert send_code(client, pending_of(client.sign_in(email)), code).status == 303
    other = Client(server)
    refused = send_code(other, pending_of(other.sign_in(email)), code)
    assert refused.status == 401 and "used already" in refused.text and other.cookie is None
    older = code_of(authenticator.base32, authenticator.last_step - 1)
    assert send_code(other, pending_of(refused), older).status == 401


def test_of_many_that_send_one_code_at_once_one_gets_in(server: Server, join: Callable[[str], Client]) -> None:
    holder = join("viewer")
    email = email_of(holder)
    authenticator, recovery = set_up(holder)
    for code in (authenticator.code(), recovery[0]):
        clients = [Client(server) for _ in range(6)]
        waiting = [pending_of(client.sign_in(email)) for client in clients]
        statuses: list[int] = []

        def send(client: Client, pending: str, code: str = code, statuses: list[int] = statuses) -> None:
            statuses.append(send_code(client, pending, code).status)

        threads = [threading.Thread(target=send, args=pair) for pair in zip(clients, waiting, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [303, 401, 401, 401, 401, 401]


def test_a_sign_in_has_five_tries(server: Server, join: Callable[[str], Client]) -> None:
    holder = join("viewer")
    email = email_of(holder)
    authenticator, _ = set_up(holder)
    client = Client(server)
    page = client.sign_in(email)
    pending = pending_of(page)
    for _ in range(4):
        page = send_code(client, pending, authenticator.wrong_code())
        assert page.status == 401 and pending_of(page) == pending
    last = send_code(client, pending, authenticator.wrong_code())
    assert last.status == 401 and "Sign in again" in last.text and 'name="pending"' not in last.text
    code = authenticator.code()
    assert send_code(client, pending, code).status == 401  # the right one comes too late
    assert send_code(client, pending_of(client.sign_in(email)), code).status == 303  # and nobody is locked out


def test_a_sign_in_waits_five_minutes(data: pathlib.Path, database: Sqlite | Postgres) -> None:
    server = Server(data, "--limits", "1000000")
    try:
        holder = sign_up(server, server.first_key(), "holder")
        authenticator, _ = set_up(holder)
        client = Client(server)
        pending = pending_of(client.sign_in("holder@example.com"))
        assert database.sql(data, "SELECT expires_at - created_at FROM pending_sign_in") == "300000"
        database.sql(data, "UPDATE pending_sign_in SET expires_at = expires_at - 300000")
        code = authenticator.code()
        late = send_code(client, pending, code)
        assert late.status == 401 and "too late" in late.text
        assert send_code(client, pending_of(client.sign_in("holder@example.com")), code).status == 303
        assert database.sql(data, "SELECT count(*) FROM pending_sign_in") == "0"  # and it is gone
    finally:
        server.stop()
    check_database(data)


def test_wrong_codes_count_like_wrong_passwords(data: pathlib.Path) -> None:
    # Two guesses at once and then one a minute: a machine that stands still for seconds gives none away.
    server = Server(data, "--trust-proxy", "127.0.0.1", "--limits", "20")
    try:
        holder = sign_up(server, server.first_key(), "owner")
        email = "owner@example.com"

        def post(address: str, path: str, **fields: str):
            body = urllib.parse.urlencode(fields)
            headers = {"Content-Type": "application/x-www-form-urlencoded", "X-Forwarded-For": address}
            if path.startswith("/account"):
                headers["Cookie"] = holder.cookie or ""
                body += f"&csrf={holder.csrf()}"
            answer = Client(server).request("POST", path, body, headers)
            if "set-cookie" in answer.headers:
                holder.cookie = answer.headers["set-cookie"].split(";")[0]
            return answer

        page = post("203.0.113.1", "/account/second-factor", password=PASSWORD)
        authenticator = Authenticator(re.search(r">([A-Z2-7]{32})<", page.text)[1])
        page = post("203.0.113.2", "/account/second-factor/confirm", code=authenticator.code())
        recovery = codes_on(page)
        assert page.status == 200

        # The password takes one guess, a code another; then that address has none left.
        pending = pending_of(post("203.0.113.3", "/sign-in", email=email, password=PASSWORD))
        guesses = [post("203.0.113.3", "/sign-in/code", pending=pending, code="000000") for _ in range(3)]
        assert [guess.status for guess in guesses] == [401, 429, 429]
        assert 1 <= int(guesses[2].headers["retry-after"]) <= 60
        assert post("203.0.113.3", "/sign-in/code", pending=pending, code=recovery[0]).status == 429
        # From elsewhere the owner gets in, and the code that was refused unread is still good.
        pending = pending_of(post("203.0.113.4", "/sign-in", email=email, password=PASSWORD))
        assert post("203.0.113.4", "/sign-in/code", pending=pending, code=recovery[0]).status == 303
    finally:
        server.stop()


# ---- recovery codes, and the end ----------------------------------------------------


def test_a_recovery_code_signs_in_once(server: Server, join: Callable[[str], Client]) -> None:
    holder = join("viewer")
    email = email_of(holder)
    _, codes = set_up(holder)
    client = Client(server)
    answer = send_code(client, pending_of(client.sign_in(email)), codes[3].upper().replace("-", " "))
    assert answer.status == 303 and answer.headers["location"] == "/account"
    assert "Recovery codes left: 9." in client.get("/account").text
    again = Client(server)
    assert send_code(again, pending_of(again.sign_in(email)), codes[3]).status == 401
    assert send_code(again, pending_of(again.sign_in(email)), codes[4]).status == 303


def test_new_recovery_codes_end_the_older_ones(server: Server, join: Callable[[str], Client]) -> None:
    holder = join("viewer")
    email = email_of(holder)
    _, codes = set_up(holder)
    path = "/account/second-factor/codes"
    assert holder.form(path, password="not the password", code=codes[0]).status == 403
    assert holder.form(path, password=PASSWORD, code="000000").status == 403
    newer = codes_on(holder.form(path, password=PASSWORD, code=codes[0]))
    assert len(newer) == 10 and not set(newer) & set(codes)
    client = Client(server)
    page = client.sign_in(email)
    assert send_code(client, pending_of(page), codes[1]).status == 401
    assert send_code(client, pending_of(page), newer[1]).status == 303


def test_it_is_turned_off_by_password_and_code(server: Server, join: Callable[[str], Client]) -> None:
    holder = join("viewer")
    email = email_of(holder)
    authenticator, codes = set_up(holder)
    waiting = Client(server)
    pending = pending_of(waiting.sign_in(email))
    path = "/account/second-factor/off"
    assert holder.form(path, password="not the password", code=codes[0]).status == 403
    assert holder.form(path, password=PASSWORD, code=authenticator.wrong_code()).status == 403
    assert holder.form(path, password=PASSWORD, code="").status == 403
    assert state_of(holder)["recovery_codes_left"] == 10
    before = holder.cookie
    assert holder.form(path, password=PASSWORD, code=codes[0]).status == 303
    assert holder.cookie != before and state_of(holder) is None
    assert send_code(waiting, pending, codes[1]).status == 401  # that sign-in is over
    assert Client(server).sign_in(email).status == 303
    newer, _ = set_up(holder)  # and it can be set up again
    assert newer.base32 != authenticator.base32


def test_password_and_end_of_the_account_need_a_code_too(server: Server, join: Callable[[str], Client]) -> None:
    holder = join("viewer")
    email = email_of(holder)
    _, codes = set_up(holder)
    waiting = Client(server)
    pending = pending_of(waiting.sign_in(email))
    new = {"password": PASSWORD, "new_password": "another password"}
    assert holder.form("/account/password", **new).status == 403
    assert holder.form("/account/password", **new, code="000000").status == 403
    assert holder.form("/account/delete", password=PASSWORD).status == 403
    assert holder.form("/account/password", **new, code=codes[0]).status == 303
    assert send_code(waiting, pending, codes[1]).status == 401  # it began with the older password
    assert Client(server).sign_in(email, "another password").status == 200
    assert holder.form("/account/delete", password="another password", code=codes[2]).status == 303
    assert Client(server).sign_in(email, "another password").status == 401


# ---- what is kept ------------------------------------------------------------------


def test_what_is_stored_is_told_without_secrets_and_goes_with_the_account(
    data: pathlib.Path, database: Sqlite | Postgres
) -> None:
    server = Server(data, "--limits", "1000000")
    try:
        holder = sign_up(server, server.first_key(), "holder")
        authenticator, codes = set_up(holder)
        client = Client(server)
        pending = pending_of(client.sign_in("holder@example.com"))
        wrong = authenticator.wrong_code()
        for _ in range(5):
            send_code(client, pending, wrong)
        used = authenticator.code()
        assert send_code(client, pending_of(client.sign_in("holder@example.com")), used).status == 303
        waiting = pending_of(Client(server).sign_in("holder@example.com"))
        exported = holder.get("/api/v1/account")
        assert exported.json["second_factor"].keys() == {"confirmed_at", "recovery_codes_left"}
        assert len(exported.json["pending_sign_ins"]) == 1
        secrets = [authenticator.base32, pending, waiting, *codes, *(code.replace("-", "") for code in codes)]
        assert not [secret for secret in secrets if secret in exported.text]
        verbs = "SELECT count(*) FROM audit WHERE verb = 'second factor "
        assert database.sql(data, verbs + "set up'") == database.sql(data, verbs + "refused'") == "1"
        off = client.form("/account/delete", password=PASSWORD, code=codes[0])
        assert off.status == 303
        for table in ("second_factor", "recovery_code", "pending_sign_in"):
            assert database.sql(data, f"SELECT count(*) FROM {table}") == "0"
        assert server.stop() == 0
        log = "".join(server.log_lines)
        assert "/sign-in/code" in log
        assert not [secret for secret in [*secrets, f'"{used}"', f'"{wrong}"'] if secret in log]
    finally:
        if server.process.returncode is None:
            server.stop()
    check_database(data)


def test_it_outlives_a_restart(data: pathlib.Path) -> None:
    first = Server(data, "--limits", "1000000")
    holder = sign_up(first, first.first_key(), "holder")
    authenticator, codes = set_up(holder)
    waiting = pending_of(Client(first).sign_in("holder@example.com"))
    first.stop()
    second = Server(data, "--limits", "1000000")
    try:
        replayed = code_of(authenticator.base32, authenticator.last_step)
        client = Client(second)
        assert send_code(client, waiting, replayed).status == 401
        assert send_code(client, waiting, authenticator.code()).status == 303
        other = Client(second)
        assert send_code(other, pending_of(other.sign_in("holder@example.com")), codes[0]).status == 303
    finally:
        second.stop()
    check_database(data)


@on_sqlite
def test_a_copy_has_it_and_is_put_back(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    server = Server(data, "--limits", "1000000")
    authenticator, codes = set_up(sign_up(server, server.first_key(), "holder"))
    copy, again = tmp_path / "copy.db", tmp_path / "again"
    assert run_program("backup", "--data", data, copy).returncode == 0
    server.stop()
    assert run_program("restore", "--data", again, copy).returncode == 0
    restored = Server(again, "--limits", "1000000")
    try:
        for code in (codes[0], authenticator.code()):
            client = Client(restored)
            assert send_code(client, pending_of(client.sign_in("holder@example.com")), code).status == 303
    finally:
        restored.stop()


def test_who_may_write_to_the_database_removes_it_as_the_operator_s_guide_says(
    data: pathlib.Path, database: Sqlite | Postgres
) -> None:
    told = re.search(r"`(DELETE FROM second_factor [^`]*)`", (ROOT / "deploy/README.md").read_text())
    assert told is not None
    server = Server(data, "--limits", "1000000")
    try:
        set_up(sign_up(server, server.first_key(), "holder"))
        waiting = pending_of(Client(server).sign_in("holder@example.com"))
        database.sql(data, told[1].replace("...", "holder@example.com"))
        assert send_code(Client(server), waiting, "000000").status == 401
        assert Client(server).sign_in("holder@example.com").status == 303
        assert database.sql(data, "SELECT count(*) FROM recovery_code") == "0"
    finally:
        server.stop()
    check_database(data)
