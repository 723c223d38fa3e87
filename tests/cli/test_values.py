"""`kbatch consume --value-format` and `kbatch schemas`: values as JSON, and where their schemas are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import spark_kbatch
from spark_kbatch.cli.main import cli
from tests.support import avro
from tests.support.avro import a_record, framed, parsed

FIRST = a_record(("id", "long"), ("name", "string"), name="Order")
SECOND = a_record(
    ("id", "long"),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("tags", {"type": "array", "items": "string"}),
    ("counts", {"type": "map", "values": "double"}),
    ("data", "bytes"),
    ("note", ["null", "string"]),
    name="Order",
)
ROWS = [
    {"id": 1, "name": "é\x1b"},
    {
        "id": 2, "at": 1_700_000_000_123, "day": 1, "price": b"\x05\x00", "tags": ["a", "b"],
        "counts": {"k": 0.5, "n": float("nan")}, "data": b"\xff", "note": (0, None),
    },
]  # fmt: skip
SHOWN = [
    {"id": 1, "name": "é\x1b"},
    {
        "id": 2, "at": "2023-11-14 22:13:20.123000Z", "day": "1970-01-02", "price": "12.80", "tags": ["a", "b"],
        "counts": {"k": 0.5, "n": "NaN"}, "data": {"base64": "/w=="}, "note": None,
    },
]  # fmt: skip


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    folder = tmp_path / "registry"
    (folder / "ids").mkdir(parents=True)
    for schema_id, schema in ((7, FIRST), (9, SECOND), (3, "string")):
        (folder / f"ids/{schema_id}.json").write_text(json.dumps({"schema": json.dumps(schema)}))
    subjects = {"orders-value": {"1": 7, "2": 9}, "orders-key": {"1": 3}}
    (folder / "subjects.json").write_text(json.dumps(subjects))
    return folder


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    values = [
        framed(7, avro.encode(parsed(FIRST), ROWS[0])),
        None,
        framed(9, avro.encode(parsed(SECOND), ROWS[1])),
    ]
    with spark_kbatch.open(tmp_path / "c", create=True) as cluster:
        cluster.create_topic("orders")
        with cluster.producer(flush=False) as producer:
            for number, value in enumerate(values):
                key = framed(3, avro.encode(parsed("string"), f"k{number}"))
                producer.send("orders", value, key=key, timestamp=1000)
    return tmp_path / "c"


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def test_values_are_json_as_their_own_schemas_have_them(cluster: Path, registry: Path) -> None:
    words = ["consume", cluster, "orders", "--value-format", "avro", "--registry", registry]

    lines = [json.loads(line) for line in run(*words, "--json").stdout.splitlines()]
    assert [one["value"] for one in lines] == [SHOWN[0], None, SHOWN[1]]
    assert list(lines[0]) == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
    ]
    raw = run(*words, "--raw").stdout.splitlines()
    assert [raw[1], *map(json.loads, raw[::2])] == ["", *SHOWN]
    fields = [line.split("\t") for line in run(*words, "--key-format", "avro").stdout.splitlines()]
    assert [one[3] for one in fields] == ['"k0"', '"k1"', '"k2"']
    assert fields[1][4] == r"\N"
    assert fields[0][4] == r'{"id": 1, "name": "é\u001b"}'


def test_values_are_read_as_one_schema_if_it_is_chosen(cluster: Path, registry: Path) -> None:
    words = [
        "consume",
        cluster,
        "orders",
        "--value-format",
        "avro",
        "--registry",
        registry,
        "--raw",
    ]

    schema = json.dumps(a_record(("id", "double"), name="Order"))
    assert run(*words, "--value-schema", schema).stdout.splitlines() == [
        '{"id": 1.0}', "", '{"id": 2.0}',
    ]  # fmt: skip
    assert run(*words, "--value-schema", "version:1", "--end", "1").stdout.splitlines() == [
        r'{"id": 1, "name": "é\u001b"}'
    ]


def test_a_bad_value_names_its_record_and_how_to_go_on(cluster: Path, registry: Path) -> None:
    with spark_kbatch.open(cluster) as opened, opened.producer() as producer:
        producer.send("orders", b'{"id": 3}')
    done = run("consume", cluster, "orders", "--value-format", "avro", "--registry", registry)

    assert done.exit_code == 1
    assert str(done.exception) == (
        "the value of orders-0 at offset 3 cannot be decoded: the value is not in Confluent's framing: it looks "
        "like JSON; go on after it with --start 4, with --permissive, or leave out --value-format"
    )


def test_the_records_before_a_bad_value_are_shown_so_that_no_one_who_goes_on_misses_one(
    cluster: Path, registry: Path
) -> None:
    with spark_kbatch.open(cluster) as opened, opened.producer() as producer:
        producer.send("orders", b'{"id": 3}')
        producer.send("orders", framed(7, avro.encode(parsed(FIRST), ROWS[0])))
    words = ["consume", cluster, "orders", "--value-format", "avro", "--registry", registry]

    stopped = run(*words, "--raw")
    assert stopped.exit_code == 1
    shown = stopped.stdout.splitlines()
    assert [shown[1], json.loads(shown[0]), json.loads(shown[2])] == ["", *SHOWN]
    after = run(*words, "--raw", "--start", "4")
    assert [json.loads(line) for line in after.stdout.splitlines()] == [SHOWN[0]]
    enough = run(*words, "--raw", "--max-records", "3")
    assert (enough.exit_code, enough.stdout) == (0, stopped.stdout)


def test_permissive_shows_an_error_in_the_place_of_its_value(cluster: Path, registry: Path) -> None:
    with spark_kbatch.open(cluster) as opened, opened.producer() as producer:
        producer.send("orders", b'{"id": 3}')
        producer.send("orders", framed(7, avro.encode(parsed(FIRST), ROWS[0])))
    words = ["consume", cluster, "orders", "--value-format", "avro", "--registry", registry]
    error = (
        "the value of orders-0 at offset 3 cannot be decoded: the value is not in Confluent's framing: it looks "
        "like JSON"
    )

    done = run(*words, "--permissive", "--json")
    assert done.exit_code == 0
    values = [json.loads(line)["value"] for line in done.stdout.splitlines()]
    assert values == [SHOWN[0], None, SHOWN[1], {"error": error}, SHOWN[0]]
    fields = run(*words, "--permissive").stdout.splitlines()[3].split("\t")
    assert json.loads(fields[4]) == {"error": error}
    chosen = run(*words, "--permissive", "--raw", "--value-schema", "version:1").stdout.splitlines()
    assert json.loads(chosen[3]) == {"error": error}
    alone = run("consume", cluster, "orders", "--permissive")
    assert "--permissive goes with --value-format or --key-format" in alone.stderr


# Of JSON.

DOCUMENTS = [
    b'{"id": 1, "price": 1.10, "name": "\xc3\xa9\xe2\x80\xae"}',
    None,
    b' {"id": 2,\r\n\t"big": 12345678901234567890123} ',
    b"null",
    b'"a\\nb"',
]
AS_WRITTEN = [
    r'{"id": 1, "price": 1.10, "name": "é\u202e"}',
    None,
    '{"id": 2,   "big": 12345678901234567890123}',
    "null",
    r'"a\nb"',
]


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    with spark_kbatch.open(tmp_path / "c", create=True) as cluster:
        cluster.create_topic("docs")
        cluster.create_topic("framed")
        with cluster.producer(flush=False) as producer:
            for one in DOCUMENTS:
                producer.send("docs", one)
                producer.send("framed", None if one is None else framed(7, one))
    return tmp_path / "c"


def test_json_is_shown_as_it_is_written_on_one_line(documents: Path, registry: Path) -> None:
    words = ["consume", documents, "docs", "--value-format", "json"]

    assert run(*words, "--raw").stdout.splitlines() == [one or "" for one in AS_WRITTEN]
    fields = [line.split("\t")[4] for line in run(*words).stdout.splitlines()]
    assert fields == [r"\N" if one is None else one for one in AS_WRITTEN]
    lines = run(*words, "--json").stdout.splitlines()
    assert lines[2].find(f'"value": {AS_WRITTEN[2]}') > 0  # no digit is lost
    assert json.loads(lines[1])["value"] is None
    words[2:3] = ["framed", "--registry", registry]
    assert run(*words, "--raw").stdout.splitlines() == [one or "" for one in AS_WRITTEN]


def test_json_is_read_as_a_ddl_and_where_sees_its_fields(documents: Path) -> None:
    words = ["consume", documents, "docs", "--value-format", "json", "--raw", "--end", "4"]

    shown = run(*words, "--value-schema", "id int, price decimal(5,2)").stdout.splitlines()
    assert shown == ['{"id": 1, "price": "1.10"}', "", '{"id": 2, "price": null}', ""]
    found = run(*words, "--value-schema", "id int", "--where", "value.id >= 2").stdout
    assert found == '{"id": 2}\n'
    lenient = ["--value-schema", "price decimal(5,1)", "--json-lenient", "digits"]
    assert run(*words, *lenient).stdout.splitlines()[0] == '{"price": "1.1"}'
    assert run(*words, "--where", "value LIKE '%price%'").stdout.splitlines() == AS_WRITTEN[:1]


def test_what_is_no_json_names_its_record_and_how_to_go_on(documents: Path) -> None:
    with spark_kbatch.open(documents) as opened, opened.producer() as producer:
        producer.send("docs", b'{"id": 3}}')
    words = ["consume", documents, "docs", "--value-format", "json", "--raw", "--start", "4"]

    done = run(*words)
    assert (done.exit_code, done.stdout.splitlines()) == (1, AS_WRITTEN[4:])
    error = "the value of docs-0 at offset 5 cannot be decoded: bytes are left over after the document (byte 9)"
    remedy = "go on after it with --start 6, with --permissive, or leave out --value-format"
    assert str(done.exception) == f"{error}; {remedy}"
    (_, bad) = run(*words, "--permissive").stdout.splitlines()
    assert json.loads(bad) == {"error": error}
    wrong = run(*words, "--value-schema", "id bignt")
    assert ".id: a type is missing at character 4" in str(wrong.exception)


def test_the_schemas_of_a_topic_are_shown(registry: Path) -> None:
    done = run("schemas", "orders", "--registry", registry)
    assert done.stdout.splitlines() == [
        "subject\tversion\tid\ttype\tschema",
        'orders-key\t1\t3\tAVRO\t"string"',
        "orders-value\t1\t7\tAVRO\tOrder: id, name",
        "orders-value\t2\t9\tAVRO\tOrder: id, at, day, price, tags, counts, data, note",
    ]
    done = run("schemas", "orders", "--subject", "orders-value", "--registry", registry, "--json")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["version"], first["id"], first["deleted"]) == (1, 7, False)
    assert json.loads(second["schema"]) == SECOND


def test_a_file_may_name_the_registry_and_who_asks(registry: Path, tmp_path: Path) -> None:
    (tmp_path / "registry.properties").write_text(f"schema.registry.url={registry}\n")
    words = ["schemas", "orders", "--registry-config", tmp_path / "registry.properties"]
    assert run(*words).exit_code == 0
    (tmp_path / "registry.properties").write_text(f"url={registry}\nbearer.auth.token=t t\n")
    done = run(*words)
    assert "has characters that no token has" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["consume", "{cluster}", "orders", "--registry", "{registry}"],
            "goes with --value-format",
        ),
        (["consume", "{cluster}", "orders", "--value-format", "avro"], "no schema is known"),
        (["schemas", "orders"], "--registry is missing"),
        (["schemas", "others", "--registry", "{registry}"], "has no such subject"),
    ],
)
def test_what_is_missing_is_said(
    cluster: Path, registry: Path, words: list[str], said: str
) -> None:
    done = run(*(word.format(cluster=cluster, registry=registry) for word in words))

    assert done.exit_code != 0
    assert said in f"{done.output}{done.exception}"


def test_values_whose_schema_a_header_names_are_shown_with_that_framing(
    tmp_path: Path, registry: Path
) -> None:
    guid = "00000000-0000-0001-0000-000000000005"
    schema = {"schema": json.dumps(FIRST), "guid": guid}
    (registry / "ids/7.json").write_text(json.dumps(schema))
    body = avro.encode(parsed(FIRST), ROWS[0])
    headers = {"__value_schema_id": b"\x01" + bytes.fromhex(guid.replace("-", ""))}
    with spark_kbatch.open(tmp_path / "d", create=True) as cluster:
        cluster.create_topic("orders")
        with cluster.producer(flush=False) as producer:
            producer.send("orders", body, headers=headers)
            producer.send("orders", b'"a"', headers=headers)
    words = ["consume", tmp_path / "d", "orders", "--registry", registry, "--raw"]
    of_avro = [*words, "--value-format", "avro", "--end", "1"]

    done = run(*of_avro, "--value-framing", "header")
    assert json.loads(done.stdout) == SHOWN[0]
    assert json.loads(
        run(
            *of_avro,
            "--value-framing",
            "header",
            "--value-schema",
            "id:7",
            "--where",
            "value.id = 1",
        ).stdout
    )
    assert "read it with the framing header" in str(run(*of_avro).exception)
    of_json = [*words, "--value-format", "json", "--start", "1", "--value-framing", "header"]
    assert run(*of_json).stdout == '"a"\n'
    with_headers = run(
        *of_avro[:5], "--value-format", "avro", "--value-framing", "header", "--end", "1", "--json"
    )
    assert json.loads(with_headers.stdout)["headers"][0][0] == "__value_schema_id"
