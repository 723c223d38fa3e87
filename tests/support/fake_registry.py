"""A schema registry on loopback that speaks Confluent's API, counts what it is asked, and fails by script.

    with FakeRegistry() as registry:
        registry.register("orders-value", '"string"')          # its id; no request
        registry.next_answers("500", "429", times=3)           # then it answers as ever
        registry.asked                                         # ["GET /schemas/ids/1", ...]

What the next answers may be, one for each request:

    401 ... 599     that status, in the registry's JSON
    busy            429, with Retry-After: 7
    html            200, and a web page          not found    404, and a web page
    redirect        302 to another server        odd          200, and JSON of something else
    cut             the half of the answer, then the connection is closed
    closed          nothing, the connection is closed
    huge            17 MiB
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections import deque
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"


class Version(NamedTuple):
    """A version of a subject; `is_deleted` as after a soft delete."""

    number: int
    id: int
    is_deleted: bool = False


class RefusalError(Exception):
    """An error that the registry answers: its status, code and message."""


class FakeRegistry:
    """The registry and its state. Ids are counted in each context on its own."""

    def __init__(
        self, *, tls: ssl.SSLContext | None = None, user_info: str = "", token: str = ""
    ) -> None:
        """Listen; with `user_info` (USER:PASSWORD) or `token` only requests that have it are answered."""
        self.asked: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.frozen: set[str] = set()  # subjects for which every other schema is incompatible
        self._schemas: dict[str, dict[int, dict[str, Any]]] = {}  # by context
        self._versions: dict[tuple[str, str], list[Version]] = {}  # by context and subject
        self._script: deque[str] = deque()
        self._lock = threading.Lock()  # guards the state
        encoded = base64.b64encode(user_info.encode()).decode()
        self.expected = f"Basic {encoded}" if user_info else f"Bearer {token}" if token else ""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.registry = self  # type: ignore[attr-defined]
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"

    def __enter__(self) -> FakeRegistry:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def next_answers(self, *answers: str, times: int = 1) -> None:
        """Answer the next requests so, each of the answers `times` times."""
        self._script.extend(answers * times)

    def order(self) -> str:
        """Return how to answer this request; empty for as ever."""
        with self._lock:
            return self._script.popleft() if self._script else ""

    def register(self, subject: str, text: str, **fields: Any) -> int:
        """Register a schema, unless the subject has it; return its id."""
        with self._lock:
            return self._register(*_split(subject), {"schema": text, **fields})

    def add_at(self, schema_id: int, subject: str, text: str, **fields: Any) -> None:
        """Have a schema as the next version of a subject under a given id, whatever was there."""
        context, name = _split(subject)
        with self._lock:
            self._schemas.setdefault(context, {})[schema_id] = {"schema": text, **fields}
            versions = self._versions.setdefault((context, name), [])
            versions.append(Version(len(versions) + 1, schema_id))

    def delete(self, subject: str, number: int) -> None:
        """Delete a version softly."""
        versions = self._versions[_split(subject)]
        versions[number - 1] = versions[number - 1]._replace(is_deleted=True)

    def answer(self, method: str, target: str, body: dict[str, Any]) -> Any:
        """Return the JSON that answers a request, or raise a RefusalError."""
        parts = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        path = [unquote(one) for one in parts.path.strip("/").split("/")]
        prefix = ""
        if path[0] == "contexts":
            prefix, path = f":{path[1].strip(':')}:", path[2:]
        deleted = query.get("deleted", "").lower() == "true"
        with self._lock:
            match method, *path:
                case "GET", "schemas", "ids", schema_id:
                    return self._by_id(int(schema_id), prefix, query.get("subject", ""))
                case "GET", "schemas", "guids", guid, "ids":
                    return self._ids(guid)
                case "GET", "subjects", subject, "versions":
                    return [one.number for one in self._of(prefix, subject, deleted=deleted)]
                case "GET", "subjects", subject, "versions", number:
                    return self._version(prefix, subject, number, deleted=deleted)
                case "POST", "subjects", subject, "versions":
                    return {"id": self._register(*_split(subject, prefix), body)}
                case "POST", "subjects", subject:
                    return self._look_up(prefix, subject, body)
        raise RefusalError(404, 404, "HTTP 404 Not Found")

    def _by_id(self, schema_id: int, prefix: str, subject: str) -> dict[str, Any]:
        context, name = _split(subject, prefix)
        contexts = [context]
        if name and context == ".":
            contexts += [one for one, other in self._versions if other == name]
        for one in contexts:
            if schema_id in self._schemas.get(one, {}):
                return self._schemas[one][schema_id]
        raise RefusalError(404, 40403, f"Schema {schema_id} not found")

    def _ids(self, guid: str) -> list[dict[str, Any]]:
        return [
            {"context": context, "id": schema_id}
            for context, schemas in sorted(self._schemas.items())
            for schema_id, schema in schemas.items()
            if schema.get("guid") == guid
        ]

    def _of(self, prefix: str, subject: str, *, deleted: bool = False) -> list[Version]:
        found = self._versions.get(_split(subject, prefix), [])
        found = [one for one in found if deleted or not one.is_deleted]
        if not found:
            raise RefusalError(404, 40401, f"Subject '{subject}' not found.")
        return found

    def _version(self, prefix: str, subject: str, number: str, *, deleted: bool) -> dict[str, Any]:
        found = self._of(prefix, subject, deleted=deleted)
        wanted = [one for one in found if number in ("latest", str(one.number))]
        if not wanted:
            raise RefusalError(404, 40402, f"Version {number} not found.")
        return self._shown(prefix, subject, wanted[-1])

    def _shown(self, prefix: str, subject: str, version: Version) -> dict[str, Any]:
        schema = self._schemas[_split(subject, prefix)[0]][version.id]
        return {"subject": subject, "version": version.number, "id": version.id, **schema}

    def _look_up(self, prefix: str, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        for one in self._of(prefix, subject):
            shown = self._shown(prefix, subject, one)
            if _content(shown) == _content(body):
                return shown
        raise RefusalError(404, 40403, "Schema not found")

    def _register(self, context: str, name: str, body: dict[str, Any]) -> int:
        schemas = self._schemas.setdefault(context, {})
        versions = self._versions.setdefault((context, name), [])
        same = [one for one, schema in schemas.items() if _content(schema) == _content(body)]
        if same and same[0] in {one.id for one in versions if not one.is_deleted}:
            return same[0]
        if name in self.frozen:
            raise RefusalError(409, 409, f"Schema being registered is incompatible with {name}")
        if body["schema"] == "no schema":
            raise RefusalError(422, 42201, "Input schema is an invalid Avro schema")
        schema_id = same[0] if same else max(schemas, default=0) + 1
        known = ("schema", "schemaType", "references", "ruleSet")
        schemas[schema_id] = {key: body[key] for key in known if body.get(key)}
        if schemas[schema_id].get("schemaType") == "AVRO":
            del schemas[schema_id]["schemaType"]
        versions.append(Version(len(versions) + 1, schema_id))
        return schema_id


class _Handler(BaseHTTPRequestHandler):
    """One connection to the registry."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *args: Any) -> None:
        """Print nothing."""

    def _answer(self, body: dict[str, Any]) -> None:
        registry: FakeRegistry = self.server.registry  # type: ignore[attr-defined]
        registry.asked.append(f"{self.command} {self.path}")
        registry.headers.append(dict(self.headers.items()))
        order = registry.order()
        if order:
            self.close_connection = True
            self._fail(order)
        elif registry.expected not in ("", self.headers.get("Authorization")):
            self._send(401, {"error_code": 401, "message": "Unauthorized"})
        else:
            try:
                self._send(200, registry.answer(self.command, self.path, body))
            except RefusalError as refusal:
                status, code, message = refusal.args
                self._send(status, {"error_code": code, "message": message})

    def _fail(self, order: str) -> None:
        if order == "busy":
            self._send(429, {"error_code": 429, "message": "slow down"}, {"Retry-After": "7"})
        elif order.isdecimal():
            echo = self.headers.get("Authorization", "")
            code = {"500": 50001}.get(order, int(order))
            self._send(int(order), {"error_code": code, "message": f"so it is; {echo}"})
        elif order in ("html", "not found"):
            self._bytes(200 if order == "html" else 404, PAGE, {"Content-Type": "text/html"})
        elif order == "redirect":
            self._bytes(302, b"", {"Location": "http://127.0.0.1:1/"})
        elif order == "odd":
            self._send(200, {"status": "ok"})
        elif order == "cut":
            self._bytes(200, b'{"schema": ', {}, promised=1000)
        elif order == "huge":
            self._bytes(200, b" " * (17 << 20), {})

    def _send(self, status: int, value: Any, headers: Mapping[str, str] = {}) -> None:
        given = {"Content-Type": "application/vnd.schemaregistry.v1+json", **headers}
        self._bytes(status, json.dumps(value).encode(), given)

    def _bytes(
        self, status: int, data: bytes, headers: Mapping[str, str], promised: int | None = None
    ) -> None:
        self._head(status, headers, len(data) if promised is None else promised)
        try:
            self.wfile.write(data)
        except OSError:
            pass  # the client has given up

    def _head(self, status: int, headers: Mapping[str, str], size_in_bytes: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(size_in_bytes))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()


def _split(subject: str, prefix: str = "") -> tuple[str, str]:
    """Return a subject's context and its name."""
    text = subject if subject.startswith(":.") else f"{prefix}{subject}"
    if not text.startswith(":."):
        return ".", text
    _, context, name = text.split(":", 2)
    return context, name


def _content(schema: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what makes two schemas the same."""
    kind = schema.get("schemaType") or "AVRO"
    text = schema["schema"] if kind == "PROTOBUF" else json.dumps(_json(schema["schema"]))
    references = [
        (one["name"], one["subject"], one["version"]) for one in schema.get("references") or ()
    ]
    return kind, text, references


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
