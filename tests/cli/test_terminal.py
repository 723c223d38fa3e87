"""Every command escapes data that it prints, without losing any of it."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_kbatch import Cluster
from spark_kbatch.cli import main
from spark_kbatch.errors import ConfigError
from spark_kbatch.store.commits import Author
from spark_kbatch.terminal import (
    JsonLogFormatter,
    LogFormatter,
    field,
    to_json,
    visible,
)
from tests.support import builders
from tests.support.reference import Record, encode_batch

ESCAPE_SEQUENCE = "\x1b]0;title\x07\x1b[2J\x1b[31mred"
FORGED_LINE = "h\n0\t99\t2024-01-01T00:00:00.000Z\tforged\trecord\t-"
MARKUP = "[/b] [/nope] [link=x] :smile:"

_PIECES = st.sampled_from(
    ["\x1b[2J", "\x9b31m", "\x85", "\x7f", "\x07", "\r", "\n", "\t", "\\", "\\n", "\\N", "-", "=", ",",
     "[/b]", "[red]", "[/nope]", ":smile:", "\u202e", "\u2066", "\u2028", "\u200b", "\ufeff", "\U000e0041",
     "é", "中", "😀", "a", " "]
)  # fmt: skip
hostile = st.lists(_PIECES, min_size=1, max_size=5).map("".join)
hostile_bytes = st.one_of(hostile.map(str.encode), st.binary(max_size=6), st.just(b"\xed\xa0\x80"))

_ESCAPED = re.compile(rb"\\(?:([\\tnr])|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_SHORT = {b"\\": b"\\", b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def unescaped(shown: str) -> bytes | None:
    """Return the bytes that a printed field stands for; fail if it could stand for others."""
    if shown == r"\N":
        return None

    def undo(found: re.Match[bytes]) -> bytes:
        short, byte, *character = found.groups()
        if short:
            return _SHORT[short]
        if byte:
            return bytes([int(byte, 16)])
        return chr(int(character[0] or character[1], 16)).encode(errors="surrogatepass")

    data = shown.encode()
    assert b"\\" not in _ESCAPED.sub(b"", data)
    return _ESCAPED.sub(undo, data)


# One text


@given(st.one_of(st.none(), hostile_bytes), st.sampled_from(["", ",", "=,"]))
@example(b"-", "")
@example(rb"\N", "")
@example(rb"\xff", "")
@example(b"", "")
def test_a_field_is_printable_and_says_which_bytes_it_is_of(
    data: bytes | None, separators: str
) -> None:
    shown = field(data, separators)
    assert shown.isprintable()
    assert not any(separator in shown for separator in separators)
    assert unescaped(shown) == data


@given(hostile)
def test_other_texts_are_printable_and_keep_what_is(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable()
    assert text.isprintable() <= (shown == text)


@given(hostile)
def test_json_is_printable_and_holds_the_text(text: str) -> None:
    shown = to_json({text: [text, "\ud800"]})
    assert shown.isprintable()
    assert json.loads(shown) == {text: [text, "\ud800"]}


def test_where_the_terminal_has_no_unicode_other_characters_are_escaped_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert field("aÛ中".encode()) == r"a\u00db\u4e2d"
    assert to_json("aÛ😀") == r'"a\u00db\ud83d\ude00"'


def test_a_log_line_has_level_and_logger_and_forges_nothing() -> None:
    message = "batch %s is damaged"
    record = logging.LogRecord(
        "spark_kbatch.log", logging.WARNING, "", 0, message, ("\x1b[2J\nx",), None
    )
    shown = LogFormatter().format(record)
    assert shown == r"WARNING spark_kbatch.log: batch \x1b[2J\nx is damaged"
    try:
        raise ConfigError("a\x1b[2Jb")
    except ConfigError:
        record.exc_info = sys.exc_info()
    assert r"ConfigError: a\x1b[2Jb" in LogFormatter().format(record).splitlines()[-1]

    (line,) = JsonLogFormatter().format(record).splitlines()
    found = json.loads(line)
    assert line.isprintable()
    assert found["message"] == "batch \x1b[2J\nx is damaged"
    assert found["exception"].startswith("Traceback")
    assert "ConfigError: a\x1b[2Jb" in found["exception"]


# Every command


class Shown(NamedTuple):
    status: int
    out: str
    err: str


class _Terminal(io.TextIOWrapper):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def text(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


def kbatch(*words: str | Path, is_terminal: bool) -> Shown:
    """Run a command in this process; check that it prints nothing that a terminal acts on."""
    out, err = (_Terminal(is_terminal=is_terminal) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setattr(sys, "argv", ["kbatch", *map(str, words)])
        patch.setenv("TERM", "dumb")  # rich's own colours are not what is looked for
        patch.setenv("COLUMNS", "400")
        try:
            main.main()
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
    for text in (out.text(), err.text()):
        assert text.replace("\n", "").replace("\t", "").isprintable()
    return Shown(status, out.text(), err.text())


class Hostile(NamedTuple):
    """A cluster with hostile data: its path, its records, and the author of its commits."""

    path: Path
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes | None]]


hostiles = st.builds(
    Hostile,
    hostile.map(Path),
    st.none() | hostile_bytes,
    hostile_bytes,
    st.lists(st.tuples(hostile, st.none() | hostile_bytes), max_size=2),
)
WORST = Hostile(
    Path(f"{ESCAPE_SEQUENCE} [/b]\n"), b"-", ESCAPE_SEQUENCE.encode(), [(FORGED_LINE, b"\x9b")]
)


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "pipe"])
@given(hostiles)
@settings(deadline=None, max_examples=5)  # the commands of each take half a second
@example(WORST)
def test_no_command_prints_what_a_terminal_acts_on(is_terminal: bool, data: Hostile) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = data.value.decode(errors="replace")
        cluster = Cluster(str(Path(folder, data.path)), create=True)
        cluster.create_topic("events")
        headers = tuple((key, value) for key, value in data.headers)
        batch = encode_batch([Record(0, 0, data.key, data.value, headers)])
        extents = builders.staged(cluster, {("events", 0): [batch]}, transaction="job")
        author = Author(text, text, text)
        name = f"{text} {MARKUP}"
        coordinator = builders.coordinator(cluster)
        coordinator.commit(extents, transactional_id=name, sequence=0, author=author)
        builders.staged(cluster, {("events", 0): [batch]}, transaction="dead \x1b[2J[/b]")

        for words in COMMANDS:
            for as_json in ([], ["--json"]):
                done = kbatch(*_of(words, cluster), *as_json, is_terminal=is_terminal)
                assert (done.status, done.err) == (0, ""), done
                assert all(json.loads(line) for line in done.out.splitlines() if as_json)
        absent = "absent" + text.replace("\0", "").replace("/", "")
        for words in (*MISTAKES, ["topics", "{path}" + absent], ["consume", "{path}", absent]):
            done = kbatch(*_of(words, cluster), is_terminal=is_terminal)
            assert done.status in (1, 2), done
        _check_records(cluster, data, is_terminal=is_terminal)


COMMANDS = [
    ["topics", "{path}"],
    ["consume", "{path}", "events"],
    ["history", "{path}"],
    ["offsets", "{path}", "events"],
    ["gc", "{path}", "--dry-run", "--staging-retention-ms", "0"],
    ["log-dirs", "{path}"],
    ["repair", "{path}", "--dry-run"],
    ["delete-records", "{path}", "events", "0:0", "--dry-run"],
    ["describe-topic", "{path}", "events"],
]
MISTAKES = [
    ["topics", "{path}", f"{ESCAPE_SEQUENCE}\n[/b]"],
    ["consume", "{path}", f"{ESCAPE_SEQUENCE}\n[/b]"],
    ["consume", "{path}", "events", ESCAPE_SEQUENCE],
    ["consume", "{path}", "events", f"--{ESCAPE_SEQUENCE}"],
    ["consume", "{path}", "events", "--start", ESCAPE_SEQUENCE],
    ["history", "{path}", "--topic", ESCAPE_SEQUENCE],
    ["repair", "{path}", f"{ESCAPE_SEQUENCE}-0"],
    ["export", "{path}", "events", "--log-dir", f"/{ESCAPE_SEQUENCE}"],
    ["demo", "{path}"],
    [ESCAPE_SEQUENCE],
]


def _of(words: list[str], cluster: Cluster) -> Iterator[str]:
    return (word.replace("{path}", str(cluster.path)) for word in words)


def _check_records(cluster: Cluster, data: Hostile, *, is_terminal: bool) -> None:
    """Check that `consume` prints one line, from which the record can be restored."""
    shown = kbatch("consume", cluster.path, "events", is_terminal=is_terminal).out
    assert shown.endswith("\n")
    assert shown.count("\n") == 1
    *_, key, value, headers = shown[:-1].split("\t")
    assert (unescaped(key), unescaped(value)) == (data.key, data.value)
    pairs = [] if headers == "-" else [pair.split("=", 1) for pair in headers.split(", ")]
    assert [(unescaped(key), unescaped(value)) for key, value in pairs] == [
        (key.encode(), value) for key, value in data.headers
    ]
