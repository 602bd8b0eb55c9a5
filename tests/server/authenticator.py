"""An authenticator as people have on their phones: codes of a secret (RFC 6238), written anew for the tests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import re
import struct
import time

from server_support import PASSWORD, Answer, Client

STEP_S = 30


def code_of(base32: str, step: int) -> str:
    """The six digits of one step."""
    digest = hmac.digest(base64.b32decode(base32), struct.pack(">Q", step), hashlib.sha1)
    number = struct.unpack(">I", digest[digest[-1] & 15 :][:4])[0] & 0x7FFFFFFF
    return f"{number % 1_000_000:06d}"


class Authenticator:
    """Gives codes that the server has not seen: of the present step, or of the next, which it accepts too."""

    def __init__(self, base32: str) -> None:
        self.base32 = base32
        self.last_step = 0

    def code(self) -> str:
        """A new code. Waits if the codes of this and the next step have been given; one that is early stays good for a
        minute, so that a machine that stands still spoils none."""
        step = max(self.last_step + 1, int(time.time()) // STEP_S)
        while int(time.time()) // STEP_S < step - 1:
            time.sleep(0.1)
        self.last_step = step
        return code_of(self.base32, step)

    def wrong_code(self) -> str:
        """Six digits that no step near the present one has."""
        present = int(time.time()) // STEP_S
        near = {code_of(self.base32, step) for step in range(present - 10, present + 11)}
        return next(code for code in (f"{number:06d}" for number in range(1000)) if code not in near)


def begin(client: Client) -> Authenticator:
    """Asks for a set-up, and reads the secret from the page."""
    page = client.form("/account/second-factor", password=PASSWORD)
    assert page.status == 200, page.text
    found = re.search(r'<code class="secret">([A-Z2-7]{32})</code>', page.text)
    assert found is not None
    return Authenticator(found.group(1))


def codes_on(page: Answer) -> list[str]:
    """The recovery codes that a page shows."""
    return re.findall(r"<li><code>([0-9a-z-]+)</code>", page.text)


def set_up(client: Client) -> tuple[Authenticator, list[str]]:
    """Gives the account a second factor; also its recovery codes."""
    authenticator = begin(client)
    page = client.form("/account/second-factor/confirm", code=authenticator.code())
    assert page.status == 200, page.text
    return authenticator, codes_on(page)


def pending_of(page: Answer) -> str:
    """The secret of the sign-in in a page that asks for its code."""
    found = re.search(r'name="pending" value="(\w+)"', page.text)
    assert found is not None, page.text
    return html.unescape(found.group(1))


def send_code(client: Client, pending: str, code: str) -> Answer:
    return client.form("/sign-in/code", csrf="", pending=pending, code=code)
