"""The objects at the URL of a cluster in a bucket.

    s3://BUCKET/PREFIX, s3a://...   Amazon S3, and stores that speak its protocol
    gs://BUCKET/PREFIX              Google Cloud Storage
    abfss://..., abfs://, az://     Azure Blob Storage
    file+bucket:///FOLDER           a folder of this machine, for tests: it is used as a store of objects
    memory+bucket://NAME            the memory of this process, for tests

What else a store needs, such as credentials, region and endpoint, is in options `store.*`, or else in the
environment, by the names that the library of the store has for it.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from spark_kbatch.bucket.ledger import KnownLedger, Ledger, Timing, real_timing
from spark_kbatch.bucket.objects import MemoryObjects, Objects
from spark_kbatch.bucket.place import ensure_no_cluster, read_cluster
from spark_kbatch.bucket.real_objects import FunctionCredentials, RealObjects
from spark_kbatch.bucket.shared_ledger import LedgerCache, store_of
from spark_kbatch.clock import monotonic_ms
from spark_kbatch.errors import ConfigError, ObjectAccessDeniedError, ObjectStoreError
from spark_kbatch.files import Files
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, StoreOptions, store_kind
from spark_kbatch.options.paths import FILE_BUCKET, MEMORY_BUCKET, bucket_scheme

_ALLOW_HTTP = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")

# Of these the library takes what is not in the options.
_VARIABLES = re.compile(r"(AWS|AZURE|GOOGLE)_.*|.*_PROXY", re.IGNORECASE)
_OPENED_MAX = 16
_OPENED_AGE_MAX_MS = 600_000  # a file with credentials may be another one after a while

_in_memory: dict[str, Objects] = {}  # by URL
_mutex = threading.Lock()  # held to change the next; innermost
_opened: dict[object, tuple[int, RealObjects]] = {}  # when each was; the latest one at the end
_caches_in_tests: dict[str, LedgerCache] = {}  # by URL


def objects_at(
    url: str, store: StoreOptions = NO_STORE_OPTIONS, *, create: bool = False
) -> Objects:
    """Return the objects at a URL, as `checked` returned it, without a request.

    Args:
        url: see above.
        store: options of the store.
        create: whether to create the folder, or the place in memory, if there is none.

    Raises:
        ConfigError: there is none; or the library is missing, or refuses the URL.
    """
    scheme, _, rest = url.partition("://")
    if scheme == MEMORY_BUCKET:
        if create:
            _in_memory.setdefault(url, MemoryObjects())
        if url not in _in_memory:
            raise nothing_at(url)
        return _in_memory[url]
    if scheme != FILE_BUCKET:
        return _in_store(url, store)
    folder, files = Path(unquote(rest)), Files()
    if create:
        files.make_dir(folder)
    elif not files.is_dir(folder):
        raise nothing_at(url)
    return RealObjects(folder.as_uri())


def _in_store(url: str, store: StoreOptions) -> RealObjects:
    """Return the objects at a URL of a store, those that this process has opened already if nothing has changed.

    Spark's processes do one piece of a job after the other. A new client costs 9 ms of CPU, its connections some round
    trips, and its credentials a request or a call of the user's function.
    """
    variables = tuple((name, value) for name, value in os.environ.items() if _VARIABLES.fullmatch(name))  # fmt: skip
    key = os.getpid(), url, store, variables
    opened_ms, found = _opened.get(key, (0, None))
    if found is None or monotonic_ms() - opened_ms >= _OPENED_AGE_MAX_MS:
        found = _new_objects(url, store)
        with _mutex:
            _opened.pop(key, None)
            _opened[key] = monotonic_ms(), found
            while len(_opened) > _OPENED_MAX:
                del _opened[next(iter(_opened))]
    return found


def impatient(url: str, store: StoreOptions, timeout_ms: float) -> Objects:
    """Return the objects at a URL, where no request waits longer; on this machine as they are."""
    if not store_kind(url):
        return objects_at(url, store)
    return _new_objects(url, store, timeout=timedelta(milliseconds=timeout_ms))


def _new_objects(url: str, store: StoreOptions, **more: Any) -> RealObjects:
    credentials = FunctionCredentials(url, store.credentials) if store.credentials else None
    settings, client = store.library_settings(url), {**_client_options(store), **more}
    return RealObjects(url, settings, client, credentials, store.secrets())


def _client_options(store: StoreOptions) -> dict[str, Any]:
    """Return the settings of connections that the library does not take from the environment by itself."""
    is_allowed = any(os.environ.get(name, "").lower() == "true" for name in _ALLOW_HTTP)
    return {"allow_http": True} if is_allowed or store.endpoint.startswith("http://") else {}


def known_at(
    url: str, store: StoreOptions, cluster_id: str
) -> tuple[LedgerCache | None, KnownLedger | None]:
    """Return where this machine remembers the ledger at a URL, and what it knows of a cluster's.

    Both are None for a store that is on this machine itself.

    Args:
        url, store: see `objects_at`.
        cluster_id: of the cluster there.
    """
    is_here = url.partition("://")[0] in (MEMORY_BUCKET, FILE_BUCKET)
    cache = _caches_in_tests.get(url) if is_here else LedgerCache(store_of(url, store))
    return cache, None if cache is None else cache.get(cluster_id)


def place_in_memory(url: str, objects: Objects, cache: LedgerCache | None = None) -> None:
    """Let objects of a test's own be at a URL of this process's memory, and a cache for them if there is one."""
    _in_memory[url] = objects
    if cache is not None:
        _caches_in_tests[url] = cache


def ledger_at(
    url: str, store: StoreOptions = NO_STORE_OPTIONS, timing: Timing | None = None
) -> Ledger:
    """Open the ledger of the cluster at a URL, for one thread.

    Args:
        url: as `checked` returned it.
        store: options of the store.
        timing: clocks and chance; for tests.

    Raises as `objects_at`, `Ledger`, and ConfigError if no cluster is there.
    """
    place = objects_at(url, store)
    found = read_cluster(place)
    if found is None:
        raise nothing_at(url, place)
    return Ledger(place, found, timing or real_timing())


def nothing_at(url: str, place: Objects | None = None) -> ConfigError:
    """Return the error that no cluster is at a URL.

    Args:
        url: as `checked` returned it.
        place: what is there, if anything can be.

    Raises:
        CorruptLedgerError: there is one, and the object that names it is lost.
    """
    if place is not None:
        with contextlib.suppress(ObjectStoreError, ObjectAccessDeniedError):
            ensure_no_cluster(place)
    return ConfigError(
        f"no cluster is at {url}; create it with spark_kbatch.open({url!r}, create=True), or by a write"
    )


def checked(url: str) -> str:
    """Return a URL in the one form that all processes use.

    Raises:
        ConfigError: it names no bucket or no folder, or has parts that would be changed in silence.
    """
    scheme, rest = bucket_scheme(url), url.partition("://")[2]
    place = rest.partition("/")[0]
    # Azure's have the container there: abfss://CONTAINER@ACCOUNT.dfs.core.windows.net
    if ":" in place or ("@" in place and not scheme.startswith("abfs")):
        raise ConfigError(
            "the URL of a bucket has no user, password or port, and this one has: write "
            f"{scheme}://BUCKET/PREFIX, and give credentials and the address by options store.*"
        )
    if any(one in (".", "..") or "/" in one for one in map(unquote, rest.split("/"))):
        raise ConfigError(
            f"{url!r} has '.', '..' or an escaped '/' in its path, which libraries of stores "
            "resolve as a browser does: write the path that is meant"
        )
    if "?" in rest or "#" in rest:
        raise ConfigError(f"{url!r} has a '?' or '#', which no name of an object here has")
    if re.search(r"[\x00-\x1f\x7f]", unquote(rest)):
        raise ConfigError(f"{url!r} has a control character, which no name of an object here has")
    rest = rest.rstrip("/")
    if scheme == FILE_BUCKET and not rest.startswith("/"):
        raise ConfigError(f"{url!r} names no folder; accepted: {FILE_BUCKET}:///FOLDER")
    if not rest:
        raise ConfigError(f"{url!r} names no bucket; accepted: {scheme}://BUCKET/PREFIX")
    return f"{scheme}://{rest}"
