"""Values whose schema a header of the record names, or a GUID: by bytes of Confluent's own serializer, and by hand."""

from __future__ import annotations

import functools
import itertools
import json
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import schema_registry as confluent
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import spark_kbatch
from spark_kbatch import Cluster, ConfigError, RecordDeserializationError
from spark_kbatch.columns.functions import decoded_column, encoded_column
from spark_kbatch.errors import SchemaRegistryUnavailableError
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.registry import known
from spark_kbatch.registry.endpoint import Endpoint
from tests.registry.conftest import Pauses
from tests.support import avro, draws
from tests.support.avro import a_record, framed, parsed
from tests.support.fake_registry import FakeRegistry

SUBJECT, HEADER = "orders-value", "__value_schema_id"
FIRST = a_record(("id", "long"), ("name", "string"), name="Order")
SECOND = a_record(
    ("id", "long"),
    ("name", "string"),
    {"name": "note", "type": ["null", "string"], "default": None},
    name="Order",
)
FIRST_GUID, SECOND_GUID, STAGED_GUID = (uuid.UUID(int=number << 64 | 5) for number in (1, 2, 3))
BODY = avro.encode(parsed(FIRST), {"id": 1, "name": "x"})
COLUMN = {"id": 1, "name": "x", "note": None}
OF_7, OF_FIRST = b"\0\0\0\0\x07", b"\x01" + FIRST_GUID.bytes
GOOD = framed(7, BODY)
_topics = itertools.count()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    """A registry with two versions of the subject, under the ids 7 and 9, and a schema in another context."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # of the machine's cache
    pauses = Pauses()
    quick = functools.partial(Endpoint, monotonic_ms=pauses.monotonic_ms, sleep=pauses.sleep)
    monkeypatch.setattr(known, "Endpoint", quick)
    known.registry_of.cache_clear()
    with FakeRegistry() as registry:
        registry.add_at(7, SUBJECT, json.dumps(FIRST), guid=str(FIRST_GUID))
        registry.add_at(9, SUBJECT, json.dumps(SECOND), guid=str(SECOND_GUID))
        registry.add_at(3, ":.staging:others", json.dumps(FIRST), guid=str(STAGED_GUID))
        yield registry
    known.registry_of.cache_clear()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with spark_kbatch.open("memory://headers", create=True) as cluster:
        yield cluster


class Sent(NamedTuple):
    """A record to send."""

    value: bytes | None
    headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] | None = None
    key: bytes | None = None


def sent(cluster: Cluster, *records: Sent | bytes | None) -> str:
    """Send records to a new topic; return its name."""
    topic = f"orders-{next(_topics)}"
    cluster.create_topic(topic)
    with cluster.producer() as producer:
        for record in records:
            one = record if isinstance(record, Sent) else Sent(record)
            producer.send(topic, one.value, key=one.key, headers=one.headers)
    return topic


def read(cluster: Cluster, topic: str, registry: Any, **options: Any) -> pa.Table:
    given = {"value_format": "avro", "value_subject": SUBJECT, "value_framing": "header", **options}
    url = registry.url if isinstance(registry, FakeRegistry) else registry
    return cluster.read(topic, registry=url, **given).read_all()


def test_values_of_confluents_serializer_are_read(cluster: Cluster, fake: FakeRegistry) -> None:
    theirs = confluent.SchemaRegistryClient.new_client({"url": "mock://headers"})
    in_headers = {"schema.id.serializer": confluent.header_schema_id_serializer}
    records = []
    for number, schema in enumerate([FIRST, SECOND] * 3):
        serializer = AvroSerializer(theirs, json.dumps(schema), conf=in_headers)
        headers: list[tuple[str, bytes]] = []
        row = {"id": number, "name": "é" * number, "note": "n"}
        context = SerializationContext("theirs", MessageField.VALUE, headers)
        records.append(Sent(serializer(row, context), headers))
    for version, schema_id in ((1, 21), (2, 22)):
        guid = theirs.get_version("theirs-value", version).guid
        text = json.dumps(FIRST if version == 1 else SECOND)
        fake.add_at(schema_id, "theirs-value", text, guid=guid)
    topic = sent(cluster, *records)

    table = read(cluster, topic, fake, value_subject="theirs-value", include_schema_id=True)
    assert table["value"].to_pylist() == [
        {"id": n, "name": "é" * n, "note": "n" if n % 2 else None} for n in range(6)
    ]
    assert table["value_schema_id"].to_pylist() == [21, 22] * 3
    assert fake.asked == [
        one for one in fake.asked if "guids" not in one
    ]  # known with the versions


def test_the_last_header_counts_before_what_is_in_front_of_the_value(
    cluster: Cluster, fake: FakeRegistry
) -> None:
    body = avro.encode(parsed(SECOND), {"id": 2, "name": "y", "note": (1, "n")})
    records = [
        GOOD,
        Sent(BODY, {HEADER: OF_FIRST}),
        Sent(BODY, {HEADER: OF_7}),
        None,
        Sent(None, {HEADER: OF_FIRST}),
        Sent(BODY, [(HEADER, b"\x01" + SECOND_GUID.bytes), ("other", b""), (HEADER, OF_FIRST)]),
        Sent(body, [("a", None), (HEADER, OF_7), (HEADER, b"\0\0\0\0\x09"), ("b", b"\x01")]),
        Sent(OF_FIRST + BODY, {"__key_schema_id": b"\x09"}),
        Sent(GOOD, [(HEADER, OF_FIRST), (HEADER, None)]),  # as Confluent's deserializer has it
    ]
    topic = sent(cluster, *records)

    table = read(cluster, topic, fake, include_schema_id=True, include_bytes=True)
    other = {"id": 2, "name": "y", "note": "n"}
    values = [COLUMN, COLUMN, COLUMN, None, None, COLUMN, other, COLUMN, COLUMN]
    assert table["value"].to_pylist() == values
    assert table["value_schema_id"].to_pylist() == [7, 7, 7, None, None, 7, 9, 7, 7]
    raw = [one.value if isinstance(one, Sent) else one for one in records]
    assert table["value_bytes"].to_pylist() == raw

    for columns in (["value"], ["offset", "value_schema_id"], ["headers"], []):
        found = read(cluster, topic, fake, include_schema_id=True, columns=columns)
        assert found == table.select(columns)
    found = read(cluster, topic, fake, where="value.id = 2 AND offset > 1", columns=["offset"])
    assert found["offset"].to_pylist() == [6]


UNKNOWN = uuid.UUID(int=99)
# What a record is, and what is said of it: the reason, the position, the schema's id.
BAD = [
    pytest.param(Sent(BODY[:-1], {HEADER: OF_FIRST}), "ends in the middle", 1, 7, id="cut, by a GUID"),
    pytest.param(Sent(BODY + b"x", {HEADER: OF_7}), "bytes are left over", 3, 7, id="left over, by an id"),
    pytest.param(OF_FIRST + BODY + b"x", "bytes are left over", 17 + 3, 7, id="left over behind a GUID"),
    pytest.param(GOOD + b"x", "bytes are left over", 5 + 3, 7, id="left over behind an id"),
    pytest.param(Sent(b"", {HEADER: OF_7}), "ends in the middle", 0, 7, id="empty"),
    pytest.param(Sent(BODY, {HEADER: b""}), f"the header {HEADER} names no schema: it has neither a 0", -1, -1, id="empty header"),
    pytest.param(Sent(BODY, {HEADER: b"\x01\x02"}), "names no schema", -1, -1, id="short header"),
    pytest.param(Sent(GOOD, {HEADER: b"\x02" + bytes(16)}), "names no schema", -1, -1, id="another magic"),
    pytest.param(Sent(BODY, {HEADER: b"\0\xff\xff\xff\xff"}), "names no schema", -1, -1, id="a negative id"),
    pytest.param(Sent(BODY, {HEADER: b"\0\0\0\0\x32"}), "schema id 50 of subject", -1, 50, id="unknown id"),
    pytest.param(Sent(BODY, {HEADER: b"\x01" + UNKNOWN.bytes}), f"schema id {UNKNOWN} of subject", -1, -1, id="unknown GUID"),
    pytest.param(b"\x01" + UNKNOWN.bytes + BODY, f"schema id {UNKNOWN} of subject", -1, -1, id="unknown GUID in front"),
    pytest.param(Sent(BODY, {HEADER: b"\x01" + STAGED_GUID.bytes}), "it has it in these contexts, not in '.': .staging", -1, -1, id="of another context"),
    pytest.param(Sent(b'{"id": 1}'), "not in Confluent's framing: it looks like JSON", -1, -1, id="JSON"),
    pytest.param(b"\x01" + bytes(15), "its first byte is 0x01", -1, -1, id="too short for a GUID"),
]  # fmt: skip


@pytest.mark.parametrize(("record", "reason", "position", "schema_id"), BAD)
def test_a_value_that_cannot_be_decoded_is_an_error_or_null_beside_its_reason(
    cluster: Cluster, fake: FakeRegistry, record: Any, reason: str, position: int, schema_id: int
) -> None:
    good = Sent(BODY, {HEADER: OF_FIRST})
    topic = sent(cluster, good, None, record, good)

    table = read(cluster, topic, fake, mode="PERMISSIVE")
    assert table["value"].to_pylist() == [COLUMN, None, None, COLUMN]
    assert table["value_error"].is_null().to_pylist() == [True, True, False, True]
    with pytest.raises(RecordDeserializationError) as told:
        read(cluster, topic, fake)
    found = told.value
    assert reason in found.reason
    assert (found.offset, found.position, found.schema_id) == (2, position, schema_id)
    assert str(found).startswith(table["value_error"][2].as_py())


def test_an_id_is_one_of_the_subjects_context(cluster: Cluster, fake: FakeRegistry) -> None:
    fake.add_at(4, "others", json.dumps(SECOND), guid=str(STAGED_GUID))
    topic = sent(cluster, Sent(BODY, {HEADER: b"\x01" + STAGED_GUID.bytes}))
    given = {"value_schema": json.dumps(FIRST), "include_schema_id": True}

    for url, subject in (
        (fake.url, ":.staging:x"),
        (f"{fake.url}/contexts/.staging", "x"),
        (f"{fake.url}/contexts/:.staging:", "x"),
    ):
        found = read(cluster, topic, url, value_subject=subject, **given)
        assert found["value_schema_id"].to_pylist() == [3]
    with pytest.raises(RecordDeserializationError, match="schema id 4"):
        read(cluster, topic, fake, **given)


def test_guids_are_asked_for_once_and_unknown_ones_a_few_times(
    cluster: Cluster, fake: FakeRegistry
) -> None:
    fake.add_at(11, "others", json.dumps(FIRST), guid=str(STAGED_GUID))
    unknown = [Sent(BODY, {HEADER: b"\x01" + uuid.UUID(int=n).bytes}) for n in range(100, 150)]
    records = [Sent(BODY, {HEADER: b"\x01" + STAGED_GUID.bytes})] * 5
    topic = sent(cluster, *records, *unknown)

    for _ in range(2):
        table = read(cluster, topic, fake, mode="PERMISSIVE")
        assert table["value"].to_pylist() == [COLUMN] * 5 + [None] * 50
    guids = [one for one in fake.asked if "guids" in one]
    assert len(guids) == len(set(guids)) == 1 + 20
    assert "20 other ids within a minute" in table["value_error"][54].as_py()


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_an_outage_of_the_registry_turns_no_data_into_nulls(
    cluster: Cluster, fake: FakeRegistry, mode: str
) -> None:
    fake.add_at(11, "others", json.dumps(FIRST), guid=str(STAGED_GUID))
    topic = sent(cluster, Sent(BODY, {HEADER: b"\x01" + STAGED_GUID.bytes}))
    given = {"value_format": "avro", "value_subject": SUBJECT, "value_framing": "header"}
    rows = cluster.read(topic, registry=fake.url, mode=mode, **given)
    fake.next_answers("500", times=1000)

    with pytest.raises(SchemaRegistryUnavailableError, match="asked for schema id"):
        rows.read_all()


def test_bytes_have_no_length_of_their_own_as_confluent_writes_them(
    cluster: Cluster, fake: FakeRegistry
) -> None:
    fake.add_at(12, "raw-value", '"bytes"', guid=str(UNKNOWN))
    topic = sent(cluster, Sent(b"\x04\xff", {HEADER: b"\x01" + UNKNOWN.bytes}))

    found = read(cluster, topic, fake, value_subject="raw-value")
    assert found["value"].to_pylist() == [b"\x04\xff"]


def test_keys_have_a_header_of_their_own(cluster: Cluster, tmp_path: Path) -> None:
    """And a folder has GUIDs in its files, as registries answer them."""
    ids = tmp_path / "registry/ids"
    ids.mkdir(parents=True)
    (ids / "7.json").write_text(json.dumps({"schema": FIRST, "guid": str(FIRST_GUID)}))
    (ids / "8.json").write_text(json.dumps({"schema": "string", "guid": str(SECOND_GUID)}))
    key = avro.encode(parsed("string"), "k")
    headers = {HEADER: OF_FIRST, "__key_schema_id": b"\x01" + SECOND_GUID.bytes}
    topic = sent(cluster, Sent(BODY, headers, key), Sent(None, {HEADER: OF_FIRST}))

    found = read(
        cluster, topic, tmp_path / "registry", value_schema="id:7", key_format="avro",
        key_framing="header", key_schema='"string"', key_subject="x",
    )  # fmt: skip
    assert found["key"].to_pylist() == ["k", None]
    assert found["value"].to_pylist() == [{"id": 1, "name": "x"}, None]
    unknown = sent(cluster, Sent(BODY, {HEADER: b"\x01" + UNKNOWN.bytes}))
    with pytest.raises(RecordDeserializationError, match=r'no file in .*ids has this "guid"'):
        read(cluster, unknown, tmp_path / "registry", value_schema="id:7")


def test_json_needs_a_registry_for_ids_of_guids_alone(cluster: Cluster, fake: FakeRegistry) -> None:
    records = [
        Sent(b'{"id": 1}', {HEADER: OF_FIRST}),
        Sent(b'{"id": 2}', {HEADER: OF_7}),
        OF_7 + b'{"id": 3}',
        b"\x01" + UNKNOWN.bytes + b'{"id": 4}',
        b'{"id": 5}',
        Sent(b'{"id": 6.5}', {HEADER: OF_FIRST}),
        b"\x01" + UNKNOWN.bytes + b'{"id": 7.5}',
        Sent(b"{}", {HEADER: b"?"}),
    ]
    topic = sent(cluster, *records)
    given = {"value_format": "json", "value_schema": "id bigint", "mode": "PERMISSIVE"}

    table = read(cluster, topic, None, include_schema_id=True, value_subject="", **given)
    ids = [1, 2, 3, 4, None, None, None, None]
    assert [one and one["id"] for one in table["value"].to_pylist()] == ids
    assert table["value_schema_id"].to_pylist() == [None, 7, 7] + [None] * 5
    errors = [one and one.partition("decoded: ")[2] for one in table["value_error"].to_pylist()]
    assert errors == [
        None, None, None, None,
        "the value is not in Confluent's framing: it looks like JSON",
        ".id: a digit would be lost (byte 7)",
        ".id: a digit would be lost (byte 24)",
        f"the header {HEADER} names no schema: it has neither a 0 and an id of 4 bytes, nor a 1 and a GUID of 16",
    ]  # fmt: skip

    asked = read(cluster, topic, fake, include_schema_id=True, **given)
    assert asked["value"] == table["value"]
    assert asked["value_schema_id"].to_pylist() == [7, 7, 7] + [None] * 2 + [7] + [None] * 2
    count = len(fake.asked)
    assert read(cluster, topic, fake, **given)["value"] == table["value"]
    assert len(fake.asked) == count  # not even for a GUID that nobody knows


def test_many_records_are_decoded_as_each_of_them_alone(
    cluster: Cluster, fake: FakeRegistry
) -> None:
    rng, count = np.random.default_rng(7), draws.at_least(60)
    heads: list[Any] = [None, OF_7, OF_FIRST, b"\x01" + SECOND_GUID.bytes, b"\x01", b""]
    second = avro.encode(parsed(SECOND), {"id": 1, "name": "x", "note": (0, None)})
    bodies = [
        None,
        BODY,
        GOOD,
        OF_FIRST + BODY,
        second,
        b"\x01" + SECOND_GUID.bytes + second,
        b"",
        b"\x01",
    ]
    records = [
        Sent(bodies[rng.integers(len(bodies))], [(HEADER, heads[rng.integers(len(heads))])])
        if rng.integers(3)
        else Sent(bodies[rng.integers(len(bodies))])
        for _ in range(count)
    ]
    topic = sent(cluster, *records)
    columns = ["value", "value_schema_id", "value_error"]
    given = {"mode": "PERMISSIVE", "include_schema_id": True, "columns": columns}

    whole = read(cluster, topic, fake, **given)
    alone = [read(cluster, topic, fake, start=n, end=n + 1, **given) for n in range(count)]
    assert whole.combine_chunks() == pa.concat_tables(alone).combine_chunks()
    found = whole["value"].to_pylist()
    assert 5 < found.count(None) < count - 5
    assert {str(one) for one in found} == {"None", str(COLUMN)}


def test_headers_are_of_records_that_are_read_alone(fake: FakeRegistry) -> None:
    given = {"registry": fake.url, "value_subject": SUBJECT}
    with pytest.raises(ConfigError, match=r"framing is 'header', which goes with records"):
        spark_kbatch.decode_values(pa.array([BODY]), value_framing="header", **given)
    refused = pytest.raises(ConfigError, match=r"framing' is 'header'.*; accepted: confluent, none")
    with refused:
        spark_kbatch.encode_values(
            pa.array([1]), value_framing="header", value_schema="latest", **given
        )
    with refused:
        decoded_column(fake.url, {"framing": "header", "subject": SUBJECT}, include_schema_id=False)
    with refused:
        encoded_column(fake.url, {"framing": "header", "subject": SUBJECT}, auto_register=False)
    with pytest.raises(ConfigError, match="accepted: confluent, none"):
        parse_write_options(
            {"path": "c", "topic": "t", "value.format": "avro", "value.framing": "header"}
        )
