"""A test of a store, before a cluster is put into it: does it do what a ledger stands on?

- Of 16 that create the same object at the same time one succeeds, and what is there is that one's. Tried with
  five names, all creators starting each name together.
- An object that was read while it was missing is seen by the next read, and by the next list, after its creation.
  Tried with 16 names.
- An object that is there is not created again.

A store that fails here loses commits. That it passes proves little, but stores that check a name and then put
the object, in two steps, were found by it each time.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from spark_kbatch.bucket import names
from spark_kbatch.bucket.objects import CreateAnswer, Objects
from spark_kbatch.errors import ObjectAccessDeniedError

CREATORS = 16
_CONTESTED, _LOOKED_AT = 5, 16
_PATIENCE_S = 60


def probe(objects: Objects, rng: random.Random) -> list[str]:
    """Return what a store does wrong, as sentences; nothing if it passed.

    Args:
        objects: at the place where a cluster is to be; what is put there is deleted again, if that is allowed.
        rng: for names.

    Raises:
        ObjectStoreError, ObjectAccessDeniedError: the store failed, or does not let this process do that.
    """
    folder = f"probe/{names.random_id(rng)}/"
    contested = [f"{folder}contested-{number}" for number in range(_CONTESTED)]
    looked_at = [f"{folder}looked-at-{number:02d}" for number in range(_LOOKED_AT)]
    found = [*_contest(objects, contested)]
    for name in looked_at:
        found += _look(objects, folder, name)
    with contextlib.suppress(ObjectAccessDeniedError):  # A writer may not have the right to delete.
        objects.delete([*contested, *looked_at])
    return found


def _contest(objects: Objects, contested: Sequence[str]) -> list[str]:
    """Create each object many times at once."""
    start = threading.Barrier(CREATORS)

    def create(content: bytes) -> list[CreateAnswer]:
        answers = []
        for name in contested:
            start.wait(_PATIENCE_S)
            answers.append(objects.create(name, content))
        return answers

    contents = [f"creator {number}".encode() for number in range(CREATORS)]
    with ThreadPoolExecutor(CREATORS, "kbatch-probe") as pool:
        answers = [*pool.map(create, contents)]
    found = []
    for at, name in enumerate(contested):
        by_creator = [of_creator[at] for of_creator in answers]
        found += _judged(name, objects.get(name), contents, by_creator)
    return found


def _judged(
    name: str, there: bytes | None, contents: Sequence[bytes], answers: Sequence[CreateAnswer]
) -> list[str]:
    """Return what is wrong with the answers to creates of one name, given what is there."""
    if there not in contents:
        return [f"{CREATORS} processes created {name}, and what is there is none of theirs"]
    winners = [number for number, one in enumerate(answers) if one is CreateAnswer.CREATED]
    if len(winners) > 1:
        return [
            f"{len(winners)} of {CREATORS} processes that created {name} were told that they did"
        ]
    # The winner's answer may have been lost.
    is_lost = answers[contents.index(there)] is CreateAnswer.UNKNOWN
    if winners and contents[winners[0]] != there:
        return [
            f"the process that was told that it created {name} is not the one whose content is there"
        ]
    if not winners and not is_lost:
        return [f"the process whose content is in {name} was told that another one created it"]
    return []


def _look(objects: Objects, folder: str, name: str) -> list[str]:
    """Look at an object that is missing, then create it, and look again at once."""
    if objects.get(name) is not None:
        return [f"{name} is there before anyone created it"]
    objects.create(name, b"first")
    found = []
    if objects.get(name) != b"first":
        found.append(f"{name} was read while it was missing, and is not seen after its creation")
    if name not in [one.name for one in objects.list(folder)]:
        found.append(f"{name} is not in a list that was asked for after its creation")
    if objects.create(name, b"second") is CreateAnswer.CREATED or objects.get(name) == b"second":
        found.append(f"{name} was created while it was there")
    return found
