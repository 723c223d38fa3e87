"""What each command shows, byte for byte: on terminals of four widths, without colours, and in a pipe.

Each file of `golden/cli/` is one command. KBATCH_REWRITE_GOLDEN=1 pytest tests/cli/test_shown.py writes what
was shown into the files; read the difference before you keep it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_kbatch import Cluster
from spark_kbatch.cli import output
from spark_kbatch.cli.main import cli
from spark_kbatch.model import LONG_MAX
from tests.support import builders, stored_groups

GOLDEN = Path(__file__).parent.parent / "golden" / "cli"
HOSTILE = pa.record_batch(
    {
        "key": [b"\x00\xff\xfe binary", None, "中文 \u202e😀".encode()],
        "value": [b"\x1b]0;title\x07\x1b[31mred", b"a\tb\nc\\", None],
        "timestamp": pa.array([0, -1, 1_700_000_000_123], pa.int64()),
        "headers": pa.array([[("h\x1b", b"="), ("h", None)], None, None], builders.HEADERS_TYPE),
    }
)
COMMANDS = {
    "topics": ["topics", "{path}"],
    "partitions": ["topics", "{path}", "--verbose"],
    "consume": ["consume", "{path}", "events"],
    "consume-json": ["consume", "{path}", "^e", "--json"],
    "consume-format": ["consume", "{path}", "events", "--format", r"%t %p %o %T %k %v %h %K %S\n"],
    "offsets": ["offsets", "{path}", "events", "--time", "1"],
    "offsets-of-a-group": ["offsets", "{path}", "events", "--group", "billing"],
    "groups": ["groups", "{path}"],
    "group": ["groups", "{path}", "billing"],
    "history": ["history", "{path}"],
    "commit": ["history", "{path}", "0"],
    "gc": ["gc", "{path}", "--dry-run"],
    "log-dirs": ["log-dirs", "{path}"],
    "verify": ["verify", "{path}"],
    "verify-damaged": ["verify", "{damaged}"],
    "repair": ["repair", "{damaged}", "--dry-run"],
    "dump": ["dump", "{path}/broker-0/events-0/00000000000000000000.log", "--records"],
    "dump-damaged": ["dump", "{damaged}/broker-0/events-0/00000000000000000000.log"],
    "produce": ["produce", "{written}", "events", "{lines}"],
    "produce-wrong": ["produce", "{written}", "events", "{wrong}"],
    "create-topic": ["create-topic", "{written}", "more", "--if-not-exists"],
    "describe-topic": ["describe-topic", "{path}", "events"],
    "alter-topic": ["alter-topic", "{path}", "events"],
    "delete-topic": ["delete-topic", "{path}", "events", "--dry-run"],
    "delete-records": ["delete-records", "{path}", "events", "0:0", "--yes"],
    "export": ["export", "{path}", "events", "{path}/events.jsonl", "--overwrite"],
    "no-topics": ["topics", "{empty}"],
    "no-such-topic": ["consume", "{path}", "\x1b[2Jevents"],
}
_TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "", "NO_COLOR": None}
MODES: dict[str, dict[str, str | None]] = {
    "60 columns": {**_TERMINAL, "COLUMNS": "60"},
    "80 columns": {**_TERMINAL, "COLUMNS": "80"},
    "120 columns": {**_TERMINAL, "COLUMNS": "120"},
    "200 columns": {**_TERMINAL, "COLUMNS": "200"},
    "80 columns, NO_COLOR": {**_TERMINAL, "COLUMNS": "80", "NO_COLOR": "1"},
    "pipe": {"FORCE_COLOR": None, "COLUMNS": None, "NO_COLOR": None},
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Make a folder whose path is short, and equally long in each run, as it decides how tables are folded."""
    made = Path("/tmp", secrets.token_hex(3))
    made.mkdir()
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def places(folder: Path) -> dict[str, str]:
    """Make a cluster with hostile data, one that is damaged, an empty one, one to write to, and what to write."""
    places = {}
    for name in ("path", "damaged", "empty", "written"):
        places[name] = str(folder / name)
        with Cluster(folder / name, create=True) as cluster:
            if name == "empty":
                continue
            cluster.create_topic("events", partitions=2)
            cluster.create_topic("e" * 90)
            data = [builders.encode(HOSTILE), builders.batch()]
            builders.write(cluster, {("events", 0): data, ("events", 1): data[:1]})
            app = stored_groups.member("app", {"events": [0, 1]})
            stored_groups.store(cluster, "billing", {("events", 0): 1}, [app])
            stored_groups.store(cluster, "au\x1bdit", {("events", 0): 3})
    for name, text in (
        ("lines", '{"value": "a"}\n{"value": null, "key": "k"}\n'),
        ("wrong", '{"value": "a"}\n{"val\x1b[31mue": 1}\n'),
    ):
        places[name] = str(folder / f"{name}.jsonl")
        Path(places[name]).write_text(text, encoding="utf-8")
    log = folder / "damaged/broker-0/events-0/00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1] + b"\xff")
    (folder / "damaged/broker-0/events-1/leader-epoch-checkpoint").unlink()
    return places


def shown(words: list[str], places: dict[str, str], mode: dict[str, str | None]) -> str:
    """Return exit code, stdout and stderr, with what differs from run to run replaced."""
    arguments = [word.format(**places) if "{" in word else word for word in words]
    done = CliRunner().invoke(cli, arguments, env=mode)
    error = f"{type(done.exception).__name__}: {done.exception}" if done.exit_code == 1 else ""
    text = f"exit code {done.exit_code}\n{done.stdout}"
    told = "" if mode.get("FORCE_COLOR") else done.stderr  # or a progress bar
    for name, more in (("stderr", told), ("error", error)):
        if more and "SystemExit" not in more:
            text += f"[{name}]\n{more.rstrip()}\n"
    return _alike(text, Path(places["path"]).parent)


def _alike(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "/tmp/folder")
    return "".join(map(_printable, text))


def _printable(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return "␛" if character == "\x1b" else f"<{ord(character):x}>"


def file_of(by_mode: dict[str, str]) -> str:
    """Return a golden file's text; modes that show the same are named together."""
    names: dict[str, list[str]] = {}
    for mode, text in by_mode.items():
        names.setdefault(text, []).append(mode)
    return "\n".join(f"==== {'; '.join(modes)}\n{text}" for text, modes in names.items())


def check(name: str, found: str) -> None:
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("KBATCH_REWRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(found)
    assert found == file.read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_shows_is_its_golden_file(name: str, places: dict[str, str]) -> None:
    by_mode = {mode: shown(COMMANDS[name], places, env) for mode, env in MODES.items()}
    check(name, file_of(by_mode))
    for mode, text in by_mode.items():
        assert "…" not in text
        if mode == "pipe" and name == "consume-format":
            continue  # which writes bytes as they are
        # Only bold, italic and dim are left without colours; nothing at all in a pipe.
        styles = "1 2 3 0" if "NO_COLOR" in mode else "" if mode == "pipe" else None
        codes = set(re.findall(r"␛\[([\d;]*)m", text))
        assert text.count("␛") == len(re.findall(r"␛\[[\d;]*m", text))
        assert styles is None or codes <= {*styles.split(), "1;3", "3;1"}, codes
        assert text.replace("\n", "").replace("\t", "").isprintable()


def test_numbers_are_never_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    by_mode = {}
    for mode, env in MODES.items():
        for key, value in env.items():
            if value is None:
                monkeypatch.delenv(key, raising=False)
            else:
                monkeypatch.setenv(key, value)
        numbers = map(output.number, ("first offset", "next offset", "bytes"))
        columns = [output.text("name of the thing"), *numbers, output.word("committed at")]
        rows = [
            ("t" * 40, LONG_MAX, LONG_MAX - 1, None, "2024-10-25T08:00:00.000Z"),
            ("[b]", 0, 1234, 10**15, "-"),
        ]
        keys = [column.heading.replace(" ", "_") for column in columns]
        found = [dict(zip(keys, row, strict=True)) for row in rows]
        output.Table("Large numbers", columns, found).print()
        by_mode[mode] = capsys.readouterr().out.replace("\x1b", "␛")
        number = str(LONG_MAX) if mode == "pipe" else f"{LONG_MAX:,}"
        assert number in by_mode[mode]
    check("large-numbers", file_of(by_mode))
