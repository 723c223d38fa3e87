"""The way to a registry, and a client of it that asks for nothing twice.

    asked for                      answered from
    an id, a GUID                  the process, then the machine's cache, then the registry: neither ever changes
    a version, a registration,     the registry; from the machine's cache only while the registry cannot be reached, so
    a schema to look up            that a query that runs already goes on
    the latest version, the list   always the registry
    of versions, an id that refers
    to the latest of a subject

Bytes of another origin look like ids that no registry has. An id or a GUID that the registry does not have is not asked for again
for a minute, and after 20 such ids of a subject within a minute a process asks for no further one of it: they are
unknown too. One thread asks at a time. If it finds the registry down, those that waited for it fail too, and do not
wait as long again.

A new registry may be set up at the same URL, with other schemas under the same ids. As soon as an answer shows
that, all that was known of it is forgotten.

The machine's cache is files that all processes of a user share, so that few tasks ask a registry;
`machine_files` says how they are kept. Each answer is a file of [format, question, schema], in a folder
for the registry's URLs and user, of which neither can be read from its name. One that answers another
question counts as none.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_kbatch import clock, mutexes
from spark_kbatch.errors import SchemaNotFoundError, SchemaRegistryUnavailableError
from spark_kbatch.machine_files import MachineFiles
from spark_kbatch.options.registry import RegistryOptions
from spark_kbatch.registry.endpoint import Endpoint, RegistryClient
from spark_kbatch.registry.folder import FolderRegistry
from spark_kbatch.registry.schemas import (
    LATEST_VERSION,
    ReferencedSchema,
    RegisteredSchema,
    Schema,
    SchemaReference,
    SchemaRegistry,
    Version,
    json_of,
    scope_of,
)

if TYPE_CHECKING:
    import threading

logger = logging.getLogger(__name__)

_UNKNOWN_IDS_MAX = 20  # of a subject or context, that a process asks for in a minute
_MINUTE_MS = 60_000
_CACHE_FORMAT = 1
_REGISTRIES_MAX = 32  # whose options differ, in one process


@functools.lru_cache(_REGISTRIES_MAX)
def registry_of(options: RegistryOptions) -> SchemaRegistry:
    """Return the registry that options name, the same for the whole process."""
    if options.url.folder:
        return FolderRegistry(Path(options.url.folder))
    endpoint = Endpoint(options)
    # Some registries share a URL, and tell by the user which of them is meant.
    user = options.user_info.text.partition(":")[0]
    about = [",".join(sorted(options.url.urls)), *([user] if user else [])]
    return KnownSchemas(
        RegistryClient(endpoint, retries=options.retries),
        RegistryClient(endpoint, retries=False),
        SchemaCache(" ".join(about)),
    )


class SchemaCache:
    """The answers of one registry that this machine knows. Thread-safe."""

    def __init__(self, registry: str, *, folder: Path | None = None) -> None:
        """Remember answers of a registry.

        Args:
            registry: its URLs and its user, without secrets.
            folder: of all registries; None for the one of this machine.
        """
        self._files = MachineFiles("spark_kbatch-schemas", registry, folder=folder)

    def get(self, question: str) -> RegisteredSchema | None:
        """Return the answer to a question; None if it is not known."""
        try:
            version, asked, fields = self._files.get(question)
            return _cached(fields) if (version, asked) == (_CACHE_FORMAT, question) else None
        except (ValueError, TypeError, KeyError):
            return None

    def put(self, question: str, answer: RegisteredSchema) -> None:
        """Remember the answer to a question, if that is possible."""
        self._files.put(question, [_CACHE_FORMAT, question, asdict(answer)])

    def clear(self) -> None:
        """Forget all answers of the registry."""
        self._files.clear()


def _cached(fields: dict[str, Any]) -> RegisteredSchema:
    text, kind, references = fields.pop("schema")
    referenced = fields.pop("referenced")
    return RegisteredSchema(
        schema=Schema(text, kind, tuple(SchemaReference(*one) for one in references)),
        referenced=tuple(ReferencedSchema(*one) for one in referenced),
        **fields,
    )


class KnownSchemas:
    """A client of a registry that remembers; its methods are those of `SchemaRegistry`."""

    def __init__(
        self,
        client: SchemaRegistry,
        hasty: SchemaRegistry,
        cache: SchemaCache,
        *,
        monotonic_ms: Callable[[], int] = clock.monotonic_ms,
    ) -> None:
        """Ask a client, or a hasty one, which does not retry, where the answer is known already."""
        self.name = client.name
        self._client, self._hasty, self._cache = client, hasty, cache
        self._monotonic_ms = monotonic_ms
        # Held while an unknown id is asked for; guards _unknown and _outage.
        self._asking: threading.Lock
        mutexes.make(self, "_asking")
        # No lock: single steps of the interpreter, and all threads store the same.
        self._by_question: dict[str, RegisteredSchema] = {}
        # When it was found out, by scope and id: bytes of one topic use up nothing of another one's.
        self._unknown: dict[tuple[str, int | str], tuple[int, SchemaNotFoundError]] = {}
        self._outage: tuple[int, SchemaRegistryUnavailableError] | None = None

    def by_id(self, schema_id: int | str, subject: str = "") -> RegisteredSchema:
        """Return the schema of an id or a GUID, in the context of `subject`."""
        question = _id_question(schema_id, subject)
        started_ms = self._monotonic_ms()
        found = self._known_id(question)
        if found is None:
            with self._asking:
                found = self._known_id(question) or self._asked_id(
                    question, schema_id, subject, started_ms
                )
        return replace(found, subject=subject, version=0)

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the numbers of a subject's versions, in order."""
        return self._client.versions(subject, deleted=deleted)

    def version(self, subject: str, version: Version) -> RegisteredSchema:
        """Return a version of a subject, or the latest, which is never remembered as such."""
        if version == LATEST_VERSION:
            found = self._client.version(subject, version)
        else:
            found = self._last_answer(
                json.dumps(["version", subject, version]),
                lambda client: client.version(subject, version),
            )
        self._remember_id(_id_question(found.id, subject), found)
        return found

    def register(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Register a schema under a subject, unless it is registered there, and return it with its id."""
        # The text that the registry has under the id may differ, in blanks for instance.
        return self._last_answer(
            json.dumps(["register", subject, json_of(schema)]),
            lambda client: client.register(subject, schema),
        )

    def look_up(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Return the version of a subject that has this schema."""
        found = self._last_answer(
            json.dumps(["look up", subject, json_of(schema)]),
            lambda client: client.look_up(subject, schema),
        )
        self._remember_id(_id_question(found.id, subject), found)
        return found

    def _asked_id(
        self, question: str, schema_id: int | str, subject: str, started_ms: int
    ) -> RegisteredSchema:
        """Ask the registry for an id that is not known here, if it may be asked."""
        scope = scope_of(subject)
        self._ensure_may_ask(scope, schema_id, started_ms)
        try:
            found = self._client.by_id(schema_id, subject)
        except SchemaNotFoundError as error:
            self._unknown[scope, schema_id] = self._monotonic_ms(), replace(error)
            raise
        except SchemaRegistryUnavailableError as error:
            self._outage = self._monotonic_ms(), replace(error)
            raise
        self._remember_id(question, found)
        self._remember_id(_id_question(found.id, subject), found)  # where a GUID was asked for
        return found

    def _last_answer(
        self, question: str, ask: Callable[[SchemaRegistry], RegisteredSchema]
    ) -> RegisteredSchema:
        """Return a registry's answer, or its last one while it cannot be reached."""
        known = self._cache.get(question)
        try:
            found = ask(self._client if known is None else self._hasty)
        except SchemaRegistryUnavailableError as error:
            if known is None:
                raise
            logger.warning("%s; going on with schema id %d, its last answer", error, known.id)
            return known
        if found != known:
            self._cache.put(question, found)
        return found

    def _known_id(self, question: str) -> RegisteredSchema | None:
        known = self._by_question.get(question) or self._cache.get(question)
        if known is not None:
            self._by_question[question] = known
        return known

    def _remember_id(self, question: str, found: RegisteredSchema) -> None:
        known = self._known_id(question)
        if known is not None and known.schema != found.schema:
            logger.warning(
                "schema registry %s has another schema under id %d than before: forgetting all that was known of it",
                self.name, found.id,
            )  # fmt: skip
            self._by_question.clear()
            self._cache.clear()
            known = None
        if known is None and not found.may_change:
            self._by_question[question] = found
            self._cache.put(question, found)

    def _ensure_may_ask(self, scope: str, schema_id: int | str, started_ms: int) -> None:
        """Raise if an id was not there a minute ago, too many were not, or the registry went down just now."""
        if self._outage is not None and self._outage[0] > started_ms:
            raise replace(self._outage[1])
        now_ms = self._monotonic_ms()
        for one in [one for one, (at, _) in self._unknown.items() if now_ms - at >= _MINUTE_MS]:
            del self._unknown[one]
        if (scope, schema_id) in self._unknown:
            raise replace(self._unknown[scope, schema_id][1])
        if sum(one == scope for one, _ in self._unknown) >= _UNKNOWN_IDS_MAX:
            reason = (
                f"it is not asked, as it did not have {_UNKNOWN_IDS_MAX} other ids within a minute; look "
                "whether these bytes have Confluent's framing, and whether this is the right registry"
            )
            raise SchemaNotFoundError(self.name, f"schema id {schema_id}", reason)


def _id_question(schema_id: int | str, subject: str) -> str:
    return json.dumps(["id", scope_of(subject), schema_id])
