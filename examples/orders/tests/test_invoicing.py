import json
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import JARS
from invoicing import invoice

ORDERS = Path(__file__).parent / "data" / "orders.jsonl"


class Place(NamedTuple):
    source: str
    servers: str


@pytest.fixture(params=["kbatch", "kafka"])
def place(request: pytest.FixtureRequest) -> Place:
    """A folder for `format("kbatch")`, a server for `format("kafka")`."""
    if request.param == "kbatch":
        return Place("kbatch", str(request.getfixturevalue("kbatch_cluster").path))
    if not JARS:
        pytest.skip("Spark's Kafka connector is not here: name its JARs in SPARK_KAFKA_JARS")
    return Place("kafka", request.getfixturevalue("kbatch_server").bootstrap_servers)


def test_each_order_is_invoiced_once(spark, place, kbatch_topic, kbatch_records, tmp_path) -> None:
    orders = kbatch_topic("orders", json_lines=ORDERS, key="customer")
    invoices = kbatch_topic("invoices")
    checkpoint = str(tmp_path / "checkpoint")

    invoice(spark, *place, checkpoint, orders=orders, invoices=invoices).awaitTermination()

    found = kbatch_records(invoices, 2, value=json.loads)
    assert [(one["key"], one["value"]) for one in found] == [
        ("ada", {"id": "o-1", "amount": 10.0}),
        ("bob", {"id": "o-2", "amount": 19.99}),
    ]

    # The next run goes on where this one ended.
    late = {"id": "o-4", "customer": "eve", "price": 1, "quantity": 3}
    kbatch_topic.send(orders, ["no JSON", {"value": late}])
    invoice(spark, *place, checkpoint, orders=orders, invoices=invoices).awaitTermination()

    assert [one["value"]["id"] for one in kbatch_records(invoices, 3, value=json.loads)] == [
        "o-1", "o-2", "o-4",
    ]  # fmt: skip
