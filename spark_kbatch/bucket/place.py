"""The object that says which cluster lies at a place in a bucket.

It is created once, with the cluster, and replaced only where a cluster is recovered under another id.

    {"id":"3f..","probe":"..","v":2}     and its sum, as `ledger.checksummed_json` says

It is small and alone, so it may be lost, and all else be there. A folder that is named by an id and
has a ledger is a cluster then: nothing is created over it, and a repair puts the object again. Who
creates a cluster puts this object before the first entry, so that no folder has a ledger before.

`probe` is what was found out about the store. All else of the cluster lies in a folder with its id, so that a
process that knew an earlier cluster at the place meets nothing of this one.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_kbatch.bucket.objects import Objects, create_or_get, read_twice
from spark_kbatch.errors import ClusterReplacedError, ConfigError, CorruptLedgerError
from spark_kbatch.ledger import checksummed_json, names
from spark_kbatch.ledger.checksummed_json import ensure_version

_VERSION = 2
_ATTEMPTS_MAX = 10
_PAUSE_MS = 200
_AFTER_SLASH = (
    "0"  # the next letter: behind all names in a folder, and before those of the next one
)


def read_cluster(place: Objects) -> str | None:
    """Return the id of the cluster at a place; None if none is there.

    Raises:
        CorruptLedgerError: the object is damaged.
        UnsupportedLedgerError: another version has written it.
    """
    data = place.get(names.CLUSTER)
    return None if data is None else read_twice(data, _parsed, lambda: place.get(names.CLUSTER))[1]


def readable_cluster(place: Objects) -> str | None:
    """Return the id of the cluster at a place; None if none is there, or the object is damaged.

    Raises:
        UnsupportedLedgerError: another version has written it.
    """
    try:
        return read_cluster(place)
    except CorruptLedgerError:
        return None


def cluster_id_at(url: str, place: Objects) -> str | None:
    """Return the id of the cluster at a place, also where the object that names it is missing or damaged.

    Raises:
        ConfigError: there are folders of several clusters, and nothing tells which one it is.
        UnsupportedLedgerError: another version has written the object.
    """
    found = readable_cluster(place)
    if found is not None:
        return found
    ids = cluster_folders(place)
    if len(ids) > 1:
        raise ConfigError(
            f"the object {names.CLUSTER!r} at {url} cannot be read, and there are folders of several clusters, "
            f"{', '.join(ids)}: move all but one of them away"
        )
    return ids[0] if ids else None


def cluster_folders(place: Objects) -> list[str]:
    """Return the ids of all clusters that have a ledger at a place, whatever names them.

    It takes a request for each folder at the place, and each thousand objects beside them.
    """
    folders, listed = list[str](), place.list("")
    while (one := next(listed, None)) is not None:
        folder, is_inside, _ = one.name.partition("/")
        if is_inside:
            folders.append(folder)
            listed = place.list("", f"{folder}{_AFTER_SLASH}")
    ids = filter(names.RANDOM_ID.fullmatch, folders)
    return [one for one in ids if any(place.list(f"{one}/{names.LEDGER}"))]


def ensure_no_cluster(place: Objects) -> None:
    """Check that no cluster is at a place, after the object that names it was not found.

    Raises:
        CorruptLedgerError: one is there, and the object is lost.
    """
    ids = cluster_folders(place)
    # It may have been created since: then the object was there before the ledger that is listed.
    if ids and read_cluster(place) is None:
        raise CorruptLedgerError(
            names.CLUSTER,
            f"it is missing, and the ledger of {' and of '.join(ids)} is there, over which nothing is "
            "created",
        )


def _parsed(data: bytes) -> str:
    found = checksummed_json.decode(data, names.CLUSTER)
    ensure_version(found, _VERSION)
    found.text("probe")  # for people
    return found.text("id", names.RANDOM_ID)


def create_cluster(
    place: Objects, cluster_id: str, probe: str, sleep_ms: Callable[[float], object]
) -> str:
    """Put a cluster at a place, and return its id, or that of the one that someone else has put there before.

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
    return checksummed_json.encode({"id": cluster_id, "probe": probe, "v": _VERSION})


def ensure_cluster(place: Objects, cluster_id: str) -> None:
    """Check that a cluster still lies at a place.

    Raises:
        ClusterReplacedError: it does not.
        CorruptLedgerError: the object that tells is lost, or damaged.
    """
    found = read_cluster(place)
    if found is None:
        ensure_no_cluster(place)
    if found != cluster_id:
        raise ClusterReplacedError(cluster_id, found or "")
