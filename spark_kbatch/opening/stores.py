"""The one place where a store is opened: its address tells which kind it is.

a folder                a cluster's, or, read-only, a real broker's logs
HOST:PORT,...           a real cluster
memory://NAME           topics in this process
s3://BUCKET/PREFIX      a cluster in a bucket; also gs, abfss, az, and file+bucket for tests

Over a store are the object that users get, the readers of Spark's tasks and streams, and a Spark
job's write, which is begun on the driver. Nothing here imports pyspark.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_kbatch.catalog.metadata import Metadata
from spark_kbatch.clock import monotonic_ms
from spark_kbatch.cluster import parts as folder_parts
from spark_kbatch.cluster.folder_store import FolderStore
from spark_kbatch.cluster.foreign_store import ForeignStore
from spark_kbatch.consumer import planning
from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.errors import ConfigError
from spark_kbatch.files import Files, LinkedFiles
from spark_kbatch.log.foreign.log_dir import WHAT_IS_LOOKED_FOR, ForeignLogDir
from spark_kbatch.model import IsolationLevel, TopicPartition
from spark_kbatch.opening.cluster import Cluster
from spark_kbatch.options import arguments
from spark_kbatch.options.object_store import StoreOptions, parse_store_options
from spark_kbatch.options.paths import StrPath, absolute_path, bucket_scheme, is_in_memory
from spark_kbatch.options.read import DEFAULT_PATIENCE, Patience, ReadOptions
from spark_kbatch.options.remote import ClusterOptions, is_address, parse_client_options
from spark_kbatch.options.write import WriteOptions, parse_foreign_end
from spark_kbatch.store.job import WriteJob
from spark_kbatch.store.os_errors import translating
from spark_kbatch.store.reports import GivenUp
from spark_kbatch.store.source import Source
from spark_kbatch.store.store import Groups, Store

if TYPE_CHECKING:
    from spark_kbatch.bucket.store import BucketStore
    from spark_kbatch.cluster.transactions.administration import FolderTransactions
    from spark_kbatch.consumer.following import Following, Read
    from spark_kbatch.consumer.stream_planner import OnProcessed, StreamPlanner

# A commit of a group's offsets reads all of `__consumer_offsets`, or connects to the server.
_FOLDER_COMMIT_MS = 10_000
_BUCKET_COMMIT_MS = 60_000  # it is an entry, for which the store is paid, and which all others read


def store_of(cluster: Cluster) -> Store:
    """Return the store that a cluster is over, which has more to tell than users are promised."""
    return cluster._store  # noqa: SLF001  of the same room


def is_of_real_cluster(address: StrPath) -> bool:
    """Return True if an address is HOST:PORT of a real cluster, or several, and no folder's name."""
    return isinstance(address, str) and is_address(address) and not Path(address).exists()


def ensure_not_refused(address: str, client: Mapping[str, Any], *, within_ms: int) -> None:
    """Refuse a real cluster whose servers all refuse connections for so long, as a user waits.

    Raises the errors of `parse_client_options`, and that of `remote.client.ensure_not_refused`.
    """
    from spark_kbatch.remote.client import ensure_not_refused  # noqa: PLC0415  for these alone

    ensure_not_refused(parse_client_options(address, client), within_ms)


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
        parts = folder_parts.FolderParts(
            address, create=True, log_dirs=log_dirs, files=files, implied=implied
        )
        return FolderStore(parts)
    logs = _broker_logs(address, foreign_end, files or LinkedFiles())
    if logs is not None:
        return logs
    try:
        return FolderStore(folder_parts.FolderParts(address, log_dirs=log_dirs, files=files))
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


def open_place(
    path: StrPath,
    *,
    create: bool,
    log_dirs: str | Sequence[StrPath],
    without_nodes: Collection[int] | None,
    foreign_end: str | None,
    store: Mapping[str, str] | None,
) -> Cluster:
    """Open the cluster, or a real broker's logs, at `path`; or connect to a real cluster.

    Raises:
        ConfigError: nothing is there, or the arguments do not go together; says what to do.
    """
    parse_foreign_end("foreign_end", foreign_end)
    arguments.boolean("create", create)
    if store is not None:
        store = arguments.options("store", store, "store.endpoint")
    if is_in_memory(path) or bucket_scheme(path):
        if log_dirs != () or without_nodes is not None or foreign_end is not None:
            raise ConfigError(
                f"{path} takes no log_dirs, without_nodes or foreign_end: it has no files"
            )
        return Cluster.over(open_store(path, create=create, client=store, implied=False))
    if store is not None:
        raise ConfigError(f"store has options of a bucket's store, and {path!r} is no bucket's URL")
    if create:
        if isinstance(path, str) and is_address(path):
            raise ConfigError(
                f"path is {path!r}, which looks like the address of a real cluster, which is reached by "
                f"spark_kbatch.connect({path!r}); a folder of this name is './{path}'"
            )
        return Cluster(path, create=True, log_dirs=log_dirs, without_nodes=without_nodes)
    if without_nodes is not None:
        raise ConfigError(
            "without_nodes says what to give up in a restore; it goes with create=True"
        )
    if log_dirs != ():
        raise ConfigError(
            f"log_dirs is {arguments.shown(log_dirs)}, which says where a new cluster keeps its logs; it "
            "goes with create=True"
        )
    if is_of_real_cluster(path):
        if foreign_end is not None:
            raise ConfigError("foreign_end is for a broker's log dir, not for a real cluster")
        return connect(str(path), None, {})
    return open_for_reading(path, foreign_end=foreign_end)


def open_for_reading(
    address: StrPath,
    *,
    foreign_end: str | None = None,
    client: Mapping[str, Any] | None = None,
    files: Files | None = None,
) -> Cluster:
    """Open what lies at an address as the object that users get; arguments and errors are those of `open_store`."""
    return Cluster.over(open_store(address, foreign_end=foreign_end, client=client, files=files))


def connect(bootstrap_servers: Any, config: Any, options: Mapping[str, Any]) -> Cluster:
    """Connect to a real Kafka cluster, with the arguments and errors of `spark_kbatch.connect`."""
    # The network's modules are loaded only for a real cluster.
    from spark_kbatch.remote.store import RemoteStore, parse_connection  # noqa: PLC0415

    store = RemoteStore(parse_connection(bootstrap_servers, config, options))
    store.ensure_answers()
    return Cluster.over(store)


@translating
def open_transactions(path: StrPath) -> FolderTransactions:
    """Open what shows and ends the transactions of Kafka's clients, of the cluster in a folder.

    Raises:
        ConfigError: there is no cluster.
    """
    from spark_kbatch.cluster.transactions.administration import (  # noqa: PLC0415  few ask for them
        FolderTransactions,
    )

    return FolderTransactions(folder_parts.FolderParts(path))


def open_reader(
    address: StrPath, *, foreign_end: str | None = None, client: Mapping[str, Any] | None = None
) -> TopicReader:
    """Return a reader of the topics at an address, to plan and run reads.

    Arguments and errors are those of `open_store`.
    """
    return TopicReader(open_store(address, foreign_end=foreign_end, client=client).source)


def open_following(
    reader: TopicReader,
    choose: Callable[[TopicReader], Mapping[TopicPartition, str]],
    is_named: Callable[[str], bool],
    isolation: IsolationLevel,
    starts: Mapping[TopicPartition, int],
    read: Read,
    stop: Callable[[], object],
) -> Following:
    """Return a loop over records as they come; arguments as of `Looks` and `Following`."""
    from spark_kbatch.consumer.following import Following, Looks  # noqa: PLC0415  loads asyncio

    topics = reader.source.existing_topics({tp.topic for tp in starts})
    ids = {name: one.topic_id for name, one in topics.items()}
    looks = Looks(reader.source.polled(), choose, is_named, isolation, ids, starts)
    return Following(looks, read, stop=stop)


def _store_of(options: ReadOptions) -> Store:
    return open_store(
        options.cluster or options.path,
        foreign_end=options.foreign_end,
        store=options.store,
        patience=options.patience,
    )


def open_topics(options: ReadOptions) -> TopicReader:
    """Return a reader of the topics in the place that Spark's read options name.

    Raises the errors of `open_store`, or if the real cluster cannot be reached.
    """
    return TopicReader(_store_of(options).source)


def ensure_selection_exists(options: ReadOptions, *, is_batch: bool) -> None:
    """Check that the topics and partitions that read options name exist; for a batch, the offsets too.

    A stream that resumes from its checkpoint does not need what its starting offsets name.

    Raises the errors of `planning.ranges`.
    """
    topics = open_topics(options).source
    if is_batch:
        planning.ranges(options, topics)
    else:
        planning.selected(options.selection, topics, strict=options.fail_on_data_loss)


def open_stream(options: ReadOptions) -> StreamPlanner:
    """Return the planner of one run of a streaming query; it opens the topics again for each call.

    Raises:
        ConfigError: it is to commit to a consumer group, and the place keeps none.
    """
    # Tasks and batch reads do not need it.
    from spark_kbatch.consumer.stream_planner import StreamPlanner  # noqa: PLC0415

    def open_source() -> Source:
        return open_topics(options).source

    if bucket_scheme(options.path):  # whose ledger need not be read from the start each time
        open_source = _polled(options)
    return StreamPlanner(options, open_source, monotonic_ms, _commits_to_group(options))


def _commits_to_group(options: ReadOptions) -> OnProcessed | None:
    """Return what commits how far a stream has read to the group that its options name; None if they name none.

    Raises the errors of `_groups_of`.
    """
    if options.commit_group_id is None:
        return None
    from spark_kbatch.consumer.group_commits import GroupCommits  # noqa: PLC0415  few streams do

    found = _groups_of(options)
    is_in_bucket = options.cluster is None and bool(bucket_scheme(options.path))
    pause_ms = _BUCKET_COMMIT_MS if is_in_bucket else _FOLDER_COMMIT_MS
    return GroupCommits(
        options.commit_group_id,
        # As they are then, like the topics; but a bucket's ledger is followed, not opened again.
        lambda: found if is_in_bucket else _groups_of(options),
        monotonic_ms,
        pause_ms=pause_ms if options.cluster is None else 0,
    ).commit


def _groups_of(options: ReadOptions) -> Groups:
    """Return the consumer groups of the place that read options name.

    Raises:
        ConfigError: it keeps none, or they are only read.
    """
    store = _store_of(options)
    if store.groups is None or store.catalog is None:
        raise ConfigError(
            f"option 'commit.group.id' is {options.commit_group_id!r}, and {store.address} keeps no consumer groups: "
            f"{store.why_not}; leave the option out"
        )
    return store.groups


def _polled(options: ReadOptions) -> Callable[[], Source]:
    @functools.cache
    def polled() -> Callable[[], Source]:
        return open_bucket(options.path, store=options.store).polled(options.poll_ms)

    return lambda: polled()()


def with_absolute_path(options: ReadOptions) -> ReadOptions:
    """Return read options with an absolute path, so that they mean the same in every process.

    Raises the errors of `open_store`.
    """
    if options.cluster is not None:
        return options
    return replace(options, path=_store_of(options).address)


def cluster_to_write(path: StrPath, client: Mapping[str, Any] | None = None) -> Cluster:
    """Open the cluster at `path` for a command that writes; if there is none, create it and log that.

    Args:
        path: of a folder or a bucket.
        client: options of the bucket's store.
    """
    return Cluster.over(open_store(path, create=True, client=client))


def given_up_by_restore(
    path: StrPath, log_dirs: str | Sequence[StrPath], without_nodes: Collection[int]
) -> list[GivenUp] | None:
    """Return what is given up if a lost or old `path` is restored without the log dirs of some nodes.

    Nothing is changed. Changes that only those log dirs know are not in it.

    Args:
        path, log_dirs, without_nodes: as for the restore, see `Cluster`.

    Returns:
        What is given up, by partition; None if no node would be given up.

    Raises:
        ConfigError: the folders are of different clusters.
    """
    return folder_parts.given_up_by_restore(path, log_dirs, without_nodes)


def begin_job(
    options: WriteOptions, *, overwrite: bool = False, is_micro_batch: bool = False
) -> WriteJob:
    """Begin a write to the place that its options name, and return the job.

    A cluster in a folder is created if there is none and `auto.create.topics.enable` lets it. There, a topic that
    does not exist is created by the commit; in a real cluster now, or by the first rows of a micro-batch, if
    `num.partitions` is given.

    Raises the errors of `Store.begin_job`.
    """
    if overwrite and options.topic is None and options.cluster is None:
        raise ConfigError(
            "save mode \"overwrite\" needs the option 'topic': it replaces all that the topic holds"
        )
    store = open_store(
        options.cluster or options.path,
        create=options.auto_create_topics_enable,
        log_dirs=options.log_dirs,
        store=options.store,
    )
    return store.begin_job(options, overwrite=overwrite, is_micro_batch=is_micro_batch)
