"""A folder that stands in for a schema registry, for jobs without a network and for tests.

    ids/7.json          a schema, as a registry answers GET /schemas/ids/7: schema, schemaType, references, ruleSet, guid
    subjects.json       {"orders-value": {"1": 7, "2": 9}}: each subject's versions, and their ids
    contexts/.staging/  ids/ and subjects.json of another context, with its own ids

So `curl URL/schemas/ids/7 > ids/7.json` fills it. In a file that is written by hand, `schema` may be the schema itself, a
JSON object or list, in place of its text. A schema's type is AVRO if `schemaType` is missing. Its references are to
versions in the `subjects.json` of the same context, unless their subject names another one, as `:.CONTEXT:SUBJECT`.
Subjects in `subjects.json` are named without their context. It may be missing where schemas are asked for by id alone.

Files are read each time that they are needed. A registration takes the next id and the next version, and writes the
schema before the version that names it, under a lock on `.lock`. Like a registry whose compatibility is NONE, it
allows any schema. There are no deleted versions: what is taken out of `subjects.json` is gone.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_kbatch.errors import SchemaNotFoundError, SchemaRegistryError
from spark_kbatch.files import Files, LinkedFiles
from spark_kbatch.model import INT_MAX
from spark_kbatch.registry.schemas import (
    PROTOBUF,
    RegisteredSchema,
    Schema,
    Version,
    context_of,
    json_of,
    name_of,
    schema_of,
    version_in_words,
    with_referenced,
)
from spark_kbatch.stored_json import StoredObject, as_bytes, parse

_SUBJECTS, _IDS, _CONTEXTS, _LOCK = "subjects.json", "ids", "contexts", ".lock"
_FILE_OF_ID = re.compile(r"(0|[1-9][0-9]{0,9})\.json")
_CONTEXT = re.compile(r"\.[\w-][\w.-]*")  # which no name of another folder is


class FolderRegistry:
    """A registry that is a folder; its methods are those of `SchemaRegistry`."""

    def __init__(self, folder: Path, *, files: Files | None = None) -> None:
        """Use a folder; it is not looked at."""
        self._folder, self._files = folder, files or LinkedFiles()
        self.name = str(folder)

    def by_id(self, schema_id: int | str, subject: str = "") -> RegisteredSchema:
        """Return the schema of an id, or of a GUID that its file has, in the context of `subject`."""
        if isinstance(schema_id, str):
            schema_id = self._id_of(schema_id, subject)
        return self._whole(self._schema(schema_id, subject))

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the numbers of a subject's versions, in order; none are deleted."""
        del deleted
        return sorted(self._ids_of(subject, f"the versions of subject {subject!r}"))

    def version(self, subject: str, version: Version) -> RegisteredSchema:
        """Return a version of a subject, or the latest."""
        return self._whole(self._version(subject, version))

    def register(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Register a schema under a subject, unless it is registered there, and return it with its id."""
        asked = f"the registration of a schema under subject {subject!r}"
        folder = self._context_folder(subject, asked)
        found = self._whole(RegisteredSchema(0, schema, subject=subject))
        try:
            self._files.make_dir(folder / _IDS)
            with self._files.flock(folder / _LOCK):
                return replace(found, id=self._id_locked(folder, subject, schema, asked))
        except OSError as error:
            raise self._unusable(error, asked) from error

    def look_up(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Return the version of a subject that has this schema."""
        asked = f"the version of subject {subject!r} with a schema"
        found = self._version_with(subject, schema, asked)
        if found is None:
            path = self._context_folder(subject, asked) / _SUBJECTS
            raise SchemaNotFoundError(self.name, asked, f"no version in {path} has it")
        return self._whole(found)

    def _id_locked(self, folder: Path, subject: str, schema: Schema, asked: str) -> int:
        """Return the id of a schema, after registering it unless the subject has it."""
        subjects = self._subjects(folder, asked)
        if name_of(subject) not in subjects:
            subjects.values[name_of(subject)] = {}
        elif there := self._version_with(subject, schema, asked):
            return there.id
        known = self._ids_in(folder)
        same = (one for one in known if _is_same(self._schema(one, subject).schema, schema))
        schema_id = next(same, None)
        if schema_id is None:
            schema_id = max(known, default=0) + 1
            self._files.replace(self._file(folder, schema_id), as_bytes(json_of(schema)))
        versions = subjects.values[name_of(subject)]
        versions[str(max(map(int, versions), default=0) + 1)] = schema_id
        self._files.replace(folder / _SUBJECTS, as_bytes(subjects.values))
        return schema_id

    def _id_of(self, guid: str, subject: str) -> int:
        asked = f"schema id {guid}"
        folder = self._context_folder(subject, asked)
        self._subjects(folder, asked)  # an error if the folder is no registry
        for schema_id in self._ids_in(folder):
            if self._schema(schema_id, subject).guid == guid:
                return schema_id
        raise SchemaNotFoundError(self.name, asked, f'no file in {folder / _IDS} has this "guid"')

    def _ids_in(self, folder: Path) -> list[int]:
        """Return the ids of a context's schemas; raises OSError."""
        names = self._files.list(folder / _IDS)
        return [int(one[1]) for one in map(_FILE_OF_ID.fullmatch, names) if one]

    def _version_with(self, subject: str, schema: Schema, asked: str) -> RegisteredSchema | None:
        """Return the latest version of a subject that has a schema; None if none has it."""
        numbers = sorted(self._ids_of(subject, asked), reverse=True)
        versions = (self._version(subject, number) for number in numbers)
        return next((one for one in versions if _is_same(one.schema, schema)), None)

    def _version(self, subject: str, version: Version) -> RegisteredSchema:
        """Return a version of a subject, without the schemas that it refers to."""
        asked = version_in_words(subject, version)
        ids = self._ids_of(subject, asked)
        number = version if isinstance(version, int) else max(ids)
        if number not in ids:
            path = self._context_folder(subject, asked) / _SUBJECTS
            reason = f"{path} has the versions {', '.join(map(str, sorted(ids)))} of it"
            raise SchemaNotFoundError(self.name, asked, reason)
        return replace(self._schema(ids[number], subject), version=number)

    def _ids_of(self, subject: str, asked: str) -> dict[int, int]:
        """Return the ids of a subject's versions, of which there is one at least."""
        folder = self._context_folder(subject, asked)
        found = self._subjects(folder, asked)
        if name_of(subject) not in found:
            reason = f"{folder / _SUBJECTS} has no such subject"
            raise SchemaNotFoundError(self.name, asked, reason)
        versions = found.object(name_of(subject))
        ids = dict(versions.by_number(lambda one, key: one.integer(key, 0, INT_MAX), INT_MAX))
        if not ids:
            raise found.damaged(name_of(subject), versions.values, "a version at least")
        return ids

    def _subjects(self, folder: Path, asked: str) -> StoredObject:
        """Return the content of a context's subjects.json; an empty object if it does not exist."""
        path = folder / _SUBJECTS
        return self._parsed(self._read(folder, path, asked) or b"{}", path, asked)

    def _schema(self, schema_id: int, subject: str) -> RegisteredSchema:
        """Return the schema of an id, without the schemas that it refers to."""
        asked = f"schema id {schema_id}" + (f" of subject {subject!r}" if subject else "")
        folder = self._context_folder(subject, asked)
        path = self._file(folder, schema_id)
        data = self._read(folder, path, asked)
        if data is None:
            raise SchemaNotFoundError(self.name, asked, f"{path} does not exist")
        found = self._parsed(data, path, asked)
        if isinstance(found.values.get("schema"), dict | list):
            found.values["schema"] = json.dumps(found.values["schema"])
        return schema_of(found, schema_id=schema_id, subject=subject)

    def _whole(self, schema: RegisteredSchema) -> RegisteredSchema:
        return with_referenced(schema, self.name, self._version)

    def _context_folder(self, subject: str, asked: str) -> Path:
        context = context_of(subject)
        if context and not _CONTEXT.fullmatch(context):
            reason = f"a context of a folder is named like .staging, and not {context!r}"
            raise SchemaRegistryError(self.name, asked, reason)
        return self._folder / _CONTEXTS / context if context else self._folder

    def _file(self, folder: Path, schema_id: int) -> Path:
        return folder / _IDS / f"{schema_id}.json"

    def _read(self, folder: Path, path: Path, asked: str) -> bytes | None:
        """Return a file's content; None if the registry is there, and has no such file."""
        try:
            return self._files.read(path)
        except FileNotFoundError:
            if self._files.is_dir(folder / _IDS):
                return None
            reason = f"{folder} is no registry: it has no folder {_IDS}, with schemas such as {_IDS}/7.json"
            raise SchemaRegistryError(self.name, asked, reason) from None
        except OSError as error:
            raise self._unusable(error, asked) from error

    def _unusable(self, error: OSError, asked: str) -> SchemaRegistryError:
        reason = f"{error.filename or self.name} cannot be used: {error.strerror or error}"
        return SchemaRegistryError(self.name, asked, reason)

    def _parsed(self, data: bytes, path: Path, asked: str) -> StoredObject:
        return parse(data, path, damaged=lambda text: SchemaRegistryError(self.name, asked, text))


def _is_same(one: Schema, other: Schema) -> bool:
    """Return True if two schemas differ in nothing, or in blanks and the order of keys alone."""
    return one[1:] == other[1:] and _parsed_text(one) == _parsed_text(other)


def _parsed_text(schema: Schema) -> Any:
    if schema.type != PROTOBUF:
        try:
            return json.loads(schema.text)
        except (ValueError, RecursionError):
            pass
    return schema.text.strip()
