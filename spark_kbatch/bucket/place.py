"""The object that says which cluster lies at a place in a bucket.

It is created once, with the cluster, and replaced only where a cluster is recovered under another id.

    {"format":1,"id":"3f..","probe":"..","v":1}     sealed

`probe` is what was found out about the store. All else of the cluster lies in a folder with its id, so that a
process that knew an earlier cluster at the place meets nothing of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from spark_kbatch.bucket import names
from spark_kbatch.bucket.entries import FORMAT
from spark_kbatch.bucket.objects import Objects, create_or_get
from spark_kbatch.bucket.sealed import ensure_version, seal, unseal
from spark_kbatch.errors import ClusterReplacedError, ConfigError, CorruptLedgerError

_VERSION = 1
_ATTEMPTS_MAX = 10
_PAUSE_MS = 200


class ClusterObject(NamedTuple):
    """The content of the object."""

    cluster_id: str
    format: int
    probe: str


def read_cluster(place: Objects) -> ClusterObject | None:
    """Return which cluster lies at a place; None if none does.

    Raises:
        CorruptLedgerError: the object is damaged.
        UnsupportedLedgerError: a later version has written it.
    """
    data = place.get(names.CLUSTER)
    return None if data is None else _parsed(data)


def readable_cluster(place: Objects) -> ClusterObject | None:
    """Return which cluster lies at a place; None if none does, or the object is damaged.

    Raises:
        UnsupportedLedgerError: a later version has written it.
    """
    try:
        return read_cluster(place)
    except CorruptLedgerError:
        return None


def cluster_id_at(url: str, place: Objects) -> str | None:
    """Return the id of the cluster at a place, also where the object that names it is missing or damaged.

    Raises:
        ConfigError: there are folders of several clusters, and nothing tells which one it is.
        UnsupportedLedgerError: a later version has written the object.
    """
    found = readable_cluster(place)
    if found is not None:
        return found.cluster_id
    folders = {one.name.partition("/")[0] for one in place.list("")}
    ids = sorted(one for one in folders if names.RANDOM_ID.fullmatch(one))
    if len(ids) > 1:
        raise ConfigError(
            f"the object {names.CLUSTER!r} at {url} cannot be read, and there are folders of several clusters, "
            f"{', '.join(ids)}: move all but one of them away"
        )
    return ids[0] if ids else None


def _parsed(data: bytes) -> ClusterObject:
    found = unseal(data, names.CLUSTER)
    ensure_version(found, _VERSION)
    return ClusterObject(
        found.text("id", names.RANDOM_ID), found.integer("format", 1), found.text("probe")
    )


def create_cluster(
    place: Objects, cluster_id: str, probe: str, sleep_ms: Callable[[float], object]
) -> ClusterObject:
    """Put a cluster at a place, and return it, or the one that someone else has put there before.

    Its ledger is empty: whoever finds it so writes entry 0.

    Raises:
        ObjectStoreError: the store gave no answer.
    """
    data = _packed(cluster_id, probe)
    there = create_or_get(
        place, names.CLUSTER, data, attempts=_ATTEMPTS_MAX, pause_ms=_PAUSE_MS, sleep_ms=sleep_ms
    )
    return _parsed(there)


def replace_cluster(place: Objects, cluster_id: str, probe: str) -> None:
    """Put a cluster at a place in place of the one that is there; raises as `Objects.put`.

    Processes of the earlier one end once they look; nothing of it is deleted.
    """
    place.put(names.CLUSTER, _packed(cluster_id, probe))


def _packed(cluster_id: str, probe: str) -> bytes:
    return seal({"format": FORMAT, "id": cluster_id, "probe": probe, "v": _VERSION})


def ensure_cluster(place: Objects, cluster_id: str) -> None:
    """Check that a cluster still lies at a place.

    Raises:
        ClusterReplacedError: it does not.
    """
    found = read_cluster(place)
    if found is None or found.cluster_id != cluster_id:
        raise ClusterReplacedError(cluster_id, found.cluster_id if found else "")
