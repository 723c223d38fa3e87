"""DESIGN.md is true: its trips are those of real calls.

KBATCH_REWRITE_GOLDEN=1 pytest tests/test_design.py writes the trips again, and keeps the remark of each line whose
first file is still the same: read the difference.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping

import pytest

from tests.conftest import REPOSITORY

DESIGN = REPOSITORY / "DESIGN.md"
_NAMES = ("a written row", "a fetch", "an offset commit", "a remote read", "a bucket's read")
_ROOM_WIDTH, _NAMES_WIDTH, _REMARKS_FROM, _WIDTH = 11, 44, 60, 110

Stays = list[tuple[str, list[str]]]


@pytest.fixture(scope="module")
def trips() -> dict[str, Stays]:
    environment = {name: value for name, value in os.environ.items() if "NUMBA" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.trips"],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Stays] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", _NAMES)
def test_a_trip_is_that_of_a_real_call(trips: dict[str, Stays], name: str) -> None:
    page = DESIGN.read_text(encoding="utf-8")
    block = re.compile(rf"(?<=<!-- {name} -->\n```text\n).*?(?=\n```\n<!-- end -->)", re.DOTALL)
    found = block.search(page)
    assert found is not None, f"DESIGN.md has no trip of {name}"
    remarks = {
        (room, first): remark
        for room, first, remark in re.findall(r"^  (\S+)/ +(\S+).*?# (.*)$", found[0], re.MULTILINE)
    }
    shown = "\n".join(_lines(trips[name], remarks))
    if os.environ.get("KBATCH_REWRITE_GOLDEN"):
        DESIGN.write_text(block.sub(lambda _: shown, page), encoding="utf-8")
    elif found[0] != shown:
        pytest.fail(
            f"the trip of {name} in DESIGN.md is not that of a call; it should be as below, which "
            f"KBATCH_REWRITE_GOLDEN=1 pytest tests/test_design.py writes\n\n{shown}"
        )


def _lines(stays: Stays, remarks: Mapping[tuple[str, str], str]) -> list[str]:
    """Return the lines of a trip: what each thread enters below its name, files of a room side by side.

    Each file is shown once. The last line has those on which all rooms stand.
    """
    lines, seen, below = list[str](), set[str](), list[str]()
    for where, some in itertools.groupby(stays, key=lambda one: one[0]):
        new = [*dict.fromkeys(file for _, files in some for file in files if file not in seen)]
        seen |= set(new)
        rooms = [file for file in new if "/" in file and not file.startswith("options/")]
        below += [file.removesuffix(".py") for file in new if file not in rooms]
        if rooms:
            lines.append(f"{where}:")
        for room, files in itertools.groupby(rooms, key=lambda file: file.partition("/")[0]):
            names = [file.removeprefix(f"{room}/").removesuffix(".py") for file in files]
            remark = remarks.get((room, names[0]))
            first, *rest = textwrap.wrap(" ".join(names), _NAMES_WIDTH)
            line = f"  {room + '/':{_ROOM_WIDTH}}{first}"
            lines.append(line if remark is None else f"{line:{_REMARKS_FROM}}# {remark}")
            lines += [f"{'':{_ROOM_WIDTH + 2}}{one}" for one in rest]
    floor = f"{len(seen)} files, of which below the rooms: {', '.join(sorted(below))}"
    return [*lines, *textwrap.wrap(floor, _WIDTH)]
