"""A schema registry over HTTP: calls of its API, URLs in turn, retries, bounds, failures.

    GET  /schemas/ids/ID?subject=SUBJECT           a schema by its id
    GET  /schemas/guids/GUID/ids                   the ids of a schema, in each context
    GET  /subjects/SUBJECT/versions?deleted=true   the versions of a subject
    GET  /subjects/SUBJECT/versions/VERSION        one of them, or the latest
    POST /subjects/SUBJECT/versions                register a schema
    POST /subjects/SUBJECT                         look up a schema

    what happens                            then
    no connection, cut off, no answer       the next URL; after the last a pause, and all of them again; at the end
    in time, 408, 429, 5xx                  SchemaRegistryUnavailableError
    404 in the registry's own words         SchemaNotFoundError
    409                                     IncompatibleSchemaError
    another status, a redirect, an answer   SchemaRegistryError, at once
    that is not JSON or too long, TLS

A pause doubles up to a maximum, with jitter, and is at least what Retry-After says. Redirects are not followed: the
credentials would go with the request. Credentials are in one header; whatever text leaves this module, including what
a registry or a proxy says, is searched for them.

Source: schema-registry client/.../client/rest/RestService.java, core/.../rest/resources; Confluent's API reference.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import os
import random
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from spark_kbatch import clock, mutexes
from spark_kbatch.errors import (
    INSTALL_EXTRA,
    ConfigError,
    IncompatibleSchemaError,
    SchemaNotFoundError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
)
from spark_kbatch.model import INT_MAX
from spark_kbatch.options.registry import TOKEN, URL, USER_INFO, RegistryOptions, of_registry
from spark_kbatch.options.security import without_secrets
from spark_kbatch.registry.schemas import (
    LATEST_VERSION,
    RegisteredSchema,
    Schema,
    Version,
    context_of,
    json_of,
    schema_of,
    version_in_words,
    with_referenced,
)
from spark_kbatch.stored_json import StoredObject
from spark_kbatch.terminal import visible
from spark_kbatch.wire.backoff import ExponentialBackoff
from spark_kbatch.wire.tls import tls_context

if TYPE_CHECKING:
    import threading

    import urllib3

_CHUNK = 1 << 16
_SHOWN_MAX = 300  # characters of what a registry says
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_NOT_FOUND_CODES = range(40400, 40500)  # of the registry, and not of a web server in front of it
_SECRET_MIN = 4  # characters
_CONNECTIONS = 4  # kept open to each URL
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_WITH_DELETED = {"deleted": "true"}


@dataclass(frozen=True)
class RegistryTimeouts:
    """Time limits of requests to a registry."""

    request_timeout_ms: int = 10_000  # for one answer, from the connection to its last byte
    retry_ms: int = 60_000  # for all attempts together
    backoff_ms: int = 200  # before the second attempt; doubles
    backoff_max_ms: int = 5_000
    retry_after_max_ms: int = 30_000  # however long a registry says to wait


DEFAULT_TIMEOUTS = RegistryTimeouts()


class _Answer(NamedTuple):
    """A complete answer to one request."""

    status: int
    reason: str
    body: bytes
    retry_after_ms: int

    @property
    def said(self) -> str:
        return f"it answered {self.status} {self.reason}".rstrip()


class _AttemptError(Exception):
    """An attempt that another one may make good."""

    def __init__(self, why: str, retry_after_ms: int = 0) -> None:
        super().__init__(why)
        self.retry_after_ms = retry_after_ms


class Endpoint:
    """A registry's HTTP endpoint, at one URL or more. Thread-safe; a forked child opens its own connections."""

    def __init__(
        self,
        options: RegistryOptions,
        *,
        timeouts: RegistryTimeouts = DEFAULT_TIMEOUTS,
        monotonic_ms: Callable[[], int] = clock.monotonic_ms,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Prepare requests; nothing is sent.

        Raises:
            ConfigError: urllib3 is not installed; a file of certificates cannot be used.
        """
        self.name = str(options.url)
        self._options, self._timeouts = options, timeouts
        self._monotonic_ms, self._sleep = monotonic_ms, sleep
        self._urls = options.url.urls
        self._first = 0  # the URL that answered last; a wrong one costs an attempt
        self._headers, self._secrets = _authorization(options)
        self._lock: threading.Lock  # guards _pools and _owner; taken last
        mutexes.make(self, "_lock")
        self._owner, self._pools = os.getpid(), self._new_pools()

    def ask(
        self,
        method: str,
        path: Sequence[str],
        asked: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        retries: bool = True,
    ) -> Any:
        """Send a request until it is answered, and return the JSON of the answer.

        Args:
            method: GET or POST. All requests may be repeated.
            path: from the registry's URL on, quoted.
            asked: what for, in words, for errors.
            query: of the URL.
            body: a JSON object.
            retries: whether to go on after each URL has failed once.

        Raises:
            SchemaRegistryError: as the module's docstring has it.
        """
        target = "/".join(["", *path]) + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        answer = self._answer_of_any(method, target, data, asked, retries=retries)
        if not 200 <= answer.status < 300:
            raise self._refusal(answer, asked)
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            reason = (
                f"its answer is not JSON: it starts with {self._shown(answer.body)!r}; option {URL!r} may name "
                "a proxy or a login page in place of the registry"
            )
            raise SchemaRegistryError(self.name, asked, reason) from None

    def _answer_of_any(
        self, method: str, target: str, data: bytes | None, asked: str, *, retries: bool
    ) -> _Answer:
        """Return the first answer that is final, of any URL, within the time for retries."""
        timeouts, started_ms = self._timeouts, self._monotonic_ms()
        backoff = ExponentialBackoff(timeouts.backoff_ms, timeouts.backoff_max_ms, random.random)
        for attempts in itertools.count():
            pause_ms = 0
            failures: list[str] = []
            for url in self._in_turn():
                try:
                    return self._answer_of(url, method, target, data, asked)
                except _AttemptError as failure:
                    failures.append(f"{url}: {failure}" if len(self._urls) > 1 else str(failure))
                    pause_ms = max(pause_ms, failure.retry_after_ms)
            pause_ms = max(min(pause_ms, timeouts.retry_after_max_ms), backoff.pause_ms(attempts))
            passed_ms = self._monotonic_ms() - started_ms
            if not retries or passed_ms + pause_ms > timeouts.retry_ms:
                reason = (
                    f"{'; '.join(failures)} (attempt {attempts + 1}, after {passed_ms / 1000:.1f} s); look "
                    f"whether it runs and can be reached from here, and at option {URL!r}"
                )
                raise SchemaRegistryUnavailableError(self.name, asked, reason)
            self._sleep(pause_ms / 1000)
        raise AssertionError("attempts have no end")

    def _in_turn(self) -> Iterator[str]:
        """Yield each URL once, the one that answered last before the others."""
        first = self._first
        for at in range(len(self._urls)):
            self._first = (first + at) % len(self._urls)
            yield self._urls[self._first]
        self._first = first

    def _answer_of(
        self, url: str, method: str, target: str, data: bytes | None, asked: str
    ) -> _Answer:
        """Return the answer of one URL.

        Raises:
            _AttemptError: it gave none, or one after which to try again.
            SchemaRegistryError: another attempt would end as this one did.
        """
        import urllib3  # noqa: PLC0415  needed only with a registry

        headers = (
            self._headers if data is None else {**self._headers, "Content-Type": _CONTENT_TYPE}
        )
        try:
            # No encoding is asked for, so that none is undone: a few bytes may become gigabytes.
            response = self._own_pools().request(
                method, f"{url}{target}", body=data, headers=headers,
                redirect=False, retries=False, preload_content=False, decode_content=False,
            )  # fmt: skip
            answer = self._read(response, asked)
        except urllib3.exceptions.HTTPError as error:
            cause = error.args[0] if error.args else None
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
                raise SchemaRegistryError(self.name, asked, _tls_failure(url, cause)) from None
            raise _AttemptError(_why(error, self._timeouts.request_timeout_ms)) from None
        if answer.status in _TRANSIENT:
            raise _AttemptError(f"{answer.said}{self._message(answer)}", answer.retry_after_ms)
        return answer

    def _read(self, response: urllib3.BaseHTTPResponse, asked: str) -> _Answer:
        """Read an answer to its end; give its connection back, or close it if it was not read to the end."""
        from spark_kbatch.registry.connections import ANSWER_MAX  # noqa: PLC0415  imports urllib3

        body = bytearray()
        try:
            while chunk := response.read1(_CHUNK):
                body += chunk
                if len(body) > ANSWER_MAX:
                    too_long = (
                        f"its answer is longer than {ANSWER_MAX} bytes; look at option {URL!r}"
                    )
                    raise SchemaRegistryError(self.name, asked, too_long)
        except BaseException:
            response.close()
            raise
        response.release_conn()
        seconds = response.headers.get("Retry-After", "")
        retry_after_ms = int(seconds) * 1000 if re.fullmatch("[0-9]{1,6}", seconds) else 0
        reason = self._shown((response.reason or "").encode("latin-1"))  # as it was read
        return _Answer(response.status, reason, bytes(body), retry_after_ms)

    def _refusal(self, answer: _Answer, asked: str) -> SchemaRegistryError:
        """Return the error for an answer that another attempt would not change."""
        code = self._fields(answer).get("error_code")
        if answer.status == 404 and isinstance(code, int) and code in _NOT_FOUND_CODES:
            message = self._message(answer).removeprefix(": ") or "it has none"
            return SchemaNotFoundError(self.name, asked, message)
        said = f"{answer.said}{self._message(answer)}"
        if answer.status == 409:
            return IncompatibleSchemaError(self.name, asked, f"the schema is refused: {said}")
        return SchemaRegistryError(self.name, asked, f"{said}; {self._remedy(answer.status)}")

    def _remedy(self, status: int) -> str:
        if 300 <= status < 400:
            return f"redirects are not followed: give the registry itself as {URL!r}"
        if status in (401, 403):
            if "Authorization" not in self._headers:
                return f"give a user with {USER_INFO!r}, or a token with {TOKEN!r}"
            given = TOKEN if self._options.bearer_auth_token else f"{USER_INFO} or {URL}"
            return f"look at {given!r}, and at what this user may do in the registry"
        if status == 404:
            return f"this is no answer of a schema registry: look at option {URL!r}"
        return "look at the registry's log"

    def _fields(self, answer: _Answer) -> dict[str, Any]:
        try:
            found = json.loads(answer.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _message(self, answer: _Answer) -> str:
        """Return what a registry says of a failure, after a colon; empty if it says nothing."""
        message = self._fields(answer).get("message")
        return (
            f": {self._shown(message.encode(errors='replace'))}"
            if isinstance(message, str) and message
            else ""
        )

    def _shown(self, said: bytes) -> str:
        """Return the start of what a registry says, safe to print, and without the credentials."""
        return visible(without_secrets(said, self._secrets)[:_SHOWN_MAX])

    def _own_pools(self) -> urllib3.PoolManager:
        """Return this process's connections: a forked child must not use those of its parent."""
        with self._lock:
            if self._owner != os.getpid():
                self._owner, self._pools = os.getpid(), self._new_pools()
            return self._pools

    def _new_pools(self) -> urllib3.PoolManager:
        try:
            import urllib3  # noqa: PLC0415  needed only with a registry

            from spark_kbatch.registry.connections import bounded_pools  # noqa: PLC0415  imports it
        except ImportError:
            raise ConfigError(
                f"option {URL!r} is a URL, which needs the package urllib3: "
                f"{INSTALL_EXTRA.format('registry')}; a folder as the registry needs none"
            ) from None
        timeout_s = self._timeouts.request_timeout_ms / 1000
        tls: dict[str, Any] = {}
        if any(url.startswith("https:") for url in self._urls):
            security = self._options.security
            try:
                tls["ssl_context"] = tls_context(security)
            except ConfigError as error:
                raise of_registry(error) from None
            if not security.ssl_endpoint_identification_algorithm:
                tls["assert_hostname"] = False
        return bounded_pools(maxsize=_CONNECTIONS, timeout=urllib3.Timeout(total=timeout_s), **tls)


class RegistryClient:
    """A client of a schema registry that remembers nothing; its methods are those of `SchemaRegistry`."""

    def __init__(self, endpoint: Endpoint, *, retries: bool = True) -> None:
        """Ask an endpoint; without `retries` a call fails once each URL has failed."""
        self._endpoint, self._retries = endpoint, retries
        self.name = endpoint.name

    def by_id(self, schema_id: int | str, subject: str = "") -> RegisteredSchema:
        """Return the schema of an id or a GUID, in the context of `subject`, or of the URL."""
        asked = f"schema id {schema_id}" + (f" of subject {subject!r}" if subject else "")
        if isinstance(schema_id, str):
            schema_id = self._id_of(schema_id, subject, asked)
        query = {"subject": subject} if subject else None
        found = self._object("GET", ["schemas", "ids", str(schema_id)], asked, query=query)
        return self._whole(schema_of(found, schema_id=schema_id, subject=subject))

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the numbers of a subject's versions, in order."""
        asked = f"the versions of subject {subject!r}"
        path = ["subjects", _quoted(subject), "versions"]
        query = _WITH_DELETED if deleted else None
        found = self._endpoint.ask("GET", path, asked, query=query, retries=self._retries)
        if not isinstance(found, list) or not all(type(one) is int and one > 0 for one in found):
            raise SchemaRegistryError(self.name, asked, "its answer is no list of versions")
        return sorted(found)

    def version(self, subject: str, version: Version) -> RegisteredSchema:
        """Return a version of a subject, or the latest."""
        return self._whole(self._version(subject, version))

    def register(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Register a schema under a subject, and return it with its id.

        It is not read again: another node of the registry may not have it yet.
        """
        asked = f"the registration of a schema under subject {subject!r}"
        path = ["subjects", _quoted(subject), "versions"]
        found = self._object("POST", path, asked, body=json_of(schema))
        schema_id = found.integer("id", 0, INT_MAX)
        return self._whole(RegisteredSchema(schema_id, schema, subject=subject))

    def look_up(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Return the version of a subject that has this schema."""
        asked = f"the version of subject {subject!r} with a schema"
        found = self._object("POST", ["subjects", _quoted(subject)], asked, body=json_of(schema))
        return self._whole(schema_of(found, subject=subject))

    def _id_of(self, guid: str, subject: str, asked: str) -> int:
        """Return the id that a GUID has in a context."""
        found = self._endpoint.ask(
            "GET", ["schemas", "guids", guid, "ids"], asked, retries=self._retries
        )
        try:
            ids: dict[str, int] = {one["context"]: int(one["id"]) for one in found}
        except (TypeError, ValueError, LookupError):
            raise SchemaRegistryError(self.name, asked, "its answer is no list of ids") from None
        context = (
            context_of(subject) or (re.findall(r"/contexts/:?(\.[^/:,]*)", self.name) or ["."])[0]
        )
        if context not in ids:
            reason = f"it has it in these contexts, not in {context!r}: {', '.join(ids) or 'none'}"
            raise SchemaNotFoundError(self.name, asked, reason)
        return ids[context]

    def _version(self, subject: str, version: Version) -> RegisteredSchema:
        """Return a version of a subject, without the schemas that it refers to."""
        path = ["subjects", _quoted(subject), "versions", str(version)]
        query = None if version == LATEST_VERSION else _WITH_DELETED
        found = self._object("GET", path, version_in_words(subject, version), query=query)
        return schema_of(found, subject=subject)

    def _whole(self, schema: RegisteredSchema) -> RegisteredSchema:
        return with_referenced(schema, self.name, self._version)

    def _object(self, method: str, path: list[str], asked: str, **request: Any) -> StoredObject:
        """Return the JSON object that answers a request."""

        def damaged(sentence: str) -> SchemaRegistryError:
            return SchemaRegistryError(self.name, asked, sentence)

        found = self._endpoint.ask(method, path, asked, retries=self._retries, **request)
        return StoredObject(found, "its answer", damaged=damaged)


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _authorization(options: RegistryOptions) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the headers of every request, and the texts in them that are secret."""
    headers = {
        "Accept": f"{_CONTENT_TYPE}, application/json",
        "User-Agent": "spark-kbatch",
        # Without it Confluent's cloud leaves out GUIDs.
        "Confluent-Accept-Unknown-Properties": "true",
    }
    user_info, token = options.user_info.text, options.bearer_auth_token.text
    if user_info:
        encoded = base64.b64encode(user_info.encode()).decode()
        secrets = (encoded, user_info, user_info.partition(":")[2])
        headers["Authorization"] = f"Basic {encoded}"
        # A shorter one would hide parts of ordinary words.
        return headers, tuple(one for one in secrets if len(one) >= _SECRET_MIN)
    if token:
        return {**headers, "Authorization": f"Bearer {token}"}, (token,)
    return headers, ()


def _tls_failure(url: str, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {url} is not accepted: {error.verify_message}; look at "
            "'schema.registry.ssl.truststore.location' and 'schema.registry.ssl.truststore.certificates'"
        )
    return (
        f"TLS with {url} failed ({error.reason or 'for no known reason'}); look whether it speaks TLS, and at "
        "'schema.registry.ssl.keystore.location' if it asks for a client's certificate"
    )


def _why(error: urllib3.exceptions.HTTPError, timeout_ms: int) -> str:
    """Return why an attempt failed, in a few words."""
    from urllib3 import exceptions  # noqa: PLC0415  as above

    if isinstance(error, exceptions.NameResolutionError):
        return "its host name cannot be resolved"
    if isinstance(error, exceptions.NewConnectionError):
        found = re.search(r"\[Errno -?\d+\] ([\w ]+)", str(error))
        return f"no connection: {found[1] if found else 'it cannot be made'}"
    if isinstance(error, exceptions.TimeoutError):
        return f"no whole answer came within {timeout_ms} ms"
    if any(isinstance(one, http.client.IncompleteRead) for one in (error, *error.args)):
        return "its answer was cut off"
    return f"the connection was lost ({type(error).__name__})"
