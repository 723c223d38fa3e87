"""The calls of a schema registry's API.

    GET  /schemas/ids/ID?subject=SUBJECT           a schema by its id
    GET  /subjects/SUBJECT/versions?deleted=true   the versions of a subject
    GET  /subjects/SUBJECT/versions/VERSION        one of them, or the latest
    POST /subjects/SUBJECT/versions                register a schema
    POST /subjects/SUBJECT                         look up a schema

Source: Confluent's API reference; schema-registry core/.../rest/resources.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from spark_kbatch.errors import SchemaRegistryError
from spark_kbatch.model import INT_MAX
from spark_kbatch.registry.endpoint import Endpoint
from spark_kbatch.registry.schemas import (
    LATEST_VERSION,
    RegisteredSchema,
    Schema,
    Version,
    json_of,
    schema_of,
    version_in_words,
    with_referenced,
)
from spark_kbatch.stored_json import StoredObject

_WITH_DELETED = {"deleted": "true"}


class RegistryClient:
    """A client of a schema registry that remembers nothing; its methods are those of `SchemaRegistry`."""

    def __init__(self, endpoint: Endpoint, *, retries: bool = True) -> None:
        """Ask an endpoint; without `retries` a call fails once each URL has failed."""
        self._endpoint, self._retries = endpoint, retries
        self.name = endpoint.name

    def by_id(self, schema_id: int, subject: str = "") -> RegisteredSchema:
        """Return the schema of an id, in the context of `subject`."""
        asked = f"schema id {schema_id}" + (f" of subject {subject!r}" if subject else "")
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
