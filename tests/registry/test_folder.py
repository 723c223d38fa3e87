"""A folder that stands in for a registry: its files, and the errors that name them."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch.errors import SchemaNotFoundError, SchemaRegistryError
from spark_kbatch.files import Files
from spark_kbatch.registry.folder import FolderRegistry
from spark_kbatch.registry.schemas import (
    LATEST_VERSION,
    RegisteredSchema,
    Schema,
    SchemaReference,
)

TEXT = '"string"'


def a_folder(folder: Path, **files: Any) -> FolderRegistry:
    """Write files: `ids_7` is ids/7.json; text as it is, all else as JSON."""
    for name, content in {"subjects": {"orders-value": {"1": 7}}, **files}.items():
        path = folder / f"{name.replace('_', '/')}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return FolderRegistry(folder)


def test_what_a_registry_answers_for_an_id_is_a_file(tmp_path: Path) -> None:
    answer = {
        "schema": "message A {}", "schemaType": "PROTOBUF", "maxId": 9, "guid": "x",
        "ruleSet": {"encodingRules": [{"type": "ENCRYPT_PAYLOAD"}]}, "references": [],
    }  # fmt: skip

    found = a_folder(tmp_path, ids_7=answer).version("orders-value", LATEST_VERSION)
    schema = Schema("message A {}", "PROTOBUF")
    assert found == RegisteredSchema(7, schema, True, "orders-value", 1, guid="x")


@pytest.mark.parametrize("schema", [{"type": "map", "values": "long"}, ["null", "long"]])
def test_a_schema_may_be_written_as_it_is(tmp_path: Path, schema: Any) -> None:
    found = a_folder(tmp_path, ids_7={"schema": schema}).by_id(7)

    assert json.loads(found.schema.text) == schema


def test_an_id_needs_no_subjects(tmp_path: Path) -> None:
    registry = a_folder(tmp_path, ids_7={"schema": TEXT})
    (tmp_path / "subjects.json").unlink()

    assert registry.by_id(7, "orders-value").schema == Schema(TEXT)
    with pytest.raises(SchemaNotFoundError, match=r"subjects\.json has no such subject"):
        registry.versions("orders-value")


def test_files_are_read_each_time(tmp_path: Path) -> None:
    registry = a_folder(tmp_path, ids_7={"schema": TEXT})
    registry.by_id(7)

    a_folder(tmp_path, ids_7={"schema": '"long"'}, ids_8={"schema": TEXT}, subjects={"a": {"4": 8}})
    assert registry.by_id(7).schema.text == '"long"'
    assert registry.version("a", 4).id == 8


def test_a_registration_writes_files_that_read_like_those_of_a_registry(tmp_path: Path) -> None:
    registry = a_folder(tmp_path, ids_7={"schema": TEXT}, ids_notes="no schema")
    schema = Schema("message B {}", "PROTOBUF", (SchemaReference("a", "orders-value", 1),))

    assert registry.register("items-value", schema).id == 8
    assert json.loads((tmp_path / "ids/8.json").read_text()) == {
        "schema": "message B {}",
        "schemaType": "PROTOBUF",
        "references": [{"name": "a", "subject": "orders-value", "version": 1}],
    }
    assert json.loads((tmp_path / "subjects.json").read_text()) == {
        "orders-value": {"1": 7},
        "items-value": {"1": 8},
    }


def test_a_context_is_a_folder_like_the_registrys_own(tmp_path: Path) -> None:
    FolderRegistry(tmp_path).register(":.staging:orders-value", Schema(TEXT))

    inner = FolderRegistry(tmp_path / "contexts/.staging")
    assert inner.version("orders-value", 1).schema == Schema(TEXT)


def test_a_schema_that_refers_to_what_is_not_there_is_not_registered(tmp_path: Path) -> None:
    registry = a_folder(tmp_path, ids_7={"schema": TEXT})
    schema = Schema('["A"]', references=(SchemaReference("A", "a", 1),))

    with pytest.raises(SchemaNotFoundError, match="asked for version 1 of subject 'a'"):
        registry.register("items-value", schema)
    assert [path.name for path in (tmp_path / "ids").iterdir()] == ["7.json"]


class FullDisk(Files):
    """A disk on which there is room for schemas, and none for subjects.json."""

    def replace(self, path: Path, data: bytes) -> None:
        if path.name == "subjects.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().replace(path, data)


def test_a_registration_that_fails_half_way_leaves_a_registry_that_can_be_used(
    tmp_path: Path,
) -> None:
    registry = a_folder(tmp_path, ids_7={"schema": TEXT})
    with pytest.raises(SchemaRegistryError, match=r"subjects\.json cannot be used: No space left"):
        FolderRegistry(tmp_path, files=FullDisk()).register("orders-value", Schema('"long"'))

    assert registry.versions("orders-value") == [1]
    assert registry.register("orders-value", Schema('"long"')).id == 8
    assert registry.versions("orders-value") == [1, 2]


def test_threads_register_at_once_and_each_schema_gets_an_id_of_its_own(tmp_path: Path) -> None:
    ids: list[int] = []

    def register(first: int) -> None:
        registry = FolderRegistry(tmp_path)
        for number in range(first, first + 4):
            ids.append(registry.register("orders-value", Schema(f'["null", "n{number}"]')).id)

    threads = [threading.Thread(target=register, args=(first,)) for first in (0, 4, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(ids) == [*range(1, 13)]
    assert FolderRegistry(tmp_path).versions("orders-value") == [*range(1, 13)]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param({"ids_7": "{"}, r"ids/7\.json is damaged: it is not JSON", id="no JSON"),
        pytest.param({"ids_7": "7"}, r"ids/7\.json is damaged: it is 7", id="no object"),
        pytest.param({"ids_7": {}}, r"ids/7\.json is damaged: it has no schema", id="no schema"),
        pytest.param(
            {"ids_7": {"schema": TEXT, "schemaType": "avro"}},
            r"ids/7\.json is damaged: schemaType is 'avro'", id="a type in small letters",
        ),
        pytest.param(
            {"ids_7": {"schema": TEXT, "references": [{"name": "A", "subject": "a"}]}},
            r"ids/7\.json is damaged: it has no references\[0\]\.version", id="half a reference",
        ),
        pytest.param(
            {"ids_8": {"schema": TEXT}}, r"ids/7\.json does not exist", id="a version without a file"
        ),
        pytest.param({"subjects": "[]", "ids_7": {"schema": TEXT}}, r"subjects\.json is damaged", id="subjects a list"),
        pytest.param(
            {"subjects": {"orders-value": {"latest": 7}}, "ids_7": {"schema": TEXT}},
            r"subjects\.json is damaged: orders-value\.latest is 7", id="a version that is no number",
        ),
        pytest.param(
            {"subjects": {"orders-value": {"1": "7"}}, "ids_7": {"schema": TEXT}},
            r"subjects\.json is damaged: orders-value\.1 is '7'", id="an id that is no number",
        ),
        pytest.param(
            {"subjects": {"orders-value": {}}, "ids_7": {"schema": TEXT}},
            r"subjects\.json is damaged: orders-value is", id="a subject without versions",
        ),
        pytest.param(
            {"subjects": {"orders-value": {"2": 7, "3": 8}}, "ids_7": {"schema": TEXT}},
            r"subjects\.json has the versions 2, 3 of it", id="other versions",
        ),
    ],
)  # fmt: skip
def test_an_error_names_the_file(tmp_path: Path, files: dict[str, Any], words: str) -> None:
    with pytest.raises(SchemaRegistryError, match=words) as error:
        a_folder(tmp_path, **files).version("orders-value", 1)

    assert str(tmp_path) in str(error.value)


def test_a_folder_that_is_no_registry_is_no_missing_schema(tmp_path: Path) -> None:
    for ask in (
        lambda: FolderRegistry(tmp_path).by_id(7),
        lambda: FolderRegistry(tmp_path / "missing").versions("orders-value"),
    ):
        with pytest.raises(SchemaRegistryError, match="it has no folder ids") as error:
            ask()
        assert not isinstance(error.value, SchemaNotFoundError)


def test_a_fifo_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    registry = a_folder(tmp_path, ids_8={"schema": TEXT})
    os.mkfifo(tmp_path / "ids/7.json")

    with pytest.raises(SchemaRegistryError, match=r"7\.json cannot be used: not a regular file"):
        registry.by_id(7)


@pytest.mark.parametrize("context", ["..", ".a/../../b", ". "])
def test_a_context_cannot_lead_out_of_the_folder(tmp_path: Path, context: str) -> None:
    with pytest.raises(SchemaRegistryError, match=r"is named like \.staging"):
        FolderRegistry(tmp_path).register(f":{context}:orders-value", Schema(TEXT))
