"""Opening of a path or an address for reading: a cluster, a broker's logs or a real cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.cluster.folder_store import FolderStore
from spark_kbatch.cluster.foreign_store import ForeignStore
from spark_kbatch.cluster.os_errors import translating
from spark_kbatch.consumer import planning
from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.errors import ConfigError
from spark_kbatch.files import Files
from spark_kbatch.log.foreign.log_dir import WHAT_IS_LOOKED_FOR, ForeignLogDir
from spark_kbatch.opening.cluster import Cluster
from spark_kbatch.options.paths import StrPath, absolute_path
from spark_kbatch.options.read import DEFAULT_PATIENCE, Patience, ReadOptions
from spark_kbatch.options.remote import ClusterOptions, is_address, parse_client_options
from spark_kbatch.replica.metadata import Metadata
from spark_kbatch.store.source import SourceAtPath

if TYPE_CHECKING:
    from spark_kbatch.consumer.stream_planner import StreamPlanner


@translating
def open_for_reading(
    path: StrPath, *, foreign_end: str = "log", files: Files | None = None
) -> Cluster:
    """Open the cluster or the Kafka broker's logs at a path, as the object that users get.

    Args:
        path: a cluster's folder; or a broker's log dir, the directory of a partition in one, or a
            .log file.
        foreign_end: where a broker's logs end: "log" or "checkpoint".
        files: the disk; for tests.

    Raises:
        ConfigError: neither is there; says what was looked for.
    """
    files = files or Files()
    logs = _broker_logs(path, foreign_end, files)
    if logs is not None:
        return Cluster.over(logs)
    with _told_what_is_looked_for(path):
        return Cluster(path, files=files)


def in_memory(address: str, *, create: bool) -> Cluster:
    """Open the topics at an address in this process's memory, "memory://NAME"."""
    from spark_kbatch.memory.store import MemoryStore  # noqa: PLC0415  loads the producer

    return Cluster.over(MemoryStore(address, create=create))


def connect(bootstrap_servers: Any, config: Any, options: Mapping[str, Any]) -> Cluster:
    """Connect to a real Kafka cluster, with the arguments and errors of `spark_kbatch.connect`."""
    # The network's modules are loaded only for a real cluster.
    from spark_kbatch.remote.store import RemoteStore, parse_connection  # noqa: PLC0415

    store = RemoteStore(parse_connection(bootstrap_servers, config, options))
    store.ensure_answers()
    return Cluster.over(store)


def open_reader(
    path: StrPath, *, foreign_end: str = "log", config: Mapping[str, Any] | None = None
) -> TopicReader:
    """Return a reader of the topics at a path, or of a real cluster's, to plan and run reads.

    Args:
        path: as for `open_for_reading`; or HOST:PORT of a real cluster, or several.
        foreign_end: as for `open_for_reading`.
        config: of a real cluster: options of the client, by Kafka's keys, without its servers.

    Raises the errors of `open_for_reading`, or ConfigError if an option is not accepted.
    """
    if isinstance(path, str) and is_address(path):
        return _remote_reader(parse_client_options(path, config or {}), DEFAULT_PATIENCE)
    if config:
        raise ConfigError(f"{path!r} is a folder, for which no options of a client can be given")
    return TopicReader(_open_source(path, foreign_end))


def open_topics(options: ReadOptions) -> TopicReader:
    """Return a reader of the topics at the path or real cluster that Spark's read options name.

    Raises the errors of `open_for_reading`, or if the real cluster cannot be reached.
    """
    if options.cluster is None:
        return open_reader(options.path, foreign_end=options.foreign_end)
    return _remote_reader(options.cluster, options.patience)


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
    """Return the planner of one run of a streaming query; it opens the topics again for each call."""
    # Tasks and batch reads do not need it.
    from spark_kbatch.consumer.stream_planner import StreamPlanner  # noqa: PLC0415

    return StreamPlanner(options, lambda: open_topics(options).source, monotonic_ms)


def _remote_reader(cluster: ClusterOptions, patience: Patience) -> TopicReader:
    # The network's modules are loaded only for a real cluster.
    from spark_kbatch.remote.source import RemoteSource  # noqa: PLC0415

    return TopicReader(RemoteSource(cluster, patience))


def with_absolute_path(options: ReadOptions) -> ReadOptions:
    """Return read options with an absolute path, so that they mean the same in every process.

    Raises the errors of `open_for_reading`.
    """
    if options.cluster is not None:
        return options
    source = _open_source(options.path, options.foreign_end)
    return replace(options, path=str(source.path))


def _open_source(path: StrPath, foreign_end: str) -> SourceAtPath:
    files = Files()
    logs = _broker_logs(path, foreign_end, files)
    if logs is not None:
        return logs
    with _told_what_is_looked_for(path):
        return FolderStore(path, files=files)


def _broker_logs(path: StrPath, foreign_end: str, files: Files) -> ForeignStore | None:
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


@contextlib.contextmanager
def _told_what_is_looked_for(path: StrPath) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        if isinstance(path, str) and is_address(path):
            raise ConfigError(
                f"{error}; {path!r} looks like the address of a real cluster, which is reached by "
                f"spark_kbatch.connect({path!r})"
            ) from None
        raise ConfigError(f"{error}; {WHAT_IS_LOOKED_FOR}") from None
