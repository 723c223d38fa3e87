"""Who may look: a token, the host that is asked for, and headers that keep text of records text.

There are no users. Whoever has the token may look: as `?token=` of any page, which answers with a cookie and the
same address without the token; as that cookie; or as `Authorization: Bearer TOKEN`, as Prometheus sends it. Without
it another user of the machine sees nothing, though the port is open to all of them.

The host has to be an address, or a name that was given. A page of another site could let its own name stand for
this machine's address, and then read what the browser gets from there (DNS rebinding); an address cannot be
made to stand for another one.

The cookie goes along with a link in a page of another site (SameSite=Lax), by which people come here from a notebook
or a chat: with Strict they would be refused right after the token was taken. Such a link can do no more than show a page
to who follows it, since pages change nothing. That other page gets no answer to requests of its own, no frame, and no
window to look into: HEADERS.

Source: https://www.w3.org/TR/CSP3/, RFC 6265, RFC 6750.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from starlette.datastructures import URL, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_BYTES = 32
# What probes ask, who have no token; they tell nothing of what is stored.
OPEN_PATHS = {"/health", "/ready"}
# No script, nothing from elsewhere, in no frame of another page.
_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # addresses of pages have names of topics, and parts of records
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_NO_TOKEN = (
    "This page is for those who have its token. Open the address that `kbatch` printed when it "
    "started, which ends in ?token=...; a program sends the token as Authorization: Bearer TOKEN.\n"
)
_NO_HOST = (
    "The host of this request is no address and no name of this server: ask by its IP address, or start "
    "the server with --allow-host NAME.\n"
)


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def path_of(request: HTTPConnection) -> str:
    """Return the path that was asked for, as it was sent: Starlette before 1.9 ends it at a "?" within a name."""
    return cast("bytes", request["raw_path"]).decode("latin-1")


class Access:
    """The check in front of all pages: an ASGI application around theirs.

    Args:
        app: the pages.
        token: what visitors need; None lets everybody look who can connect.
        hosts: names that a request may ask for, beside addresses and localhost.
        port: of the server. Browsers send cookies to all ports of a host, so it is part of the cookie's name.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: Iterable[str], port: int) -> None:
        self._app, self._token = app, token
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._cookie = f"kbatch-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(HTTPConnection(scope)) or self._app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, asked: HTTPConnection) -> ASGIApp | None:
        """Return what answers a request instead of the pages; None if they may."""
        if not self._may_ask_for(asked.headers.get("host", "")):
            return PlainTextResponse(_NO_HOST, 400)
        if self._token is None or asked["path"] in OPEN_PATHS:
            return None
        given = asked.query_params.get("token", "")
        if _is_same(given, self._token):
            return self._admitting(asked, given)
        kind, _, sent = asked.headers.get("authorization", "").partition(" ")
        tokens = (
            asked.cookies.get(self._cookie, ""),
            sent.strip() if kind.lower() == "bearer" else "",
        )
        if any(_is_same(one, self._token) for one in tokens):
            return None
        return PlainTextResponse(_NO_TOKEN, 401, {"www-authenticate": "Bearer"})

    def _may_ask_for(self, host: str) -> bool:
        name = re.sub(r":[0-9]+$", "", host.lower())
        try:
            return name in self._hosts or bool(ipaddress.ip_address(name.strip("[]")))
        except ValueError:
            return False

    def _admitting(self, asked: HTTPConnection, given: str) -> RedirectResponse:
        """Return the answer to a visitor who gave the token in the address: a cookie, and the address without."""
        url = URL("/?" + asked["query_string"].decode("latin-1"))
        query = url.remove_query_params("token").query
        # Of this site, whatever the path looks like: "//other" and "/\\other" would be another one. As it
        # was sent, since names in it may have any characters.
        path = "/" + path_of(asked).lstrip("/\\")
        answer = RedirectResponse(f"{path}?{query}" if query else path, 303)
        answer.set_cookie(self._cookie, given, httponly=True, samesite="lax")
        return answer


def _is_same(given: str, token: str) -> bool:
    """Return True if this is the token; takes the same time whatever is given."""
    return secrets.compare_digest(given.encode(), token.encode())
