"""The files of a broker that died in the middle of a swap, after its next start."""

from __future__ import annotations

import pytest

from spark_kbatch.log.foreign.log import names_after_start

A, B, C = (f"{base:020d}" for base in (0, 10, 20))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param([f"{A}.log", f"{A}.index"], {f"{A}.log": "", f"{A}.index": ""}, id="nothing"),
        pytest.param(
            [f"{A}.log.deleted", f"{A}.index.deleted", f"{B}.log"], {f"{B}.log": ""}, id="deleted"
        ),
        pytest.param(
            [f"{A}.log.cleaned", f"{A}.index.cleaned", f"{A}.log"], {f"{A}.log": ""}, id="cleaned"
        ),
        pytest.param(
            [f"{A}.log.swap", f"{A}.index.swap", f"{A}.log", f"{A}.timeindex", f"{B}.log", f"{B}.index",
             f"{C}.log", "leader-epoch-checkpoint"],
            {f"{A}.log": ".swap", f"{A}.index": ".swap", f"{C}.log": "", "leader-epoch-checkpoint": ""},
            id="swap-of-two-segments",
        ),
        pytest.param(
            [f"{B}.log.swap", f"{A}.log", f"{C}.log"],
            {f"{A}.log": "", f"{B}.log": ".swap", f"{C}.log": ""},
            id="swap-whose-sources-are-gone",
        ),
        pytest.param(
            [f"{A}.log.swap", f"{B}.log.swap", f"{B}.log.cleaned", f"{A}.log"],
            {f"{A}.log": ".swap"},
            id="split-that-was-not-done-drops-later-swaps",
        ),
        pytest.param(
            [f"{B}.index.swap", f"{A}.log", f"{B}.log"],
            {f"{A}.log": "", f"{B}.log": "", f"{B}.index": ".swap"},
            id="swap-of-an-index-alone",
        ),
        pytest.param(
            [f"{A}.log.swap", f"{B}.snapshot", f"{C}.snapshot", f"{B}.foo"],
            {f"{A}.log": ".swap", f"{C}.snapshot": ""},
            id="side-files-in-the-range-go-too",
        ),
        pytest.param(
            ["x.log", "partition.metadata", f"{A}-0000000001.checkpoint.deleted"],
            {"x.log": "", "partition.metadata": "", f"{A}-0000000001.checkpoint.deleted": ""},
            id="other-names-stay",
        ),
    ],
)  # fmt: skip
def test_names_after_start_are_a_brokers(names: list[str], expected: dict[str, str]) -> None:
    next_offsets = {f"{A}.log.swap": 20, f"{B}.log.swap": 20}

    found = names_after_start(names, next_offsets.__getitem__)

    assert found == {name: name + ending for name, ending in expected.items()}
