"""Histories of processes over S3's protocol lose nothing, and faults put in on purpose are found by some history.

`tests.support.histories` has what happens in one, `tests.support.history_checker` what must hold, and both how to
repeat one. `make test` has a short one, `make soak` three long ones with 750 jobs and 75,000 records.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.support.histories import STORE_FAULTS, Size, run_histories, run_history
from tests.support.history_checker import Checker, History, Read
from tests.support.history_faults import FAULTS

SHORT, LONG = Size(jobs=8, records=400), Size(jobs=250, records=25_000)
OF_A_FAULT = Size(jobs=40, records=2500)
HISTORIES = 3
HISTORIES_MAX = 6  # in which a fault has to show


def test_a_short_history_loses_nothing(tmp_path: Path) -> None:
    told = run_histories(1, SHORT, tmp_path)

    assert told.jobs >= SHORT.jobs
    assert told.records >= SHORT.records


@pytest.mark.slow
def test_long_histories_lose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = run_histories(HISTORIES, LONG, tmp_path)

    with capsys.disabled():
        print(f"\n{told}")
    for what in (
        "kills",
        "freezes",
        "storms",
        "sessions ended",
        "extents merged",
        "objects deleted",
    ):
        assert told.happened[what], f"a history without {what} tells little"


LEDGER, DATA = "cannot be trusted", "the object is missing"
# How each fault shows: one of these is in what the checker says. Any other error might be the test's own.
SHOWN_BY = {
    "acknowledge_without_an_entry": ("kept: ", "whole: ", LEDGER),
    "propose_again_while_one_is_unknown": ("once: ",),
    "deny_what_is_unknown": ("refused: ",),
    "forget_sequences": ("once: ", LEDGER),
    "forget_micro_batches": ("once: ",),
    "commit_each_task_by_itself": ("whole: ",),
    "collect_beyond_the_horizon": (DATA,),
    "acknowledge_wrong_offsets": ("kept: ",),
    "forget_bases_of_batches": ("dense: ", "same: ", "CorruptRecordError"),
    "overwrites": ("kept: ", LEDGER),
    "forgets": ("fresh: ", DATA, LEDGER),
}


def test_each_fault_has_to_show_in_its_own_way() -> None:
    assert [*SHOWN_BY] == [*FAULTS, *STORE_FAULTS]


@pytest.mark.slow
@pytest.mark.parametrize("fault", SHOWN_BY)
def test_a_fault_put_in_on_purpose_is_found(fault: str, tmp_path: Path) -> None:
    assert any(
        how in sentence
        for seed in range(HISTORIES_MAX)
        for sentence in run_history(seed, OF_A_FAULT, tmp_path / str(seed), fault=fault)[0]
        for how in SHOWN_BY[fault]
    )


# The checker, by a history that is made up: two places, a producer, a writer of jobs and a query.

ENDED = {
    "events-0": ["p1.0/0", "p1.0/1", "w1.0#1/0", "p1.0/2", "s1#0/0", "s1#1/0", "w1.0#1/3"],
    "audit-0": ["w1.0#1/1", "w1.0#1/2"],
}
LINES: list[dict[str, Any]] = [
    {"what": "sent", "by": "p1.0", "at": 1.0, "records": {"events-0": [0, 4]}},
    {"what": "job", "by": "w1.0", "at": 1.0, "job": "w1.0#1", "places": ["events-0", "audit-0", "audit-0", "events-0"]},
    {"what": "job", "by": "w1.0", "at": 1.0, "job": "w1.0#2", "places": ["audit-0"]},
    {"what": "job", "by": "s1.0", "at": 1.0, "job": "s1#0", "places": ["events-0"]},
    {"what": "job", "by": "s1.1", "at": 1.0, "job": "s1#0", "places": ["events-0"]},
    {"what": "job", "by": "s1.1", "at": 1.0, "job": "s1#1", "places": ["events-0"]},
    {"what": "acknowledged", "by": "p1.0", "at": 2.0, "place": "events-0", "first": 0, "offsets": [0, 1, 3, None]},
    {"what": "committed", "by": "s1.1", "at": 3.0, "job": "s1#0"},
    {"what": "committed", "by": "w1.0", "at": 4.0, "job": "w1.0#1"},
    {"what": "refused", "by": "w1.0", "at": 4.0, "job": "w1.0#2"},
]  # fmt: skip

Ended: TypeAlias = dict[str, list[str]]


def read(ended: Ended, began: float = 9.0, **starts: int) -> Read:
    offsets = {
        place: [*range(starts.get(place, 0), starts.get(place, 0) + len(values))]
        for place, values in ended.items()
    }
    return Read("r1.0", began, starts, offsets, ended)


def checked(change: Callable[[History, Ended], object]) -> list[str]:
    """Return the faults of the history above after a change of it, and of what is there in the end."""
    history, ended = History(), {place: [*values] for place, values in ENDED.items()}
    for line in LINES:
        history.take(line, Path("nowhere"))
    change(history, ended)
    return Checker(history, read(ended)).faults()


def test_a_history_in_which_all_holds_has_no_fault() -> None:
    def with_reads(history: History, ended: Ended) -> None:
        cut = {"events-0": ENDED["events-0"][:2], "audit-0": []}
        history.reads += [read(ended), read(cut, began=1.5)]
        history.reads.append(
            read({"events-0": ENDED["events-0"][4:]}, 5.0, **{"events-0": 4, "audit-0": 2})
        )

    assert checked(with_reads) == []


def _lost(_history: History, ended: Ended) -> None:
    ended["audit-0"].clear()


def _cut_off(_history: History, ended: Ended) -> None:
    ended["audit-0"].pop()


def _at_another_offset(_history: History, ended: Ended) -> None:
    one = ended["events-0"]
    one[3], one[4] = one[4], one[3]


def _elsewhere(_history: History, ended: Ended) -> None:
    ended["audit-0"].append(ended["events-0"].pop(5))


def _twice(_history: History, ended: Ended) -> None:
    ended["events-0"].append("p1.0/1")


def _never_sent(_history: History, ended: Ended) -> None:
    ended["events-0"].append("p1.0/4")


def _of_another_job(_history: History, ended: Ended) -> None:
    ended["audit-0"].append("w1.0#1/4")


def _refused(_history: History, ended: Ended) -> None:
    ended["audit-0"].append("w1.0#2/0")


def _half_seen(history: History, ended: Ended) -> None:
    history.reads.append(read({"events-0": ended["events-0"][:6], "audit-0": []}, began=1.0))


def _half_of_a_partition_seen(history: History, ended: Ended) -> None:
    history.reads.append(read({**ended, "events-0": ended["events-0"][:6]}, began=1.0))


def _seen_and_gone(history: History, ended: Ended) -> None:
    history.reads.append(read({**ended, "audit-0": [*ended["audit-0"], "w1.0#2/0"]}))


def _changed(history: History, ended: Ended) -> None:
    history.reads.append(read({**ended, "audit-0": ended["audit-0"][::-1]}))


def _left_out(history: History, ended: Ended) -> None:
    one = read(ended)
    history.reads.append(one._replace(offsets={**one.offsets, "audit-0": [0, 2]}))


def _old(history: History, ended: Ended) -> None:
    history.reads.append(read({"events-0": ended["events-0"][:2], "audit-0": []}, began=2.5))


def _out_of_order(_history: History, ended: Ended) -> None:
    ended["events-0"].insert(0, ended["events-0"].pop(1))


def _micro_batches_out_of_order(_history: History, ended: Ended) -> None:
    one = ended["events-0"]
    one[4], one[5] = one[5], one[4]


def _an_odd_error(history: History, _ended: Ended) -> None:
    line = {"what": "broke", "by": "r1.0", "at": 5.0, "error": "CorruptRecordError: damaged"}
    history.take(line, Path("nowhere"))


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (_lost, {"kept", "whole"}),
        (_cut_off, {"kept", "whole"}),
        (_at_another_offset, {"kept"}),
        (_elsewhere, {"sent"}),
        (_twice, {"once", "order"}),
        (_never_sent, {"sent"}),
        (_of_another_job, {"sent"}),
        (_refused, {"refused"}),
        (_half_seen, {"whole"}),
        (_half_of_a_partition_seen, {"whole"}),
        (_seen_and_gone, {"same"}),
        (_changed, {"same"}),
        (_left_out, {"dense"}),
        (_old, {"fresh"}),
        (_out_of_order, {"kept", "order"}),
        (_micro_batches_out_of_order, {"order"}),
        (_an_odd_error, {"sound"}),
    ],
    ids=lambda one: one.__name__.strip("_") if callable(one) else "",
)
def test_the_checker_finds_what_does_not_hold(
    change: Callable[[History, Ended], object], kinds: set[str]
) -> None:
    found = {sentence.partition(":")[0] for sentence in checked(change)}

    assert found == kinds
