"""The rights of a process at a place in a store: each is tried, and named as the store's policies name it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from spark_kbatch.bucket import names
from spark_kbatch.bucket.objects import Objects
from spark_kbatch.bucket.place import read_cluster
from spark_kbatch.bucket.probe import probe
from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.bucket.urls import checked, objects_at
from spark_kbatch.errors import NoCredentialsError, ObjectAccessDeniedError
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, StoreOptions, store_kind

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
        found = read_cluster(place)
        if found is not None:
            cluster_id = found.cluster_id
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
