"""What a topic is filled with: rows, JSON lines and CSV become the records they say."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch.errors import ConfigError
from spark_kbatch.testing.rows import from_one_of, partitions_count

A_TIME = datetime.datetime(2024, 10, 25, 8, tzinfo=datetime.UTC)
PRINTED = (  # by `kbatch consume --json`
    '{"partition": 1, "offset": 7, "timestamp": "2024-10-25T08:00:00.000Z", "key": "a",'
    ' "value": {"base64": "/w=="}, "headers": [["h", "x"], ["n", null]]}\n'
)


def sent(rows: Any = None, **files: Any) -> list[dict[str, Any]]:
    given = {"json_lines": None, "csv": None, "key": None} | files
    return list(from_one_of(rows, **given).to_pylist())


def written(folder: Path, text: str) -> Path:
    path = folder / "given"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param("v", {"value": b"v"}, id="text"),
        pytest.param(b"\xff", {"value": b"\xff"}, id="bytes"),
        pytest.param(None, {"value": None}, id="null"),
        pytest.param(("k", None), {"key": b"k", "value": None}, id="key-and-tombstone"),
        pytest.param({"key": 5, "value": {"n": 1}}, {"key": b"5", "value": b'{"n": 1}'}, id="json"),
        pytest.param(
            {"value": "v", "partition": 2, "timestamp": A_TIME.replace(tzinfo=None), "offset": 9},
            {"value": b"v", "partition": 2, "timestamp": A_TIME},
            id="placed-and-timed",
        ),
        pytest.param(
            {"value": "v", "timestamp": 1_729_843_200_000, "headers": {"h": "x"}},
            {"value": b"v", "timestamp": A_TIME, "headers": [{"key": "h", "value": b"x"}]},
            id="headers",
        ),
    ],
)
def test_a_row_becomes_a_record(row: Any, expected: dict[str, Any]) -> None:
    assert sent([row]) == [expected]


def test_tables_go_as_they_are() -> None:
    class SparkFrame:
        def toArrow(self) -> pa.Table:  # noqa: N802  Spark's name
            return table

    table = pa.table({"value": ["v"]})

    assert from_one_of(table, None, None, None) is table
    assert from_one_of(SparkFrame(), None, None, None) is table


class Stream:
    """Something of Arrow that is an iterator too."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __iter__(self) -> Iterator[None]:
        return self

    def __next__(self) -> None:
        raise StopIteration

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(schema)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda table: table, id="table"),
        pytest.param(lambda table: table.to_batches()[0], id="batch"),
        pytest.param(pa.Table.to_reader, id="reader"),
        pytest.param(pa.Table.to_pydict, id="dict"),
        pytest.param(Stream, id="stream"),
    ],
)
def test_every_kind_of_table_is_sent_to_as_many_partitions_as_it_names(made: Any) -> None:
    table = pa.table({"value": ["a", "b"], "partition": [0, 1]})

    found = from_one_of(made(table), None, None, None)

    assert found is not None
    assert found.to_pydict() == table.to_pydict()
    assert partitions_count(found) == 2


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="rows are a object, which pyarrow"):
        from_one_of(object(), None, None, None)


def test_printed_records_are_sent_as_they_were(tmp_path: Path) -> None:
    assert sent(json_lines=written(tmp_path, PRINTED)) == [
        {
            "key": b"a", "value": b"\xff", "partition": 1, "timestamp": A_TIME,
            "headers": [{"key": "h", "value": b"x"}, {"key": "n", "value": None}],
        }
    ]  # fmt: skip
    assert partitions_count(from_one_of(None, tmp_path / "given", None, None)) == 2


def test_other_json_lines_are_values_as_they_stand(tmp_path: Path) -> None:
    path = written(tmp_path, '{"id": "a",  "value": 1}\n\n{"id": 7, "value": 2}\n')

    assert sent(json_lines=path) == [
        {"value": b'{"id": "a",  "value": 1}'}, {"value": b'{"id": 7, "value": 2}'}
    ]  # fmt: skip
    assert [row["key"] for row in sent(json_lines=path, key="id")] == [b"a", b"7"]


def test_csv_with_a_records_columns_is_records(tmp_path: Path) -> None:
    path = written(
        tmp_path, 'key,value,timestamp,partition\na,"x,\ny",2024-10-25T08:00:00Z,1\nb,,,\n'
    )

    assert sent(csv=path) == [
        {"key": b"a", "value": b"x,\ny", "partition": 1, "timestamp": A_TIME},
        {"key": b"b", "value": None, "partition": None, "timestamp": None},
    ]


def test_other_csv_is_json_with_numbers_where_a_column_has_nothing_else(tmp_path: Path) -> None:
    path = written(tmp_path, "id,zip,amount\na,01234,1.5\nb,90210,\n")

    assert sent(csv=path, key="id") == [
        {"key": b"a", "value": b'{"id": "a", "zip": "01234", "amount": 1.5}'},
        {"key": b"b", "value": b'{"id": "b", "zip": "90210", "amount": null}'},
    ]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        pytest.param("hello", r"rows is 'hello'; accepted: a list of rows, such as \['hello'\]", id="text"),
        pytest.param(b"hello", r"accepted: a list of rows, such as \[b'hello'\]", id="bytes"),
        pytest.param(5, r"accepted: a list of rows, such as \[5\]", id="number"),
        pytest.param([{"valeu": 1}], "row 0 has a field 'valeu'.* did you mean 'value'", id="field"),
        pytest.param(["v", ("a", "b", "c")], "row 1 is a tuple of 3", id="tuple"),
        pytest.param([{"value": {1}}], "row 0 has a value that cannot be written as JSON", id="set"),
        pytest.param([{"value": "v", "partition": -1}], "partition of row 0 is -1", id="partition"),
        pytest.param([{"value": "v", "timestamp": "now"}], "row 0 has the timestamp 'now'", id="time"),
        pytest.param([{"value": "v", "headers": "h"}], "row 0 has headers 'h'", id="headers"),
    ],
)  # fmt: skip
def test_a_row_that_is_no_record_is_refused_by_its_number(rows: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sent(rows)


@pytest.mark.parametrize(
    ("kind", "text", "key", "said"),
    [
        pytest.param("json_lines", "1\n{\n", None, "line 2 is not JSON", id="no-json"),
        pytest.param("json_lines", '{"id": 1}\n', "di", "line 1 has no field 'di'", id="no-field"),
        pytest.param("csv", "a,b\n1,2\n3\n", None, "line 3 has not the 2 fields", id="short-line"),
        pytest.param("csv", 'a\n"x\n', None, "line 2: unexpected end", id="open-quote"),
    ],
)
def test_a_file_is_refused_by_its_line(
    tmp_path: Path, kind: str, text: str, key: str | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        sent(**{kind: written(tmp_path, text), "key": key})


def test_one_source_of_records_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rows and csv are given"):
        sent(["v"], csv=tmp_path / "x")
    with pytest.raises(ConfigError, match="key names a field"):
        sent(["v"], key="id")
    with pytest.raises(ConfigError, match=r"cannot be read: .*No such file"):
        sent(csv=tmp_path / "x")
