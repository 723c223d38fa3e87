"""The one place where a store is opened: its address tells which kind it is.

a folder                a cluster's, or, read-only, a real broker's logs
HOST:PORT,...           a real cluster
memory://NAME           topics in this process
s3://BUCKET/PREFIX      a cluster in a bucket; also gs, abfss, az, and file+bucket for tests
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_kbatch.catalog.metadata import Metadata
from spark_kbatch.cluster.folder_store import FolderStore
from spark_kbatch.cluster.foreign_store import ForeignStore
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import ConfigError
from spark_kbatch.files import Files, LinkedFiles
from spark_kbatch.log.foreign.log_dir import WHAT_IS_LOOKED_FOR, ForeignLogDir
from spark_kbatch.options.object_store import StoreOptions, parse_store_options
from spark_kbatch.options.paths import StrPath, absolute_path, bucket_scheme, is_in_memory
from spark_kbatch.options.read import DEFAULT_PATIENCE, Patience
from spark_kbatch.options.remote import ClusterOptions, is_address, parse_client_options
from spark_kbatch.store.os_errors import translating
from spark_kbatch.store.store import Store

if TYPE_CHECKING:
    from spark_kbatch.bucket.store import BucketStore


def is_of_real_cluster(address: StrPath) -> bool:
    """Return True if an address is HOST:PORT of a real cluster, or several, and no folder's name."""
    return isinstance(address, str) and is_address(address) and not Path(address).exists()


@translating
def open_store(
    address: StrPath | ClusterOptions,
    *,
    create: bool = False,
    log_dirs: str | Sequence[StrPath] = (),
    foreign_end: str | None = None,
    client: Mapping[str, Any] | None = None,
    store: StoreOptions | None = None,
    patience: Patience = DEFAULT_PATIENCE,
    implied: bool = True,
    files: Files | None = None,
) -> Store:
    """Open the store at an address. Of a real cluster nothing is asked yet.

    Args:
        address: see above; or the options of a real cluster, parsed.
        create: whether to create a cluster in a folder or a bucket, or a place in memory, if there is none.
        log_dirs: of a cluster that is created in a folder.
        foreign_end: where a broker's logs end: "log" or "checkpoint", if that is given.
        client: of a real cluster, options of the client by Kafka's keys, without its servers; of a bucket, options
            of its store by key.
        store: of a bucket, options of its store, parsed.
        patience: of reads, with a real cluster.
        implied: whether no one asked for the creation: a cluster is created because it is written to, and told as
            a warning.
        files: the disk; for tests.

    Raises:
        ConfigError: nothing is there; says what was looked for. Or an option is not accepted.
    """
    if not isinstance(address, ClusterOptions) and is_of_real_cluster(address):
        address = parse_client_options(address, client or {})
    if isinstance(address, ClusterOptions):
        # The network's modules are loaded only for a real cluster.
        from spark_kbatch.remote.store import RemoteStore  # noqa: PLC0415

        return RemoteStore(address, patience)
    if client and not bucket_scheme(address):
        raise ConfigError(f"{address!r} is a folder, for which no options of a client can be given")
    if is_in_memory(address):
        from spark_kbatch.memory.store import MemoryStore  # noqa: PLC0415  loads the producer

        return MemoryStore(str(address), create=create)
    if bucket_scheme(address):
        return open_bucket(address, client=client, store=store, create=create, implied=implied)
    if create:
        parts = FolderParts(address, create=True, log_dirs=log_dirs, files=files, implied=implied)
        return FolderStore(parts)
    logs = _broker_logs(address, foreign_end, files or LinkedFiles())
    if logs is not None:
        return logs
    try:
        return FolderStore(FolderParts(address, log_dirs=log_dirs, files=files))
    except ConfigError as error:
        raise ConfigError(f"{error}; {WHAT_IS_LOOKED_FOR}") from None


@translating
def open_bucket(
    address: StrPath,
    *,
    client: Mapping[str, Any] | None = None,
    store: StoreOptions | None = None,
    create: bool = False,
    implied: bool = True,
) -> BucketStore:
    """Open the store of the cluster in a bucket, as `open_store` does."""
    from spark_kbatch.bucket.store import BucketStore  # noqa: PLC0415  as for the network

    if store is None:
        store = parse_store_options(client or {}, address, alone=True)
    return BucketStore(str(address), store, create=create, implied=implied)


def _broker_logs(path: StrPath, foreign_end: str | None, files: Files) -> ForeignStore | None:
    """Return a Kafka broker's logs at a path; None if a cluster, or neither, is there.

    Raises:
        ConfigError: PATH cannot be read, or lies inside a cluster.
    """
    metadata = Metadata(files, absolute_path(path))
    if metadata.cluster_file.exists():
        return None
    metadata.cluster_file.ensure_not_inside_a_cluster()
    try:
        log_dir = ForeignLogDir.find(files, metadata.path)
    except OSError as error:
        raise ConfigError(f"{metadata.path} cannot be read: {error.strerror or error}") from error
    if log_dir is None:
        return None
    return ForeignStore(metadata.path, log_dir, foreign_end=foreign_end)
