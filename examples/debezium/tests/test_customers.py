import base64
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from customers import damaged, events, table

DATA = Path(__file__).parent / "data"
CHANGES = [json.loads(line) for line in (DATA / "changes.jsonl").read_text().splitlines()]
AVRO = {
    "key_format": "avro",
    "key_schema": {
        "type": "record",
        "name": "Key",
        "namespace": "shop.public.customers",
        "fields": [{"name": "id", "type": "int"}],
    },
    "value_format": "avro",
    "value_schema": json.loads((DATA / "envelope.avsc").read_text()),
}
CUT = {"json": b'{"op": "u", "after": null, "sou', "avro": b"\0\0\0\0\2\0"}


@pytest.fixture(params=["json", "json-with-schema", "avro"])
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def topic(form: str, kbatch_topic) -> str:
    """The changes, as Connect's converters write them."""
    if form == "avro":
        rows = [(one["key"], _with_decimals(one["value"])) for one in CHANGES]
        return kbatch_topic("customers", rows, **AVRO)
    rows = [(_as_json(one["key"], form), _as_json(one["value"], form)) for one in CHANGES]
    return kbatch_topic("customers", rows)


def test_the_table_has_the_last_state_of_each_row(
    spark, form, topic, kbatch_path, kbatch_registry
) -> None:
    found = events(spark, form, kbatch_path, topic, kbatch_registry)

    texts = ["CAST(seen_at AS STRING)", "CAST(since AS STRING)"]
    rows = table(found, form).selectExpr("id", "first_name", "balance", *texts).orderBy("id")
    assert [tuple(row) for row in rows.collect()] == [
        (
            1,
            "Anne Marie",
            Decimal("-1.50"),
            "2019-05-28 08:58:44.863769",
            "2019-05-28 08:58:24.863123",
        ),
        (3, "Cleo", None, "2019-05-28 08:59:04.863852", None),
    ]
    assert damaged(found).collect() == []


def test_a_damaged_event_deletes_nothing_and_is_told(
    spark, form, topic, kbatch_path, kbatch_cluster, kbatch_registry
) -> None:
    key = kbatch_cluster.read(topic, columns=["key"]).read_all()["key"][0].as_py()
    with kbatch_cluster.producer() as producer:
        producer.send(topic, key=key, value=CUT["avro" if form == "avro" else "json"])
    found = events(spark, form, kbatch_path, topic, kbatch_registry)

    assert [row.id for row in table(found, form).orderBy("id").collect()] == [1, 3]
    (bad,) = damaged(found).collect()
    assert bad.id == 1
    assert f"the value of {topic}-{bad.partition} at offset {bad.offset} " in bad.error


def _as_json(event: Any, form: str) -> str | None:
    if event is None:
        return None
    has_schema = form == "json-with-schema"
    return json.dumps({"schema": {"type": "struct"}, "payload": event} if has_schema else event)


def _with_decimals(value: Any) -> Any:
    """Return an event as Avro has it: a number with its point in place of its digits in base64."""
    if not isinstance(value, dict):
        return value
    found = {name: _with_decimals(one) for name, one in value.items()}
    if isinstance(found.get("balance"), str):
        digits = int.from_bytes(base64.b64decode(found["balance"]), signed=True)
        found["balance"] = Decimal(digits).scaleb(-2)
    return found
