"""Formatting of records as lines of text, without a Python object per record.

    layout = json_layout(with_topic=True)
    for data in Lines(layout, topic_partition).of(arrow_batch):
        stdout.write(data)

A layout says what a record becomes, part by part; `kernels.lines` has the kinds and styles.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_kbatch import terminal
from spark_kbatch.kernels import lines as kernel
from spark_kbatch.model import TopicPartition
from spark_kbatch.record import columns
from spark_kbatch.record.columns import ABSENT, EMPTY_I32, EMPTY_U8, Array, HeaderColumns, frozen

_OUT_BYTES = 1 << 20


class Style(enum.IntEnum):
    """A style in which the keys, values, headers and times of records are written as text."""

    RAW = kernel.RAW  # as they are
    FIELD = kernel.FIELD  # escaped for a terminal
    JSON = kernel.JSON


class Kind(enum.IntEnum):
    """The kinds of parts in a record's line of text: offset, time, key, value, headers and so on."""

    OFFSET = kernel.OFFSET
    TIME_MS = kernel.TIME_MS
    TIME = kernel.TIME
    KEY = kernel.KEY
    VALUE = kernel.VALUE
    HEADERS = kernel.HEADERS
    KEY_SIZE = kernel.KEY_SIZE
    VALUE_SIZE = kernel.VALUE_SIZE
    TOPIC = -1
    PARTITION = -2


_COLUMN_OF = {
    Kind.OFFSET: "offset",
    Kind.TIME_MS: "timestamp",
    Kind.TIME: "timestamp",
    Kind.KEY: "key",
    Kind.KEY_SIZE: "key",
    Kind.VALUE: "value",
    Kind.VALUE_SIZE: "value",
    Kind.HEADERS: "headers",
}


class Layout(NamedTuple):
    """The layout of a record's line of text: literal bytes and kinds of parts, written in one style."""

    parts: Sequence[bytes | Kind]
    style: Style
    as_they_are: frozenset[Kind] = frozenset()  # kinds that are text of this style already

    @property
    def columns(self) -> list[str]:
        """Names of the RECORD_SCHEMA columns that the layout needs, always with the offset."""
        return sorted({"offset", *(_COLUMN_OF[p] for p in self.parts if p in _COLUMN_OF)})


def json_layout() -> Layout:
    """Return the layout that writes each record as a line of JSON."""
    parts: list[bytes | Kind] = []
    before = "{"
    for name, kind in (
        ("topic", Kind.TOPIC),
        ("partition", Kind.PARTITION),
        ("offset", Kind.OFFSET),
        ("timestamp", Kind.TIME),
        ("key", Kind.KEY),
        ("value", Kind.VALUE),
        ("headers", Kind.HEADERS),
    ):
        parts += [f'{before}"{name}": '.encode(), kind]
        before = ", "
    return Layout([*parts, b"}\n"], Style.JSON)


def field_layout(*, with_topic: bool) -> Layout:
    """Return the layout that writes each record as a line of fields, separated by tabs."""
    kinds = [Kind.PARTITION, Kind.OFFSET, Kind.TIME, Kind.KEY, Kind.VALUE, Kind.HEADERS]
    parts: list[bytes | Kind] = []
    for kind in [Kind.TOPIC] * with_topic + kinds:
        parts += [b"\t", kind]
    return Layout([*parts[1:], b"\n"], Style.FIELD)


class Lines:
    """A formatter of one partition's records as lines of text in a given layout.

    Not thread-safe.
    """

    _shown: Array = EMPTY_U8  # of `terminal.shown_characters`, once it is needed

    def __init__(self, layout: Layout, topic_partition: TopicPartition) -> None:
        parts, literals = [], b""
        for part in layout.parts:
            if isinstance(part, bytes) or part in (Kind.TOPIC, Kind.PARTITION):
                literal = _literal(part, layout.style, topic_partition)
                parts.append((kernel.LITERAL, len(literals), len(literals) + len(literal)))
                literals += literal
            else:
                style = Style.RAW if part in layout.as_they_are else layout.style
                parts.append((part, style, 0))
        self._parts = np.array(parts, np.int64).reshape(-1, 3)
        self._literals = frozen(np.frombuffer(literals, np.uint8))
        self._out = np.empty(_OUT_BYTES, np.uint8)

    def of(self, batch: pa.RecordBatch) -> Iterator[memoryview]:
        """Yield the text of the records in an Arrow batch, which has the layout's columns.

        Each piece is valid until the next.
        """
        offsets = columns.numbers(batch.column("offset"))
        names = batch.schema.names
        timestamps = columns.numbers(batch.column("timestamp")) if "timestamp" in names else offsets
        key, value = (
            columns.spans(batch.column(name)) if name in names else ABSENT
            for name in ("key", "value")
        )  # fmt: skip
        headers = HeaderColumns(EMPTY_I32, ABSENT, ABSENT)
        if "headers" in names:
            headers = columns.header_columns(batch.column("headers"))
        header_keys = headers.keys[:2]
        facts = np.zeros(3, np.int64)
        row = 0
        while row < len(offsets):
            before = row
            row = kernel.write_lines(
                self._parts, self._literals, offsets, timestamps, *key, *value,
                headers.bounds, *header_keys, *headers.values, self._shown, row, self._out, facts,
            )  # fmt: skip
            size, needs_shown, needed = map(int, facts)
            if size:
                yield self._out[:size].data
            if needs_shown:
                Lines._shown = self._shown = frozen(
                    np.frombuffer(terminal.shown_characters(), np.uint8)
                )
            elif row == before:
                self._out = np.empty(max(needed, 2 * len(self._out)), np.uint8)


def _literal(part: bytes | Kind, style: Style, topic_partition: TopicPartition) -> bytes:
    if isinstance(part, bytes):
        return part
    if part == Kind.PARTITION:
        return b"%d" % topic_partition.partition
    topic = topic_partition.topic
    if style == Style.RAW:
        return topic.encode(errors="surrogateescape")
    return (terminal.to_json(topic) if style == Style.JSON else terminal.field(topic)).encode()
