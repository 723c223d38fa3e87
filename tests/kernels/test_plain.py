"""Kernels that run as plain Python, for a few records, do what they do when they are compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.cli.main import cli
from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.kernels import jit, lines, records, routing
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.record import codec
from spark_kbatch.record.header import unpack
from tests.record.test_codec import LIES
from tests.support import builders, reference
from tests.support.store import store_of
from tests.support.strategies import arrow_rows, corruptions
from tests.support.topics_of_writes import task_producer

MODULES = (records, routing, lines)

# The kernels of `records.write_records`, and the numbers of two of their arguments.
OF_ROWS = ("write_any_rows", "write_plain_rows", "write_scattered_rows")
MEMORY, BATCHES = 11, 12


@pytest.fixture(scope="module")
def compared() -> Iterator[dict[str, int]]:
    """Let every call of a kernel run in both ways, and compare; return how often which kernel was called."""
    calls: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            module.load()
            for name in jit_examples(module):
                calls[name] = 0
                both = in_both_ways(name, getattr(module, name), module.__name__, calls)
                patch.setattr(module, name, both)
        yield calls


def jit_examples(module: Any) -> list[str]:
    return [*module.examples()]


def in_both_ways(name: str, compiled: Any, module: str, calls: dict[str, int]) -> Any:
    def call(*arguments: Any) -> Any:
        calls[name] += 1
        others = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
        starts = others[BATCHES].copy() if name in OF_ROWS else None
        with np.errstate(over="ignore"):
            in_python = jit.PLAIN[module][name](*others)
        found = compiled(*arguments)
        assert found == in_python, name
        for number, (one, other) in enumerate(zip(arguments, others, strict=True)):
            if starts is not None and number == MEMORY:  # the sender writes to other parts of it
                one, other = (
                    written(memory, starts, batches)
                    for memory, batches in ((one, arguments[BATCHES]), (other, others[BATCHES]))
                )
            assert np.array_equal(one, other), f"argument {number} of {name}"
        return found

    return call


def written(memory: Any, starts: Any, batches: Any) -> Any:
    """Return the bytes of memory that a kernel of rows wrote: what it added to each batch."""
    return np.concatenate(
        [
            memory[:0],
            *(memory[start:end] for start, end in zip(starts[::8], batches[::8], strict=True)),
        ]
    )


@given(rows=arrow_rows(), compression=st.sampled_from(["none", "zstd"]))
def test_rows_are_encoded_and_decoded(
    compared: dict[str, int], rows: pa.RecordBatch, compression: str
) -> None:
    batch = builders.encode(rows, compression=compression)
    assert codec.decode(batch).num_rows == rows.num_rows
    if rows.num_rows:
        codec.inspect(batch, unpack(batch))


SOME = builders.encode(builders.rows(n=5, value_bytes=9, nulls=0.3, headers=2))


@given(damaged=corruptions(SOME[61:]))
def test_damage_under_a_right_crc(compared: dict[str, int], damaged: bytes) -> None:
    size = np.int32(len(damaged) + 61 - 12).astype(">i4").tobytes()
    batch = reference.with_crc(SOME[:8] + size + SOME[12:61] + damaged)
    with contextlib.suppress(CorruptRecordError):
        codec.decode(batch)
    with contextlib.suppress(CorruptRecordError):
        codec.inspect(batch, unpack(batch))


@pytest.mark.parametrize("body", LIES)
def test_lies_under_a_right_crc(compared: dict[str, int], body: bytes) -> None:
    batch = reference.frame_batch(body, attributes=0)
    with pytest.raises(CorruptRecordError):
        codec.decode(batch)
    with pytest.raises(CorruptRecordError):
        codec.inspect(batch, unpack(batch))


ROWS = pa.table(
    {
        "key": [None if n % 3 == 0 else f"key {n % 23}" for n in range(100)],
        "value": ["plain", "é\n\u0085", b"\xff\xfe", None, "tab\t\\"] * 20,
        "headers": pa.array([[("a", b"1"), ("ü,", None)], None] * 50, builders.HEADERS_TYPE),
    },
    schema=pa.schema(
        [("key", pa.string()), ("value", pa.binary()), ("headers", builders.HEADERS_TYPE)]
    ),
)


def test_the_way_from_a_producer_to_the_command_line(
    compared: dict[str, int], tmp_path: Path
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 3, "keyed": 4, "old": 1})
    with cluster.producer(flush=False, batch_size=2000) as producer:
        producer.send_arrow("events", ROWS)
        producer.send_arrow("events", ROWS.drop_columns("headers"))
        # Keys of one length, whole lanes of them; and rows that change their partition all the time.
        same = [f"{n:06}" for n in range(200)]
        producer.send_arrow("keyed", {"key": same, "value": ["v" * 40] * 200})
        producer.send("keyed", key="k", value="v", headers=[("h", b"x")])
    # A task's producer asks for no offsets, and so uses other kernels.
    options = parse_write_options({"path": str(cluster.path), "topic": "keyed"})
    task = task_producer(store_of(cluster), "job", options)
    for keys in (same, [f"{n // 50}" for n in range(200)]):
        task.append(pa.record_batch({"key": keys, "value": ["v"] * 200}))
    assert task.finish()
    for words in ([], ["--json"], ["--format", "%T %o %S %k %s %h\n"]):
        done = CliRunner().invoke(cli, ["consume", str(cluster.path), "events", "keyed", *words])
        assert done.exit_code == 0, done.output
        assert done.stdout.count("\n") >= 401


def test_all_kernels_that_run_in_both_ways_were_compared(compared: dict[str, int]) -> None:
    both = {name for module in MODULES for name in jit_examples(module)}
    assert {name for name, count in compared.items() if not count} <= {"divide_records"}
    assert compared.keys() == both


def test_work_that_is_not_small_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    module: dict[str, Any] = {"__name__": "one_kernel", "__builtins__": __builtins__, "ran": ran}
    exec("def summed(numbers):\n    ran.append('plain')\n    return len(numbers)", module)
    monkeypatch.setattr(jit._Spent, "plain_us", 0)
    monkeypatch.setattr(jit._Spent, "plain_us_max", 100)

    def compiled(_self: object, name: str, _example: object) -> Any:
        return lambda numbers: ran.append(f"compiled {name}") or len(numbers)

    monkeypatch.setattr(jit._Kernels, "__init__", lambda *_: None)
    monkeypatch.setattr(jit._Kernels, "compile", compiled)
    jit.compile_on_first_call(module, (), lambda: {"summed": ([],)}, {"summed": lambda numbers: 10 * len(numbers)})  # fmt: skip

    module["summed"]([1] * 4)  # 40 us of 100
    module["summed"]([1] * 5)  # 90
    module["summed"]([1] * 5)  # more than are left
    module["summed"]([1])

    assert ran == ["plain", "plain", "compiled summed", "compiled summed"]
