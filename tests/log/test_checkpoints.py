"""The small text files: we read what a broker writes, and write what a broker would write."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.log import checkpoints
from spark_kbatch.log.checkpoints import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    MetaProperties,
    read_leader_epochs,
    read_meta_properties,
    read_offset_checkpoint,
    read_partition_metadata,
    write_leader_epochs,
    write_meta_properties,
    write_offset_checkpoint,
    write_partition_metadata,
)
from spark_kbatch.model import TopicPartition, random_id

FILES = Files()
TOPIC_ID = "nyBBbFDuTeu_f1pLaD4Tcg"


# Offset checkpoints.


@pytest.mark.parametrize("name", [RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS])
def test_an_offset_checkpoint_is_written_as_a_broker_writes_it(tmp_path: Path, name: str) -> None:
    offsets = {TopicPartition("web.logs-eu", 1): 2**63 - 1, TopicPartition("a", 0): 0}
    write_offset_checkpoint(FILES, tmp_path, name, offsets)

    assert (tmp_path / name).read_bytes() == b"0\n2\nweb.logs-eu 1 9223372036854775807\na 0 0\n"
    assert list(read_offset_checkpoint(FILES, tmp_path, name).items()) == list(offsets.items())
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "content", [None, b"", b"0\n", b"0\n0\n"], ids=["absent", "empty", "version", "none"]
)
def test_an_offset_checkpoint_may_have_no_entries(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / RECOVERY_POINTS).write_bytes(content)
    assert read_offset_checkpoint(FILES, tmp_path, RECOVERY_POINTS) == {}


@pytest.mark.parametrize("content", [b"0\r\n1\r\na 0 5\r\n", b"0\n1\na 0 5"], ids=["crlf", "cut"])
def test_a_checkpoint_may_have_been_edited(tmp_path: Path, content: bytes) -> None:
    (tmp_path / RECOVERY_POINTS).write_bytes(content)
    assert read_offset_checkpoint(FILES, tmp_path, RECOVERY_POINTS) == {TopicPartition("a", 0): 5}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"1\n1\na 0 5\n", id="version"),
        pytest.param(b"0\n2\na 0 5\n", id="count"),
        pytest.param(b"0\n1\na 5\n", id="fields"),
        pytest.param(b"0\n1\na 0 -5\n", id="negative"),
        pytest.param(b"0\n1\na 0 9223372036854775808\n", id="overflow"),
        pytest.param(b"0\n1\n\xff\xfe\x00\n", id="garbage"),
        pytest.param(b"\0" * 20, id="zeroed"),
    ],
)
def test_a_damaged_offset_checkpoint_is_an_error_that_names_it(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / HIGH_WATERMARKS
    path.write_bytes(content)
    with pytest.raises(KafkaStorageError, match=f"{path} is not a checkpoint"):
        read_offset_checkpoint(FILES, tmp_path, HIGH_WATERMARKS)


# Leader epochs.


def test_leader_epochs_are_written_as_a_broker_writes_them(tmp_path: Path) -> None:
    write_leader_epochs(FILES, tmp_path, [(0, 0), (3, 17)])
    assert (tmp_path / LEADER_EPOCHS).read_bytes() == b"0\n2\n0 0\n3 17\n"
    assert read_leader_epochs(FILES, tmp_path) == [(0, 0), (3, 17)]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"0\n2\n3 17\n0 0\n", id="descending"),
        pytest.param(b"0\n2\n0 17\n3 5\n", id="offsets-descend"),
        pytest.param(b"0\n1\n2147483648 0\n", id="overflow"),
        pytest.param(b"0\n1\n0 0 0\n", id="fields"),
    ],
)
def test_damaged_leader_epochs_are_an_error_that_names_the_file(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / LEADER_EPOCHS).write_bytes(content)
    with pytest.raises(KafkaStorageError, match=LEADER_EPOCHS):
        read_leader_epochs(FILES, tmp_path)


# partition.metadata


def test_partition_metadata_is_written_as_a_broker_writes_it(tmp_path: Path) -> None:
    write_partition_metadata(FILES, tmp_path, TOPIC_ID)
    assert (tmp_path / PARTITION_METADATA).read_text() == f"version: 0\ntopic_id: {TOPIC_ID}"
    assert read_partition_metadata(FILES, tmp_path) == TOPIC_ID


def test_partition_metadata_may_be_of_a_later_version(tmp_path: Path) -> None:
    (tmp_path / PARTITION_METADATA).write_text(f"version: 1\ntopic_id:   {TOPIC_ID}\nmore: x\n")
    assert read_partition_metadata(FILES, tmp_path) == TOPIC_ID


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param(f"topic_id: {TOPIC_ID}", id="no-version"),
        pytest.param("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", id="zero-id"),
        pytest.param("version: 0\ntopic_id: short", id="short-id"),
        pytest.param(f"version: -1\ntopic_id: {TOPIC_ID}", id="negative-version"),
        pytest.param(f"version: 0\ntopic_id: {TOPIC_ID[:-1]}ä", id="not-ascii"),
    ],
)
def test_damaged_partition_metadata_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    (tmp_path / PARTITION_METADATA).write_text(content)
    with pytest.raises(KafkaStorageError, match=PARTITION_METADATA):
        read_partition_metadata(FILES, tmp_path)


# meta.properties


def test_meta_properties_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_meta_properties(FILES, tmp_path, cluster_id="c-_9", node_id=3, directory_id="d")
    assert read_meta_properties(FILES, tmp_path) == MetaProperties(1, "c-_9", 3, "d")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(
            "#\n#Fri Oct 25 10:00:00 CEST 2024\ndirectory.id=d\nnode.id=1\nversion=1\ncluster.id=c\n",
            MetaProperties(1, "c", 1, "d"),
            id="as-a-broker-stores-it",
        ),
        pytest.param("version=1\r\ncluster.id=c\r\nnode.id=1\r\n", MetaProperties(1, "c", 1, None), id="crlf"),
        pytest.param("version=0\nbroker.id=7\n", MetaProperties(0, None, 7, None), id="version-0"),
        pytest.param("broker.id=7\n", MetaProperties(0, None, 7, None), id="before-versions"),
        pytest.param("version : 1\n! note\n  node.id 4", MetaProperties(1, None, 4, None), id="separators"),
        pytest.param(
            "version=1\ncluster.id=a\\=b\\:c\\u00e9\\\\\\\n   d\n",
            MetaProperties(1, "a=b:cé\\d", None, None),
            id="escapes",
        ),
    ],
)  # fmt: skip
def test_meta_properties_are_read_in_all_forms_that_java_writes(
    tmp_path: Path, content: str, expected: MetaProperties
) -> None:
    (tmp_path / META_PROPERTIES).write_bytes(content.encode("latin-1"))
    assert read_meta_properties(FILES, tmp_path) == expected


@pytest.mark.parametrize("content", ["version=2\n", "version=1\nnode.id=x\n"])
def test_damaged_meta_properties_are_an_error_that_names_them(tmp_path: Path, content: str) -> None:
    (tmp_path / META_PROPERTIES).write_text(content)
    with pytest.raises(KafkaStorageError, match=META_PROPERTIES):
        read_meta_properties(FILES, tmp_path)


def _escaped(text: str) -> str:
    """Escape as java.util.Properties.store escapes keys and values."""
    named = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", " ": "\\ "}
    return "".join(
        named.get(c)
        or (f"\\{c}" if c in "\\=:#!" else c if " " < c < "\x7f" else f"\\u{ord(c):04X}")
        for c in text
    )


_texts = st.text(st.characters(max_codepoint=0xD7FF), max_size=8)


@given(st.dictionaries(_texts, _texts, max_size=4))
def test_properties_stored_by_java_are_read(stored: dict[str, str]) -> None:
    text = "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in stored.items())
    assert checkpoints._properties(text) == stored


def test_no_id_looks_like_a_flag_of_kafkas_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([uuid.UUID(int=0xF8 << 120), uuid.UUID(int=0xFB << 120), uuid.UUID(int=7)])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(drawn))
    assert random_id() == "AAAAAAAAAAAAAAAAAAAABw"
