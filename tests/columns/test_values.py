"""Values as columns in plain Python: what each kind of record becomes, and what a registry is asked for."""

from __future__ import annotations

import functools
import itertools
import json
import pickle
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch import Cluster, ConfigError, RecordDeserializationError
from spark_kbatch.columns.reading import NewSchemas, pinned
from spark_kbatch.columns.schemas import subject_versions
from spark_kbatch.columns.writing import WrittenColumn, WrittenColumns, written_columns
from spark_kbatch.errors import (
    InvalidValueError,
    SchemaError,
    SchemaNotFoundError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
)
from spark_kbatch.options.values import ColumnOptions, parse_value_keywords
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.registry import known
from spark_kbatch.registry.endpoint import Endpoint
from spark_kbatch.registry.schemas import RegisteredSchema, Schema
from tests.registry.conftest import Pauses
from tests.support import avro
from tests.support.avro import a_record, framed, parsed
from tests.support.fake_registry import FakeRegistry

SUBJECT = "orders-value"
CUSTOMER = a_record(("id", "int"), ("city", ["null", "string"]), name="Customer")
FIRST = a_record(("id", "long"), ("name", "string"), ("customer", CUSTOMER), name="Order")
SECOND = a_record(
    ("id", "long"),
    ("name", "string"),
    ("customer", CUSTOMER),
    {"name": "note", "type": ["null", "string"], "default": None},
    name="Order",
)
ROW = {"id": 1, "name": "x", "customer": {"id": 5, "city": (1, "Rome")}}
BODY = avro.encode(parsed(FIRST), ROW)
COLUMN = {"id": 1, "name": "x", "customer": {"id": 5, "city": "Rome"}, "note": None}
UNKNOWN, OTHER, UNLIKE, OF_JSON, ENCRYPTED, NO_SCHEMA = 50, 51, 52, 53, 54, 55
_topics = itertools.count()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    """A registry with two versions of the subject, under the ids 7 and 9, and schemas of other kinds."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # of the machine's cache
    pauses = Pauses()
    quick = functools.partial(Endpoint, monotonic_ms=pauses.monotonic_ms, sleep=pauses.sleep)
    monkeypatch.setattr(known, "Endpoint", quick)
    known.registry_of.cache_clear()
    with FakeRegistry() as registry:
        registry.add_at(7, SUBJECT, json.dumps(FIRST))
        registry.add_at(9, SUBJECT, json.dumps(SECOND))
        registry.add_at(OTHER, "others", json.dumps(a_record(("id", "long"), name="Other")))
        unlike = a_record(
            ("id", "string"), ("name", "string"), ("customer", CUSTOMER), name="Order"
        )
        registry.add_at(UNLIKE, "others", json.dumps(unlike))
        registry.add_at(OF_JSON, "others", "{}", schemaType="JSON")
        rules = {"domainRules": [{"type": "ENCRYPT"}]}
        registry.add_at(ENCRYPTED, "others", json.dumps(FIRST), ruleSet=rules)
        registry.add_at(NO_SCHEMA, "others", '{"type": "recrod"}')
        yield registry
    known.registry_of.cache_clear()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with spark_kbatch.open("memory://values", create=True) as cluster:
        yield cluster


class Sent(NamedTuple):
    """A record to send; its key is its number."""

    value: bytes | None
    headers: dict[str, bytes] | None = None


def sent(cluster: Cluster, *records: Sent | bytes | None) -> str:
    """Send records to a new topic; return its name."""
    topic = f"orders-{next(_topics)}"
    cluster.create_topic(topic)
    with cluster.producer() as producer:
        for number, record in enumerate(records):
            one = record if isinstance(record, Sent) else Sent(record)
            producer.send(topic, one.value, key=str(number), headers=one.headers)
    return topic


def read(cluster: Cluster, topic: str, fake: FakeRegistry | Path, **options: Any) -> pa.Table:
    registry = fake.url if isinstance(fake, FakeRegistry) else fake
    given = {"value_format": "avro", "value_subject": SUBJECT, **options}
    return cluster.read(topic, registry=registry, **given).read_all()


GOOD = framed(7, BODY)

# What a record's value is, and what is said of it: the reason, the field, the schema's id.
BAD = [
    pytest.param(framed(7, BODY[:-1]), "ends in the middle of the field", "customer.city", 7, id="body short"),
    pytest.param(framed(7, BODY[:4] + b"\x04"), "a union has no branch of this number", "customer.city", 7, id="bad union index"),
    pytest.param(framed(7, BODY[:-1] + b"\xff"), "a string is not UTF-8", "customer.city", 7, id="bad UTF-8"),
    pytest.param(framed(7, BODY + b"\x00"), "bytes are left over after the value", "", 7, id="bytes left over"),
    pytest.param(b'{"id": 1}', "not in Confluent's framing: it looks like JSON", "", -1, id="JSON"),
    pytest.param(b"\xc3\x01" + bytes(8) + BODY, "it looks like Avro's single-object encoding", "", -1, id="single-object"),
    pytest.param(b"\x03\x00" + bytes(16) + BODY, "it looks like the framing of AWS Glue", "", -1, id="Glue"),
    pytest.param(b"\x01" + bytes(range(16)) + BODY, "a GUID of Confluent in place of an id, which a framing of header reads", "", -1, id="GUID"),
    pytest.param(b"\x00\x00\x07", "it has only 3 of the 5 bytes", "", -1, id="under five bytes"),
    pytest.param(b"", "not in Confluent's framing: it is empty", "", -1, id="empty"),
    pytest.param(framed(UNKNOWN, BODY), f"schema id {UNKNOWN} of subject 'orders-value'", "", UNKNOWN, id="unknown id"),
    pytest.param(framed(OTHER, b"\x02"), "record Other", "", OTHER, id="another record's schema"),
    pytest.param(framed(UNLIKE, b"\x02a" + BODY[1:]), "string", "id", UNLIKE, id="cannot be resolved"),
    pytest.param(framed(OF_JSON, b"{}"), "a schema of type JSON", "", OF_JSON, id="a schema of another type"),
    pytest.param(framed(ENCRYPTED, BODY), "encrypt", "", ENCRYPTED, id="encrypted"),
    pytest.param(framed(NO_SCHEMA, BODY), "its schema is none that can be used", "", NO_SCHEMA, id="no schema"),
    pytest.param(b"\x00" + (7).to_bytes(8, "big") + BODY, "Apicurio's framing, with ids of 8 bytes", "", 0, id="Apicurio"),
    pytest.param(b"\x00\xff\xff\xff\xff" + BODY, "its schema id is negative", "", -1, id="a negative id"),
    pytest.param(Sent(BODY, {"__value_schema_id": b"\x01"}), "in the header __value_schema_id", "", -1, id="id in a header"),
]  # fmt: skip


@pytest.mark.parametrize(("record", "reason", "path", "schema_id"), BAD)
def test_a_value_that_cannot_be_decoded_is_an_error_or_null_beside_its_reason(
    cluster: Cluster, fake: FakeRegistry, record: Any, reason: str, path: str, schema_id: int
) -> None:
    topic = sent(cluster, GOOD, None, record, GOOD)

    table = read(cluster, topic, fake, mode="PERMISSIVE", include_bytes=True)
    *_, error, _ = table["value_error"].to_pylist()
    assert table["value"].to_pylist() == [COLUMN, None, None, COLUMN]
    assert table["value_error"].is_null().to_pylist() == [True, True, False, True]
    value = record.value if isinstance(record, Sent) else record
    assert table["value_bytes"].to_pylist() == [GOOD, None, value, GOOD]

    with pytest.raises(RecordDeserializationError) as told:
        read(cluster, topic, fake)
    found = pickle.loads(pickle.dumps(told.value))  # as it leaves a worker of Spark
    assert (found.topic, found.partition, found.offset, found.column) == (topic, 0, 2, "value")
    assert reason in found.reason
    assert (found.path, found.schema_id) == (path, schema_id)
    assert (
        str(found)
        == f'{error}; with mode="PERMISSIVE" such a value is null, and value_error says why'
    )
    for part in (f"the value of {topic}-0 at offset 2", reason, path):
        assert part in error


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
@pytest.mark.parametrize(
    ("answer", "error"),
    [("500", SchemaRegistryUnavailableError), ("429", SchemaRegistryUnavailableError), ("401", SchemaRegistryError)],
)  # fmt: skip
def test_an_outage_of_the_registry_turns_no_data_into_nulls(
    cluster: Cluster, fake: FakeRegistry, mode: str, answer: str, error: type[Exception]
) -> None:
    topic = sent(cluster, GOOD, framed(OTHER, b"\x02"))
    rows = cluster.read(
        topic, registry=fake.url, value_format="avro", value_subject=SUBJECT, mode=mode
    )
    fake.next_answers(answer, times=1000)

    with pytest.raises(error, match=fake.url):
        rows.read_all()
    with pytest.raises(error, match=fake.url):
        read(cluster, topic, fake)


def test_each_value_is_decoded_with_the_schema_that_wrote_it_in_the_order_of_records(
    cluster: Cluster, fake: FakeRegistry
) -> None:
    rows = [ROW | {"id": number, "note": (1, f"n{number}")} for number in range(40)]
    writers = [(7, parsed(FIRST)), (9, parsed(SECOND))]
    values = [
        framed(writers[n % 3 % 2][0], avro.encode(writers[n % 3 % 2][1], row))
        for n, row in enumerate(rows)
    ]
    topic = sent(cluster, *values)

    found = read(cluster, topic, fake, include_schema_id=True, columns=["value", "value_schema_id"])
    assert [one["id"] for one in found["value"].to_pylist()] == [*range(40)]
    assert found["value_schema_id"].to_pylist() == [(7, 9)[n % 3 % 2] for n in range(40)]
    notes = [one["note"] for one in found["value"].to_pylist()]
    assert notes == [f"n{n}" if n % 3 == 1 else None for n in range(40)]


def test_all_versions_are_asked_for_once_when_a_read_is_loaded(
    cluster: Cluster, fake: FakeRegistry
) -> None:
    """Deleted ones too: what they wrote is still there."""
    topic = sent(cluster, GOOD, framed(9, avro.encode(parsed(SECOND), ROW | {"note": (0, None)})))
    fake.delete(SUBJECT, 1)
    rows = cluster.read(topic, registry=fake.url, value_format="avro", value_subject=SUBJECT)
    asked = len(fake.asked)

    assert rows.read_all()["value"].to_pylist() == [COLUMN, COLUMN]
    assert len(fake.asked) == asked
    assert asked == 3  # the latest, the list, and the other one


def test_a_stream_looks_for_new_versions_at_most_once_a_minute(fake: FakeRegistry) -> None:
    pauses = Pauses()
    columns = pinned(
        parse_value_keywords(fake.url, {"value_format": "avro", "value_subject": SUBJECT}, [])
    )
    new = NewSchemas(columns, monotonic_ms=pauses.monotonic_ms)
    fake.add_at(12, SUBJECT, json.dumps(FIRST))
    assert new.found() == ()

    pauses.now_ms += 60_000
    assert [(name, one.id) for name, one in new.found()] == [("value", 12)]
    asked = len(fake.asked)
    assert len(new.found()) == 1
    fake.next_answers("500", times=1000)
    pauses.now_ms += 60_000
    assert len(new.found()) == 1  # and a warning
    assert len(fake.asked) > asked


def test_a_plan_carries_a_bounded_size_of_schemas(fake: FakeRegistry) -> None:
    """The newest ones, and always the one that values are read as."""
    long = {**FIRST, "doc": "x" * 400_000}
    for schema_id in (20, 21, 22, 23):
        fake.add_at(schema_id, SUBJECT, json.dumps(long))
    keywords = {"value_format": "avro", "value_subject": SUBJECT, "value_schema": "version:1"}
    (column,) = pinned(parse_value_keywords(fake.url, keywords, [])).columns

    assert {one.id for one in column.known} == {7, 22, 23}


# Which schema values are read as, and which part of it.


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        ("latest", ["id", "name", "customer", "note"]),
        ("id:7", ["id", "name", "customer"]),
        ("version:1", ["id", "name", "customer"]),
        (a_record(("name", "string"), name="Order"), ["name"]),
    ],
)
def test_values_are_read_as_the_schema_that_is_chosen(
    cluster: Cluster, fake: FakeRegistry, schema: Any, fields: list[str]
) -> None:
    topic = sent(cluster, GOOD)

    (value,) = read(cluster, topic, fake, value_schema=schema)["value"].to_pylist()
    assert list(value) == fields


def test_a_schema_may_lie_in_a_file_and_values_have_no_framing(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(FIRST))
    topic = sent(cluster, BODY, None, BODY + b"x")

    found = cluster.read(
        topic, value_format="avro", value_schema=f"file:{tmp_path}/order.avsc", mode="PERMISSIVE",
        include_schema_id=True,
    ).read_all()  # fmt: skip
    assert found["value"].to_pylist() == [
        {k: v for k, v in COLUMN.items() if k != "note"},
        None,
        None,
    ]
    assert found["value_schema_id"].to_pylist() == [None, None, None]
    assert "bytes are left over" in found["value_error"].to_pylist()[2]


def test_a_schema_may_use_types_of_other_files_which_may_begin_with_a_licence(
    cluster: Cluster, tmp_path: Path
) -> None:
    city = a_record(("name", "string"), name="City", namespace="geo")
    customer = a_record(("id", "long"), ("city", "geo.City"), name="Customer")
    order = a_record(("id", "long"), ("customer", "Customer"), name="Order")
    for name, schema in (("customer", customer), ("city", city), ("order", order)):
        text = "\ufeff/* Licensed to\n * everyone */\n" + json.dumps(schema)
        (tmp_path / f"{name}.avsc").write_text(text, encoding="utf-8")
    files = ",".join(f"file:{tmp_path}/{name}.avsc" for name in ("customer", "city", "order"))
    row = {"id": 1, "customer": {"id": 2, "city": {"name": "Ulm"}}}

    value = b"\2\4\6Ulm"
    found = cluster.read(sent(cluster, value), value_format="avro", value_schema=files).read_all()
    assert found["value"].to_pylist() == [row]
    written = spark_kbatch.encode_values(pa.array([row]), value_schema=files)
    assert written.to_pylist() == [value]
    alone = f"file:{tmp_path}/order.avsc"
    with pytest.raises(SchemaError, match="'Customer' is not defined"):
        spark_kbatch.encode_values(pa.array([row]), value_schema=alone)


@pytest.mark.parametrize("start", [b"\xc3\x01", b"Obj\x01"], ids=["single-object", "file"])
def test_values_that_have_another_framing_than_none_say_what_they_look_like(
    cluster: Cluster, tmp_path: Path, start: bytes
) -> None:
    topic = sent(cluster, BODY, start + bytes(8) + BODY)

    found = cluster.read(
        topic, value_format="avro", value_schema=json.dumps(FIRST), mode="PERMISSIVE"
    ).read_all()
    first, second = found["value_error"].to_pylist()
    assert first is None
    assert "; it looks like " in second


def test_the_rows_before_a_bad_value_are_read_before_its_error(
    cluster: Cluster, fake: FakeRegistry
) -> None:
    topic = sent(cluster, GOOD, None, GOOD, b"bad", GOOD)
    options = {"value_format": "avro", "value_subject": SUBJECT, "registry": fake.url}

    given: list[int] = []

    def take() -> None:
        for batch in cluster.read(topic, **options):
            given.extend(batch["offset"].to_pylist())

    with pytest.raises(RecordDeserializationError, match="at offset 3"):
        take()
    assert given == [0, 1, 2]
    rest = cluster.read(topic, start=4, **options).read_all()
    assert rest["offset"].to_pylist() == [4]


def test_rows_of_few_bytes_are_read_in_batches_of_bounded_memory(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A compacted topic after deletions, and a wide schema."""
    wide = a_record(
        *({"name": f"f{n}", "type": ["null", "long"], "default": None} for n in range(2000)), name="Wide"
    )  # fmt: skip
    topic = f"wide-{tmp_path.name}"
    cluster.create_topic(topic)
    with cluster.producer() as producer:
        producer.send_arrow(topic, {"value": pa.nulls(20_000, pa.binary())})

    batches = [*cluster.read(topic, value_format="avro", value_schema=json.dumps(wide))]
    assert sum(one.num_rows for one in batches) == 20_000
    assert max(one.nbytes for one in batches) < 80 << 20
    assert [one for batch in batches for one in batch["offset"].to_pylist()] == [*range(20_000)]


def test_fields_are_chosen_with_their_own_names_and_order(
    cluster: Cluster, fake: FakeRegistry
) -> None:
    topic = sent(cluster, GOOD)

    found = read(cluster, topic, fake, value_fields=["customer.City", "ID"], columns=["value"])
    assert found.to_pylist() == [{"value": {"customer": {"city": "Rome"}, "id": 1}}]
    with pytest.raises(SchemaError, match="record Order has no field 'nam'; did you mean 'name'"):
        read(cluster, topic, fake, value_fields="nam")


def test_keys_have_a_format_of_their_own_and_text_is_for_what_has_none(
    cluster: Cluster, fake: FakeRegistry
) -> None:
    topic = sent(cluster, GOOD)
    fake.register("keys", '"string"')
    wanted = ["key", "value"]

    assert read(cluster, topic, fake, key_format="string", columns=wanted).to_pylist() == [
        {"key": "0", "value": COLUMN}
    ]
    assert read(cluster, topic, fake, text=True, columns=wanted)["key"].to_pylist() == ["0"]
    found = read(
        cluster,
        topic,
        fake,
        key_format="avro",
        key_subject="keys",
        mode="permissive",
        columns=["key", "key_error"],
    )
    assert (
        "at offset 0 cannot be decoded: the value is not in Confluent's framing"
        in found["key_error"][0].as_py()
    )


def test_the_columns_beside_key_and_value_are_there_by_default_if_they_are_asked_for(
    cluster: Cluster, fake: FakeRegistry
) -> None:
    topic = sent(cluster, GOOD)
    found = read(
        cluster, topic, fake, key_format="string", mode="PERMISSIVE", include_schema_id=True, include_bytes=True,
    )  # fmt: skip

    assert found.schema.names[8:] == [
        "key_bytes", "key_error", "value_schema_id", "value_bytes", "value_error",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="the nearest is 'value'"):
        read(cluster, topic, fake, columns=["value_error"])


def test_what_the_registry_lacks_is_an_error_at_once(cluster: Cluster, fake: FakeRegistry) -> None:
    topic = sent(cluster, GOOD)

    with pytest.raises(SchemaNotFoundError, match=f"latest version of subject '{topic}-value'"):
        cluster.read(topic, registry=fake.url, value_format="avro")
    with pytest.raises(ConfigError, match=r"schema id 53: it is a schema of type JSON"):
        read(cluster, topic, fake, value_schema=f"id:{OF_JSON}")
    with pytest.raises(SchemaError, match=rf"schema id {NO_SCHEMA}"):
        read(cluster, topic, fake, value_schema=f"id:{NO_SCHEMA}")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read(cluster, topic, fake, value_schema="file:/nowhere.avsc")


def test_no_error_repeats_who_asks(cluster: Cluster, fake: FakeRegistry) -> None:
    topic, secret = sent(cluster, GOOD), "secret-of-the-test"
    with FakeRegistry(user_info=f"user:{secret}") as locked:
        locked.add_at(9, SUBJECT, json.dumps(SECOND))
        locked.add_at(7, "others", json.dumps(FIRST))
        given = {"value_format": "avro", "value_subject": SUBJECT}
        who = {"url": locked.url, "basic.auth.user.info": f"user:{secret}"}
        assert cluster.read(topic, registry=who, **given).read_all()["value"].to_pylist() == [
            COLUMN
        ]

        for url in (locked.url, locked.url.replace("//", f"//user:not-{secret}@")):
            with pytest.raises(SchemaRegistryError, match="401") as told:
                cluster.read(topic, registry=url, **given)
            assert secret not in f"{told.value!r} {told.value} {vars(told.value)}"


# Arrays without a topic.


def test_an_array_of_any_origin_is_decoded(fake: FakeRegistry) -> None:
    array = pa.chunked_array([[GOOD, None], [b"{}", GOOD]], pa.large_binary())
    given: dict[str, Any] = {"registry": fake.url, "value_subject": SUBJECT}

    found = spark_kbatch.decode_values(array, mode="PERMISSIVE", **given)
    assert found.values.to_pylist() == [COLUMN, None, None, COLUMN]
    assert found.schema_ids.tolist() == [7, -1, -1, 7]
    assert [(one.row, "looks like JSON" in str(one)) for one in found.errors] == [(2, True)]
    with pytest.raises(
        InvalidValueError, match="row 2: the value is not in Confluent's framing"
    ) as told:
        spark_kbatch.decode_values(array, **given)
    assert told.value.row == 2
    with pytest.raises(
        ConfigError, match="array is 'int64'; accepted: an Arrow array of binary or string"
    ):
        spark_kbatch.decode_values(pa.array([1]), **given)


def test_a_table_is_encoded_and_comes_back(cluster: Cluster, fake: FakeRegistry) -> None:
    rows = [
        {"id": n, "name": f"n{n}", "customer": {"id": n, "city": "Rome"}, "note": None}
        for n in range(5)
    ]
    table = pa.Table.from_pylist(rows)
    values = spark_kbatch.encode_values(table, registry=fake.url, value_subject=SUBJECT)
    topic = f"orders-{next(_topics)}"
    cluster.create_topic(topic)
    with cluster.producer() as producer:
        producer.send_arrow(topic, {"value": values})

    assert read(cluster, topic, fake, include_schema_id=True)["value"].to_pylist() == rows
    assert values[0].as_py()[:5] == framed(9, b"")
    with pytest.raises(SchemaError, match="note"):
        spark_kbatch.encode_values(
            table, registry=fake.url, value_subject=SUBJECT, value_schema="version:1"
        )
    with pytest.raises(InvalidValueError, match="row 1: name: the value is null"):
        spark_kbatch.encode_values(
            pa.table({"name": ["a", None]}),
            value_schema=a_record(("name", "string")), value_framing="none",
        )  # fmt: skip


def test_a_schema_that_the_columns_do_not_fit_is_not_registered(fake: FakeRegistry) -> None:
    given: dict[str, Any] = {"registry": fake.url, "value_subject": "unfit"}
    table = pa.table({"name": ["a"]})
    for schema in (a_record(("other", "string"), name="Unfit"), {"type": "recrod"}):
        with pytest.raises(ConfigError, match=r"no field for this column|recrod"):
            spark_kbatch.encode_values(table, auto_register=True, value_schema=schema, **given)

    with pytest.raises(SchemaNotFoundError, match="subject 'unfit'"):
        spark_kbatch.encode_values(table, **given)


def test_a_schema_is_made_of_the_columns_of_an_array_if_that_is_asked_for(
    fake: FakeRegistry,
) -> None:
    given: dict[str, Any] = {"registry": fake.url, "value_subject": "days"}
    rows = [{"day": date(2024, 10, 25), "n": 1}, {"day": None, "n": 2}]
    table = pa.Table.from_pylist(rows)
    with pytest.raises(SchemaNotFoundError, match="subject 'days'"):
        spark_kbatch.encode_values(table, **given)

    values = spark_kbatch.encode_values(
        table, auto_register=True, value_record_name="com.shop.Day", **given
    )
    assert spark_kbatch.encode_values(table, **given) == values  # by the latest of the subject
    assert spark_kbatch.decode_values(values, **given).values.to_pylist() == rows
    ((schema, _),) = subject_versions(fake.url, "days")
    assert json.loads(schema.schema.text)["name"] == "com.shop.Day"

    by_record = {"value_subject_name_strategy": "RecordNameStrategy", "value_record_name": "Day"}
    spark_kbatch.encode_values(table, registry=fake.url, auto_register=True, **by_record)
    assert len(subject_versions(fake.url, "Day")) == 1


def test_no_schema_is_made_of_columns_where_none_could_be_known() -> None:
    table = pa.table({"n": [1]})
    for given, said in (
        ({}, "no schema is known: give the registry"),
        ({"value_schema": '"long"'}, "goes with a registry"),
        ({"registry": "registry"}, "option 'value.subject' is not given"),
    ):
        with pytest.raises(ConfigError, match=said):
            spark_kbatch.encode_values(table, auto_register=True, **given)
    with pytest.raises(ConfigError, match=r"no schema can be made of column 'value\.n': .*uint64"):
        spark_kbatch.encode_values(
            pa.table({"n": pa.array([1], pa.uint64())}),
            auto_register=True, registry="registry", value_subject="s",
        )  # fmt: skip
    with pytest.raises(TypeError, match="unexpected keyword argument 'mode'"):
        spark_kbatch.encode_values(table, value_schema='"long"', mode="PERMISSIVE")


@pytest.mark.parametrize("auto_register", [False, True])
def test_nothing_is_written_under_a_schema_whose_rules_encrypt(
    tmp_path: Path, auto_register: bool
) -> None:
    """However it was chosen: the registry finds the one with rules by its text."""
    schema = a_record(("name", "string"), name="Person")
    rules = {"domainRules": [{"name": "pii", "type": "ENCRYPT"}]}
    (tmp_path / "ids").mkdir()
    (tmp_path / "ids/7.json").write_text(json.dumps({"schema": schema, "ruleSet": rules}))
    (tmp_path / "subjects.json").write_text(json.dumps({"people": {"1": 7}}))

    with pytest.raises(ConfigError, match=r"schema id 7: a rule .* encrypt"):
        spark_kbatch.encode_values(
            pa.table({"name": ["a"]}),
            registry=tmp_path, value_subject="people", value_schema=schema,
            auto_register=auto_register,
        )  # fmt: skip


def test_a_column_that_does_not_fit_is_refused_when_its_schema_is_looked_up() -> None:
    given = {"value.format": "avro", "value.schema": json.dumps(a_record(("name", "string")))}
    options = parse_write_options({"path": "/data", "topic": "t", **given}).values

    columns = written_columns(options, {"value": pa.struct([("name", pa.string())])})
    assert columns.names == {"value"}
    with pytest.raises(ConfigError, match=r"^column 'value\.other' cannot be written: .* no field"):
        written_columns(options, {"value": pa.struct([("other", pa.string())])})


def test_the_error_of_a_row_counts_the_rows_of_all_batches() -> None:
    schema = RegisteredSchema(7, Schema(json.dumps(a_record(("name", "string")))))
    written = WrittenColumns((WrittenColumn(ColumnOptions("value", "avro"), schema),))
    batches = [pa.record_batch({"value": [{"name": name}]}) for name in ("a", "b", None)]

    with pytest.raises(InvalidValueError, match=r"row 2: value\.name: the value is null"):
        [*written.encoded(batches)]


def test_a_schema_is_registered_only_if_that_is_asked_for(fake: FakeRegistry) -> None:
    schema = a_record(("name", "string"), name="Person")
    given: dict[str, Any] = {
        "registry": fake.url, "value_subject": "people", "value_schema": schema,
    }  # fmt: skip
    table = pa.table({"name": ["a"]})
    with pytest.raises(SchemaNotFoundError, match="the version of subject 'people' with a schema"):
        spark_kbatch.encode_values(table, **given)

    (value,) = spark_kbatch.encode_values(table, auto_register=True, **given).to_pylist()
    assert spark_kbatch.encode_values(table, **given).to_pylist() == [value]
    found = spark_kbatch.decode_values(pa.array([value]), registry=fake.url, value_subject="people")
    assert found.values.to_pylist() == [{"name": "a"}]
    bare = spark_kbatch.encode_values(table, value_schema=schema)
    assert bare.to_pylist() == [b"\x02a"]
