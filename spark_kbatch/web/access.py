"""Who may look: a token, the host that is asked for, and headers that keep text of records text.

There are no users. Whoever has the token may look: as `?token=` of any page, which answers with a cookie and the
same address without the token; as that cookie; or as `Authorization: Bearer TOKEN`, as Prometheus sends it. Without
it another user of the machine sees nothing, though the port is open to all of them.

The host has to be an address, or a name that was given. A page of another site could let its own name stand for
this machine's address, and then read what the browser gets from there (DNS rebinding); an address cannot be
made to stand for another one.

Source: https://www.w3.org/TR/CSP3/, RFC 6265, RFC 6750.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING

from starlette.datastructures import URL, Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse, RedirectResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_BYTES = 32
LOOKS_MAX = 100  # requests in progress
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


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(TOKEN_BYTES)


class Access:
    """The check in front of all pages; an ASGI middleware's settings.

    Args:
        token: what visitors need; None lets everybody look who can connect.
        hosts: names that a request may ask for, beside addresses and localhost.
        port: of the server. Browsers send cookies to all ports of a host, so it is part of the cookie's name.
    """

    def __init__(self, token: str | None, hosts: Iterable[str] = (), port: int = 0) -> None:
        self._token = token
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._cookie = f"kbatch-{port}"

    def may_ask_for(self, host: str) -> bool:
        """Return True if a request may have this `Host`."""
        name = host.lower().rpartition(":")[0] if _has_port(host) else host.lower()
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True

    def is_token(self, given: str | None) -> bool:
        """Return True if this is the token; takes the same time whatever is given."""
        if self._token is None:
            return True
        return secrets.compare_digest((given or "").encode(), self._token.encode())

    def may_look(self, headers: Headers) -> bool:
        """Return True if a request's headers have the token."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.is_token(given.strip()):
            return True
        # Of a request's cookies only ours is parsed: another program's may be in no form that we know.
        cookies = SimpleCookie()
        for one in headers.get("cookie", "").split(";"):
            if one.strip().startswith(f"{self._cookie}="):
                cookies.load(one)
        found = cookies.get(self._cookie)
        return self.is_token(found.value if found else None)

    def admitting(self, scope: Scope, given: str) -> RedirectResponse:
        """Return the answer to a visitor who gave the token in the address: a cookie, and the address without."""
        query = URL(scope=scope).remove_query_params("token").query
        # Of this site, whatever the path looks like: "//other" and "/\\other" would be another one. As it
        # was sent, since names in it may have any characters.
        path = "/" + scope["raw_path"].decode("latin-1").lstrip("/\\")
        answer = RedirectResponse(f"{path}?{query}" if query else path, 303)
        answer.set_cookie(self._cookie, given, httponly=True, samesite="strict")
        return answer


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdecimal() and not host.endswith("]") and ":" in host


class AccessMiddleware:
    """Lets those requests through to the application that may look, but not too many at the same time."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access
        self._looking = 0  # requests in progress; changed by the loop alone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(scope)
        if answer is not None:
            await answer(scope, receive, send_with_headers)
            return
        self._looking += 1
        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            self._looking -= 1

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """Return what answers the request instead of the application; None if that may."""
        if scope["type"] != "http":
            return None
        headers, access = Headers(scope=scope), self._access
        if not access.may_ask_for(headers.get("host", "")):
            return PlainTextResponse(
                "The host of this request is no address and no name of this server: ask by its IP "
                "address, or start the server with --allow-host NAME.\n",
                400,
            )
        if scope["path"] in OPEN_PATHS:
            return None
        given = QueryParams(scope["query_string"]).get("token")
        if given is not None and access.is_token(given):
            return access.admitting(scope, given)
        if not access.may_look(headers):
            return PlainTextResponse(_NO_TOKEN, 401, {"www-authenticate": "Bearer"})
        if self._looking >= LOOKS_MAX:
            return PlainTextResponse(
                "Too many pages are being made. Ask again in a moment.\n", 503, {"retry-after": "1"}
            )
        return None
