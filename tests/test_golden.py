"""The files that a few commands leave on disk, byte for byte as readable text.

Each file of `golden/` has stanzas of commands, a line of dashes, and what the last command showed:

    topic TOPIC [segment.bytes=N ...]          create a topic of one partition
    append TOPIC n=2 [seed=1]                  append a batch, as a producer does
    produce TOPIC sequence=0 [epoch=0] [n=1]   append an idempotent producer's batch
    commit TOPIC n=2 [seed=1]                  commit a batch, as a Spark job does
    delete-records TOPIC before=3              move the log start offset
    dump TOPIC                                 show the partition's directory

KBATCH_REWRITE_GOLDEN=1 pytest tests/test_golden.py writes what was shown into the files; read the
difference before you keep it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import spark_kbatch
from tests.support import builders
from tests.support.dump import dump

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))
_STANZA = re.compile(r"(.*?)\n----\n(.*?)\n\n", re.DOTALL)


class Commands:
    """A cluster, and the commands that change and show it."""

    def __init__(self, folder: Path) -> None:
        self.cluster = spark_kbatch.open(folder, create=True)

    def run(self, line: str) -> str:
        """Run one command; returns what it shows."""
        command, topic, *pairs = line.split()
        options = dict(pair.split("=", 1) for pair in pairs)
        numbers = {name: int(text) for name, text in options.items() if text.isdigit()}
        shown: str = getattr(self, command.replace("-", "_"))(topic, **options | numbers)
        return shown

    def topic(self, topic: str, **config: object) -> str:
        self.cluster.create_topic(topic, partitions=1, config=config)
        return ""

    def append(self, topic: str, **batch: object) -> str:
        return self._appended(topic, builders.batch(value_bytes=8, **batch))  # type: ignore[arg-type]

    def produce(self, topic: str, *, sequence: int, id: int = 7, **batch: object) -> str:
        data = builders.idempotent_batch(base_sequence=sequence, **batch)  # type: ignore[arg-type]
        return self._appended(topic, data)

    def commit(self, topic: str, **batch: object) -> str:
        builders.write(self.cluster, {(topic, 0): [builders.batch(value_bytes=8, **batch)]})  # type: ignore[arg-type]
        return ""

    def delete_records(self, topic: str, *, before: int) -> str:
        self.cluster.delete_records({(topic, 0): before})
        return ""

    def dump(self, topic: str) -> str:
        return dump(self.cluster.path / f"broker-0/{topic}-0").rstrip("\n")

    def _appended(self, topic: str, data: bytes) -> str:
        [result] = builders.append_records(self.cluster, {(topic, 0): data}).values()
        if result.error is not None:
            return type(result.error).__name__
        return f"base offset {result.base_offset}"


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_a_log_is_on_disk_as_its_golden_file_says(file: Path, tmp_path: Path) -> None:
    commands, shown, expected = Commands(tmp_path), "", file.read_text()

    for stanza in _STANZA.finditer(expected):
        answer = [commands.run(line) for line in stanza[1].splitlines()][-1]
        shown += f"{stanza[1]}\n----\n{answer}\n\n"

    if os.environ.get("KBATCH_REWRITE_GOLDEN"):
        file.write_text(shown)
    assert shown == expected


def test_there_are_golden_files() -> None:
    assert GOLDEN
