"""What each operation does while one disk of three, or PATH, is in one of these states.

    done      as if nothing were wrong
    rest      by the other disks; that one's replica is not in sync
    names     the command says what is wrong
    refused   with an error; nothing has changed

Of two words with a stroke between them the first is for the disk of the leader, the other for a follower's.

state                  append   idempotent  commit   overwrite  delete-records  create   alter    grow     delete
---------------------  -------  ----------  -------  ---------  --------------  -------  -------  -------  -------
online                 done     done        done     done       done            done     done     done     done
away                   rest     rest        rest     rest       rest            refused  done     refused  done
back, equal            done     done        done     done       done            done     done     done     done
back, behind           done     done        done     done       done            done     done     done     done
back, missed a change  done     done        done     done       done            done     done     done     done
an older image         done     done        done     done       done            done     done     done     done
an empty one           rest     rest        rest     rest       rest            refused  done     refused  done
another cluster's      rest     rest        rest     rest       rest            refused  done     refused  done
swapped with another   rest     rest        rest     rest       rest            refused  done     refused  done
at two places          rest     rest        rest     rest       rest            refused  done     refused  done
full                   rest     rest        rest     rest       rest            refused  done     refused  done
read-only              rest     rest        rest     rest       rest            refused  done     refused  done
failed                 rest     rest        rest     rest       rest            refused  done     refused  done
lost power             done     done        done     done       done            done     done     done     done
PATH away              refused  refused     refused  refused    refused         refused  refused  refused  refused
PATH older             refused  refused     refused  refused    refused         refused  refused  refused  refused
PATH restored          done     done        done     done       done            done     done     done     done

state                  read     verify   replicate  replace  repair      open
---------------------  -------  -------  ---------  -------  ----------  ----
online                 done     done     done       refused  done        done
away                   done     names    names      done     done        done
back, equal            done     done     done       refused  done        done
back, behind           done     names    done       refused  done        done
back, missed a change  done     names    done       refused  done        done
an older image         done     names    done       refused  done        done
an empty one           done     names    names      done     done        done
another cluster's      done     names    names      refused  done        done
swapped with another   done     names    names      refused  done        done
at two places          done     names    names      refused  done        done
full                   done     done     names      refused  done        done
read-only              done     done     names      refused  done        done
failed                 done     names    names      refused  done        done
lost power             done     names    done       refused  names/done  done
PATH away              refused  refused  refused    refused  refused     done
PATH older             refused  refused  refused    refused  refused     done
PATH restored          done     done     done       refused  done        done

Whatever it was: once the disk is back, mended or replaced, or PATH is back and opened, and `replicate` has
run, all three disks have everything that was acknowledged, at its offset, and nothing that was refused or
deleted. Nothing is left to repair, and appends go on.

A disk may also fail within an operation, at any change of a file, once or from then on.
"""

from __future__ import annotations

import re

import pytest

from spark_kbatch.errors import KBatchError
from tests.support import crashes
from tests.support.crashes import another_boot
from tests.support.disk_states import (
    OPERATIONS,
    PATH,
    STATES,
    Case,
    Said,
    be_broken,
    be_mended,
    outcome,
)
from tests.support.failing_disks import Killed
from tests.support.store import store_of

LEADER, FOLLOWER = 0, 1
STEPS_MAX = 200
STRIDE = 1 if crashes.STRIDE == 1 else 5


def _expected() -> dict[str, dict[str, str]]:
    """Return the words of the tables above by state and operation."""
    found: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for line in (__doc__ or "").splitlines():
        words = re.split(r"  +", line.strip())
        if words[0] == "state":
            columns = words[1:]
        elif columns and words[0] in STATES:
            found.setdefault(words[0], {}).update(zip(columns, words[1:], strict=True))
    return found


EXPECTED = _expected()


def test_the_table_has_all_states_and_operations() -> None:
    assert [*EXPECTED] == [*STATES]
    assert {tuple(row) for row in EXPECTED.values()} == {tuple(OPERATIONS)}


@pytest.mark.parametrize("node", [LEADER, FOLLOWER], ids=["leader", "follower"])
@pytest.mark.parametrize("state", STATES)
def test_an_operation_does_what_the_table_says_and_nothing_is_lost(state: str, node: int) -> None:
    happens, is_put_right = STATES[state]
    seen = {}
    for operation in OPERATIONS:
        case = Case(node)
        with case.boots:
            happens(case)
            seen[operation] = outcome(case, operation)
            is_put_right(case)
            try:
                case.ensure_whole()
            except (AssertionError, KBatchError, Said) as error:
                error.add_note(f"{state}, {operation}: {seen[operation]}, {case.error!r}")
                raise
    expected = {of: words.split("/")[-1 if node else 0] for of, words in EXPECTED[state].items()}
    assert seen == expected


@pytest.mark.parametrize("node", [LEADER, FOLLOWER], ids=["leader", "follower"])
@pytest.mark.parametrize("lasts", [True, False], ids=["for good", "once"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_disk_may_fail_at_any_change_within_an_operation(
    operation: str, lasts: bool, node: int
) -> None:
    """Or right after it: readers find all that it did on the other disks."""
    failed = True
    for at in range(0, STEPS_MAX, STRIDE):
        if not failed:
            return
        case = Case(node)
        failed = False

        def fail(case: Case = case) -> None:
            nonlocal failed
            failed = True
            be_broken(case)
            if not lasts:
                case.disks.look_at, case.disks.look = 0, lambda: case.disks.mend(case.own)

        case.disks.look_at, case.disks.look = at, fail
        ended = outcome(case, operation)
        if not failed:
            be_broken(case)
        try:
            if ended != "refused" and not case.is_deleted:
                case.read()
            be_mended(case)
            case.ensure_whole()
        except (AssertionError, KBatchError, Said) as error:
            error.add_note(f"{operation} that failed at {at}: {ended}, {case.error!r}")
            raise
    pytest.fail(f"it has more than {STEPS_MAX} steps")


def test_copies_are_not_newer_than_a_path_whose_writer_died_before_it_was_flushed() -> None:
    for at in range(STEPS_MAX):
        case = Case(LEADER)
        case.disks.kill_at = at
        try:
            case.alter()
            return
        except Killed:
            case.disks.kill_at = None
        case.open()  # which refreshes the copies
        size = case.process.topic("events").config.max_message_bytes
        case.disks.disk = case.disks.disk.after_power_loss_of(PATH.name)
        with another_boot():
            files = store_of(case.process).metadata.json_files
            assert files.newer_mirror() is None, f"killed at {at}"
            case.open()
            assert case.process.topic("events").config.max_message_bytes == size, f"killed at {at}"
