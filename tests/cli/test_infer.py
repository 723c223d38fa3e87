"""`kbatch schemas infer`: a DDL for JSON, from a sample of a topic's records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import spark_kbatch
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import ConfigError
from spark_kbatch.values.types import ddl_of, parse_ddl

ORDERS = [
    {"id": 1, "placed": "2024-01-31T10:00:00Z", "price": 12, "note": None, "tags": []},
    {"id": 2, "placed": "2024-02-01T11:30:00Z", "price": 9.5, "note": None, "tags": ["new"]},
]


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    values = [b"{", *(json.dumps(one).encode() for one in ORDERS), None]
    with spark_kbatch.open(tmp_path / "c", create=True) as cluster:
        cluster.create_topic("orders")
        with cluster.producer(flush=False) as producer:
            for value in values:
                producer.send("orders", value, key=b'"k"', timestamp=1000)
    return tmp_path / "c"


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in words])


def test_a_ddl_is_printed_with_what_is_in_doubt(cluster: Path) -> None:
    done = run("schemas", "infer", cluster, "orders")

    assert done.stdout.splitlines() == [
        "id bigint, placed timestamp, price double, note string, tags array<string>",
        "-- 4 records, 1 null, 0 framed, 1 unreadable",
        "-- .id: 2 bigint; all numbers were whole",
        "-- .placed: 2 timestamp; all texts were times with a zone",
        "-- .price: 1 bigint, 1 double; read as double",
        "-- .note: 2 null; read as string",
    ]
    # The whole is a DDL, comments and all.
    assert f"struct<{done.stdout.splitlines()[0]}>" == ddl_of(parse_ddl(done.stdout))


def test_only_the_last_records_are_looked_at(cluster: Path) -> None:
    done = run("schemas", "infer", cluster, "orders", "--last", 2, "--json")

    found = json.loads(done.stdout)
    assert found["counts"] == {"records": 2, "null": 1, "framed": 0, "unreadable": 0}
    assert found["ddl"].startswith("id bigint, placed timestamp, price double")
    assert (found["topic"], found["column"], len(found["doubts"])) == ("orders", "value", 3)


def test_keys_may_be_looked_at(cluster: Path) -> None:
    done = run("schemas", "infer", cluster, "orders", "--key")

    assert done.stdout.splitlines() == ["string", "-- 4 records, 0 null, 0 framed, 0 unreadable"]


def test_a_topic_without_json_is_an_error(cluster: Path) -> None:
    done = run("schemas", "infer", cluster, "orders", "--last", 1)

    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == (
        "no value of topic 'orders' is JSON other than null; there were: "
        "1 records, 1 null, 0 framed, 0 unreadable"
    )
