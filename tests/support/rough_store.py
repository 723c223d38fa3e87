"""A small server of S3's protocol, in a process of its own on loopback, that does what stores and networks do.

    with RoughStore(seed=7) as store:
        store.order(faults={"lost": 0.1, "cut": 0.05})      # by chance, of the requests that one can happen to
        store.order(storm_s=2.0)                            # 503 to every request meanwhile
        store.order(expire=True)                            # no session that was begun so far is good any more
        store.order(clock_ms=86_400_000)                    # its clock goes on a day later
        spark_kbatch.open(store.url, store=store.options)
        store.seen()                                        # how often each has happened

    lost        the request is done, and there is no answer
    failed      the request is done, and the answer is 500
    conflicted  a create is done, and the answer is 409
    twice       the request is done twice, as a gateway may do; the second answer counts
    late        there is no answer to a put, which is done a moment later, or seconds later
    conflict    409 to a create, and nothing is done
    refused     500, 503 or 429, and nothing is done
    dropped     the connection is closed, and nothing is done
    cut         half of the body that was asked for
    slow        the answer comes a moment later

Two more are faults of the store itself, with which nothing can be right:

    overwrites  a create is done although the name is taken
    forgets     an object that was created within the last second is said to be missing

Each request needs a session that `session` has begun, which ends by itself after some seconds. What comes too
late is refused with S3's 400 ExpiredToken, or with 403. Signatures are not checked, objects are put whole, and all is
in memory. What happens is drawn from the seed, in the order in which requests come. Each effect is atomic, and seen by
every request that comes after it.
"""

from __future__ import annotations

import bisect
import contextlib
import datetime
import email.utils
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.support.store_proxy import ServerOfKilledClients

# Not from `tests.conftest`, which would bring pytest and Spark into the server's process.
REPOSITORY = Path(__file__).parents[2]
BUCKET = "events"
ADDRESS_VARIABLE = "KBATCH_ROUGH_STORE"  # by which `session` knows the server
_CONTROL = "/-/"
_LATE_S, _LATE_S_MAX, _VERY_LATE = 0.7, 4.0, 0.2  # the last: share of those that are late
_SLOW_S, _FORGOTTEN_S = 0.1, 1.0
_LISTED_MAX = 1000


class Asked(NamedTuple):
    """A request for an object, or for a list."""

    method: str
    name: str
    query: Mapping[str, str]
    headers: Message
    body: bytes

    @property
    def is_create(self) -> bool:
        """Whether it is a put of a name that must be free."""
        return self.headers.get("If-None-Match") == "*"

    def may_meet(self, fault: str) -> bool:
        """Return True if a fault can happen to this request."""
        match fault:
            case "conflict" | "conflicted" | "overwrites":
                return self.is_create
            case "late":
                return self.method == "PUT"
            case "twice":
                return self.method != "GET"
            case "cut" | "forgets":
                return self.method == "GET" and bool(self.name)
        return True


class Answered(NamedTuple):
    """An answer; its body is text for an error."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


def _error(status: int, code: str) -> Answered:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}.</Message></Error>"
    return Answered(status, text.encode(), {"Content-Type": "application/xml"})


class _Object(NamedTuple):
    data: bytes
    modified_ms: int
    created_s: float  # by the machine's monotonic clock

    @property
    def headers(self) -> dict[str, str]:
        at = email.utils.formatdate(self.modified_ms / 1000, usegmt=True)
        return {"ETag": f'"{hash(self.data) & 0xFFFFFFFF:08x}"', "Last-Modified": at}


class Objects:
    """The objects, and the clock that they get their times from. Thread-safe."""

    def __init__(self) -> None:
        self.ahead_ms = 0  # of the machine's clock
        self._lock = threading.Lock()  # guards all that follows
        self._objects: dict[str, _Object] = {}
        self._names: list[str] = []  # in order

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def done(self, asked: Asked, fault: str = "") -> Answered:
        """Do what a request asks for."""
        match asked.method:
            case "PUT":
                return self._put(asked, may_replace=not asked.is_create or fault == "overwrites")
            case "GET" if not asked.name:
                return self._list(asked.query)
            case "GET" | "HEAD":
                return self._get(asked, fault)
            case "DELETE":
                self._delete([asked.name])
                return Answered(204)
            case "POST" if "delete" in asked.query:
                keys = [one.text or "" for one in ElementTree.fromstring(asked.body).iter() if one.tag.endswith("Key")]  # fmt: skip
                self._delete(keys)
                rows = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
                return Answered(200, f"<DeleteResult>{rows}</DeleteResult>".encode())
        return _error(501, "NotImplemented")

    def _put(self, asked: Asked, *, may_replace: bool) -> Answered:
        with self._lock:
            data = asked.body
            if source := asked.headers.get("x-amz-copy-source"):
                name = urllib.parse.unquote(source).removeprefix(f"/{BUCKET}/").removeprefix(f"{BUCKET}/")  # fmt: skip
                if name not in self._objects:
                    return _error(404, "NoSuchKey")
                data = self._objects[name].data
            if asked.name in self._objects:
                if not may_replace:
                    return _error(412, "PreconditionFailed")
            else:
                bisect.insort(self._names, asked.name)
            put = self._objects[asked.name] = _Object(data, self.now_ms(), time.monotonic())
        body = b"<CopyObjectResult><ETag>x</ETag></CopyObjectResult>" if source else b""
        return Answered(200, body, put.headers)

    def _get(self, asked: Asked, fault: str) -> Answered:
        found = self._objects.get(asked.name)
        if found is None:
            return _error(404, "NoSuchKey")
        if fault == "forgets" and time.monotonic() - found.created_s < _FORGOTTEN_S:
            return _error(404, "NoSuchKey")
        asked_range = asked.headers.get("Range", "")
        if not asked_range:
            return Answered(200, found.data, found.headers)
        first, _, last = asked_range.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(found.data)), len(found.data) - 1)
        if start > end:
            return _error(416, "InvalidRange")
        shown = {"Content-Range": f"bytes {start}-{end}/{len(found.data)}"}
        return Answered(206, found.data[start : end + 1], found.headers | shown)

    def _list(self, query: Mapping[str, str]) -> Answered:
        prefix = query.get("prefix", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        count = min(int(query.get("max-keys", _LISTED_MAX)), _LISTED_MAX)
        with self._lock:
            place = bisect.bisect_left(self._names, prefix)
            if after >= prefix:
                place = bisect.bisect_right(self._names, after)
            names = [one for one in self._names[place : place + count + 1] if one.startswith(prefix)]  # fmt: skip
            found = [(name, self._objects[name]) for name in names[:count]]
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>{_iso_time(one.modified_ms)}</LastModified>"
            f"<ETag>x</ETag><Size>{len(one.data)}</Size></Contents>"
            for name, one in found
        )
        is_more = len(names) > count
        if is_more:
            rows += f"<NextContinuationToken>{escape(names[count - 1])}</NextContinuationToken>"
        text = (
            f"<ListBucketResult><Name>{BUCKET}</Name><IsTruncated>{str(is_more).lower()}</IsTruncated>"
            f"{rows}</ListBucketResult>"
        )
        return Answered(200, text.encode(), {"Content-Type": "application/xml"})

    def _delete(self, names: list[str]) -> None:
        with self._lock:
            for name in names:
                if self._objects.pop(name, None) is not None:
                    del self._names[bisect.bisect_left(self._names, name)]


def _iso_time(ms: int) -> str:
    at = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Orders:
    """The faults of requests that are in force, and the sessions. Thread-safe."""

    def __init__(self, seed: int, objects: Objects) -> None:
        self.seen = Counter[str]()
        self._objects = objects
        self._rng = random.Random(seed)
        self._lock = threading.Lock()  # guards all
        self._faults: dict[str, float] = {}
        self._storm_until_s = 0.0
        self._session_s = (3600.0, 3600.0)  # how long a session is good, from and to
        self._ends_s: dict[str, float] = {}  # of each session
        self._refusals = [400, 403]  # with one of which what comes after its end is refused

    def take(self, order: Mapping[str, Any]) -> None:
        """Do what a test wants from now on."""
        with self._lock:
            self._faults = order.get("faults", self._faults)
            self._session_s = order.get("session_s", self._session_s)
            self._refusals = order.get("refusals", self._refusals)
            self._objects.ahead_ms += order.get("clock_ms", 0)
            if "storm_s" in order:
                self._storm_until_s = time.monotonic() + order["storm_s"]
                self.seen["storm"] += order["storm_s"] > 0
            if order.get("expire"):
                self._ends_s.clear()
                self.seen["expiry"] += 1

    def begin_session(self) -> dict[str, Any]:
        """Return the token of a new session, and when it ends; the latter only for every other one."""
        with self._lock:
            token = f"token-{self._rng.getrandbits(64):016x}"
            life_s = self._rng.uniform(*self._session_s)
            self._ends_s[token] = time.monotonic() + life_s
            ends_ms = time.time_ns() // 1_000_000 + int(life_s * 1000)
            self.seen["session"] += 1
            return {"token": token, "ends_ms": ends_ms if self._rng.random() < 0.5 else None}

    def refusal(self, asked: Asked) -> Answered | None:
        """Return the answer to a request that is not let in; None for any other one."""
        with self._lock:
            if time.monotonic() < self._storm_until_s:
                self.seen["in a storm"] += 1
                return _error(503, "SlowDown")
            token = asked.headers.get("X-Amz-Security-Token", "")
            if time.monotonic() < self._ends_s.get(token, 0):
                return None
            self.seen["expired"] += 1
            # Always the same of one session.
            status = self._refusals[len(self._refusals) * (token[-1:] < "8") // 2]
            return _error(status, "ExpiredToken" if status == 400 else "AccessDenied")

    def fault_of(self, asked: Asked) -> str:
        """Draw what happens to a request; empty for nothing."""
        with self._lock:
            for fault, chance in self._faults.items():
                if asked.may_meet(fault) and self._rng.random() < chance:
                    self.seen[fault] += 1
                    return fault
        return ""

    def refused(self) -> Answered:
        """Draw an answer that nothing is done."""
        with self._lock:
            return self._rng.choice([_error(500, "InternalError"), _error(503, "SlowDown"), _error(429, "TooManyRequests")])  # fmt: skip

    def late_s(self) -> float:
        """Draw how much later something is done."""
        with self._lock:
            is_very = self._rng.random() < _VERY_LATE
            return self._rng.random() * (_LATE_S_MAX if is_very else _LATE_S)


class _Server(ServerOfKilledClients):
    objects: Objects
    orders: Orders


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urllib.parse.urlsplit(self.path)
        if parts.path.startswith(_CONTROL):
            self._control(parts.path.removeprefix(_CONTROL), body)
            return
        query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        name = urllib.parse.unquote(parts.path).removeprefix(f"/{BUCKET}").lstrip("/")
        asked = Asked(self.command, name, query, self.headers, body)
        refusal = self.server.orders.refusal(asked)
        if refusal is not None:
            self._answer(refusal)
            return
        fault = self.server.orders.fault_of(asked)
        answer = self._done(asked, fault)
        if answer is None:
            self.close_connection = True
        else:
            self._answer(answer, is_cut=fault == "cut")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815  names of http.server's

    def _done(self, asked: Asked, fault: str) -> Answered | None:
        """Do what is asked for, or not, and return the answer; None if there is none."""
        objects, orders = self.server.objects, self.server.orders
        match fault:
            case "dropped":
                return None
            case "refused":
                return orders.refused()
            case "conflict":
                return _error(409, "ConditionalRequestConflict")
            case "late":
                timer = threading.Timer(orders.late_s(), objects.done, [asked])
                timer.daemon = True
                timer.start()
                return None
        answer = objects.done(asked, fault)
        match fault:
            case "lost":
                return None
            case "failed":
                return _error(500, "InternalError")
            case "conflicted":
                return _error(409, "ConditionalRequestConflict")
            case "twice":
                return objects.done(asked)
            case "slow":
                time.sleep(_SLOW_S)
        return answer

    def _control(self, what: str, body: bytes) -> None:
        orders, found = self.server.orders, dict[str, Any]()
        match what:
            case "session":
                found = orders.begin_session()
            case "order":
                orders.take(json.loads(body))
            case "seen":
                found = {**orders.seen}
        self._answer(Answered(200, json.dumps(found).encode()))

    def _answer(self, answer: Answered, *, is_cut: bool = False) -> None:
        body = answer.body
        if is_cut:
            body, self.close_connection = body[: len(body) // 2], True
        self.send_response_only(answer.status)
        at = email.utils.formatdate(self.server.objects.now_ms() / 1000, usegmt=True)
        length = "0" if answer.status == 204 else str(len(answer.body))
        for name, value in {"Date": at, **answer.headers, "Content-Length": length}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):  # the client gave up, or is dead
                self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Say nothing."""


class RoughStore:
    """The server's process, and what a test tells it."""

    def __init__(self, *, seed: int = 0) -> None:
        """Set up.

        Args:
            seed: of all that is drawn.
        """
        self._seed = seed
        self.address = ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.support.rough_store", str(self._seed)]
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def url(self) -> str:
        """A place in its bucket."""
        return f"s3://{BUCKET}/place"

    @property
    def options(self) -> dict[str, str]:
        """Our options for it; the process that uses them has the server's address in ADDRESS_VARIABLE."""
        return {
            "store.endpoint": f"http://{self.address}", "store.region": "us-east-1",
            "store.credentials": f"{session.__module__}:{session.__name__}",
        }  # fmt: skip

    def order(self, **order: Any) -> None:
        """Tell the server what to do from now on."""
        _asked(self.address, "order", json.dumps(order).encode())

    def seen(self) -> Counter[str]:
        """Return how often each thing has happened."""
        return Counter(_asked(self.address, "seen"))


def session(url: str) -> dict[str, Any]:
    """Begin a session, and return its credentials: what the option `store.credentials` names."""
    del url
    begun = _asked(os.environ[ADDRESS_VARIABLE], "session")
    found = {"access_key_id": "someone", "secret_access_key": "a-secret-of-tests", "token": begun["token"]}  # fmt: skip
    if begun["ends_ms"] is not None:
        found["expires_at"] = datetime.datetime.fromtimestamp(begun["ends_ms"] / 1000, datetime.UTC)
    return found


def _asked(address: str, what: str, body: bytes = b"") -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{address}{_CONTROL}{what}", body, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _main(seed: int) -> None:
    server = _Server(("127.0.0.1", 0), _Handler)
    server.objects = Objects()
    server.orders = Orders(seed, server.objects)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()  # until the process that started it ends, in whatever way


if __name__ == "__main__":
    _main(int(sys.argv[1]))
