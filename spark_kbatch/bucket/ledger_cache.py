"""A cache of ledgers on this machine, so that a new process need not read a checkpoint and the entries after it.

A job opens its cluster in several processes, one after the other. Each of them leaves the objects that its state was
made of in a file; `ledger` says how the next one uses them, and `machine_files` how files are kept.

    [format, store, cluster id, proved ms, followed ms, [number, root, entry, heads] or null, [entry, ...]]

`store` is what leads to the store, without anything secret: the URL, options, and hashes of variables of the
environment. So what is known of a place in one store is not taken for the same place in another one. Each object has its own sum
too, and each entry the id of the one before it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_kbatch.bucket.checkpoints import CheckpointObjects
from spark_kbatch.bucket.ledger import KnownLedger
from spark_kbatch.machine_files import MachineFiles, digest_of
from spark_kbatch.options.object_store import StoreOptions

_FORMAT = 1
_OF_STORES = ("AWS_", "AZURE_", "AZURITE_", "GOOGLE_")
_SECRET = re.compile("KEY|SECRET|TOKEN|PASSWORD|SAS|CREDENTIAL|CONNECTION_STRING|SIGNATURE")


def store_of(url: str, options: StoreOptions, environment: Mapping[str, str] = os.environ) -> str:
    """Return a text that differs where the same URL may lead to another store, without anything secret."""
    variables = {
        name: digest_of(value.encode())  # an address may have a password in it
        for name, value in sorted(environment.items())
        if name.upper().startswith(_OF_STORES) and not _SECRET.search(name.upper())
    }
    return json.dumps([url, options.shown(), variables])


class LedgerCache:
    """The cache of the ledger at one URL. Thread-safe."""

    def __init__(self, store: str, *, folder: Path | None = None) -> None:
        """Remember the ledger of a place.

        Args:
            store: of `store_of`.
            folder: of all stores; None for the one of this machine.
        """
        self._store = store
        self._files = MachineFiles("spark_kbatch-ledgers", store, folder=folder)

    def get(self, cluster_id: str) -> KnownLedger | None:
        """Return what is known of a cluster's ledger; None if nothing is, or it is damaged, or of another cluster."""
        try:
            version, store, known_id, proved_ms, followed_ms, checkpoint, entries = self._files.get("ledger")  # fmt: skip
            if (version, store, known_id) != (_FORMAT, self._store, cluster_id):
                return None
            return KnownLedger(
                cluster_id,
                int(proved_ms),
                int(followed_ms),
                None if checkpoint is None else _checkpoint(*checkpoint),
                tuple(map(_bytes, entries)),
            )
        except (ValueError, TypeError, AttributeError):
            return None

    def put(self, known: KnownLedger) -> None:
        """Remember a ledger, if that is possible."""
        checkpoint: list[Any] | None = None
        if known.checkpoint is not None:
            number, *objects = known.checkpoint
            checkpoint = [number, *map(_text, objects)]
        self._files.put(
            "ledger",
            [
                _FORMAT, self._store, known.cluster_id, known.proved_ms, known.followed_ms, checkpoint,
                [*map(_text, known.entries)],
            ],
        )  # fmt: skip

    def clear(self) -> None:
        """Forget the ledger."""
        self._files.clear()


def _checkpoint(number: Any, *objects: Any) -> CheckpointObjects:
    return CheckpointObjects(int(number), *map(_bytes, objects))


def _text(data: bytes) -> str:
    return data.decode("latin-1")  # any bytes, and nearly all of them are ASCII


def _bytes(text: Any) -> bytes:
    data: bytes = text.encode("latin-1")
    return data
