"""Tests of a store: does it do what a ledger stands on, and what does it let this process do?

Before a cluster is put into a store:

- Of 16 that create the same object at the same time one succeeds, and what is there is that one's. Tried with
  five names, all creators starting each name together.
- An object that was read while it was missing is seen by the next read, and by the next list, after its creation.
  Tried with 16 names.
- An object that is there is not created again.

A store that fails here loses commits. That it passes proves little, but stores that check a name and then put
the object, in two steps, were found by it each time.

On request each right of this process is tried as well, and named as the store's policies name it.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from spark_kbatch.bucket.objects import CreateAnswer, Objects
from spark_kbatch.bucket.place import read_cluster
from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.bucket.urls import checked, objects_at
from spark_kbatch.errors import NoCredentialsError, ObjectAccessDeniedError
from spark_kbatch.ledger import names
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, StoreOptions, store_kind

CREATORS = 16
_CONTESTED, _LOOKED_AT = 5, 16
_PATIENCE_S = 60

LIST, GET, PUT, DELETE = "list", "get", "put", "delete"
READING, WRITING, MAINTENANCE = "reading", "writing", "maintenance"
_NEEDED_FOR = {LIST: READING, GET: READING, PUT: WRITING, DELETE: MAINTENANCE}
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_NAMES = {
    "s3": {
        LIST: "s3:ListBucket", GET: "s3:GetObject", PUT: "s3:PutObject", DELETE: "s3:DeleteObject",
    },
    "azure": {
        LIST: f"{_BLOBS}/read", GET: f"{_BLOBS}/read", PUT: f"{_BLOBS}/write", DELETE: f"{_BLOBS}/delete",
    },
    "google": {
        LIST: "storage.objects.list", GET: "storage.objects.get", PUT: "storage.objects.create",
        DELETE: "storage.objects.delete",
    },
}  # fmt: skip


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
    found = [*contest(objects, contested)]
    for name in looked_at:
        found += look(objects, folder, name)
    with contextlib.suppress(ObjectAccessDeniedError):  # A writer may not have the right to delete.
        objects.delete([*contested, *looked_at])
    return found


def contest(objects: Objects, contested: Sequence[str]) -> list[str]:
    """Create each object many times at once, and return what is wrong with it."""
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


def look(objects: Objects, folder: str, name: str) -> list[str]:
    """Look at a missing object, create it, look again at once, and return what is wrong."""
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


class TriedRight(NamedTuple):
    """A right that was tried."""

    what: str  # LIST, GET, PUT or DELETE
    name: str  # as the store's policies name it
    needed_for: str
    refusal: str  # what the store said; empty where it let the process do it

    @property
    def is_allowed(self) -> bool:
        """Whether the process has it."""
        return not self.refusal


class TriedStore(NamedTuple):
    """The rights of a process in a store, and whether the store does what a ledger needs."""

    rights: tuple[TriedRight, ...]
    faults: tuple[str, ...] | None  # of the store; None if that was not tried, for want of a right
    cluster_id: str  # empty if there is none, or it cannot be read
    entries: int  # of its ledger
    left: str  # name of an object that was put, and may not be deleted; empty if there is none

    def may(self, needed_for: str) -> bool:
        """Return True if the process has all rights for reading, writing or maintenance."""
        return all(right.is_allowed for right in self.rights if right.needed_for == needed_for)


def try_store(url: str, options: StoreOptions = NO_STORE_OPTIONS) -> TriedStore:
    """Try each right at the URL of a bucket, and the store, whether or not a cluster is there.

    Raises:
        ConfigError: the URL, the library or an option cannot be used.
        NoCredentialsError: none were found.
        ObjectStoreError: the store gives no answer.
        CorruptLedgerError, UnsupportedLedgerError: the ledger there cannot be read.
    """
    address = checked(url)
    return tried(objects_at(address, options, create=True), address)


def tried(place: Objects, address: str) -> TriedStore:
    """Try the objects at an address; raises as `try_store`."""
    rng = random.Random()
    name = f"probe/{names.random_id(rng)}/right"
    refusals = {
        LIST: _refusal(lambda: next(iter(place.list("probe/")), None)),
        PUT: _refusal(lambda: place.put(name, b"to try a right")),
    }
    is_put = not refusals[PUT]
    refusals[GET] = _refusal(lambda: place.get(name if is_put else names.CLUSTER))
    refusals[DELETE] = _refusal(lambda: place.delete([name]))
    known = _NAMES.get(store_kind(address), {})
    rights = tuple(
        TriedRight(what, known.get(what, what), _NEEDED_FOR[what], refusals[what])
        for what in (LIST, GET, PUT, DELETE)
    )
    may_probe = is_put and not refusals[LIST] and not refusals[GET]
    faults = tuple(probe(place, rng)) if may_probe else None
    cluster_id, entries = "", 0
    if not refusals[GET] and not refusals[LIST]:
        cluster_id = read_cluster(place) or ""
        if cluster_id:
            with SharedLedger(address, place, cluster_id).state() as state:
                entries = state.number + 1
    return TriedStore(
        rights, faults, cluster_id, entries, name if is_put and refusals[DELETE] else ""
    )


def _refusal(ask: Callable[[], object]) -> str:
    """Return what the store says if it does not let the process do something; empty if it does."""
    try:
        ask()
    except NoCredentialsError:
        raise  # nothing is known of any right
    except ObjectAccessDeniedError as error:
        return str(error)
    return ""
