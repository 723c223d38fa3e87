"""Opening of a cluster, a Kafka broker's logs or a real cluster for reading."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from spark_kbatch.cluster.foreign_source import ForeignSource
from spark_kbatch.cluster.parts import ClusterParts
from spark_kbatch.consumer.source import SourceAtPath
from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.errors import ConfigError
from spark_kbatch.files import Files
from spark_kbatch.log.foreign.log_dir import WHAT_IS_LOOKED_FOR, ForeignLogDir
from spark_kbatch.opening.broker_logs import BrokerLogs
from spark_kbatch.opening.cluster import Cluster
from spark_kbatch.options.paths import StrPath, absolute_path
from spark_kbatch.options.read import DEFAULT_PATIENCE, Patience, ReadOptions
from spark_kbatch.options.remote import ClusterOptions, is_address, parse_cluster_options
from spark_kbatch.replica.metadata import Metadata


def open_for_reading(
    path: StrPath, *, foreign_end: str = "log", files: Files | None = None
) -> Cluster | BrokerLogs:
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
        return BrokerLogs(logs)
    with _told_what_is_looked_for(path):
        return Cluster(path, files=files)


def open_reader(path: StrPath, *, foreign_end: str = "log") -> TopicReader:
    """Return a reader of the topics at a path, to plan and run reads.

    `foreign_end` and errors are those of `open_for_reading`.
    """
    return TopicReader(_open_source(path, foreign_end))


def open_topics(options: ReadOptions) -> TopicReader:
    """Return a reader of the topics at the path or real cluster that Spark's read options name.

    Raises the errors of `open_for_reading`, or if the real cluster cannot be reached.
    """
    if options.cluster is None:
        return open_reader(options.path, foreign_end=options.foreign_end)
    return _remote_reader(options.cluster, options.patience)


def open_remote_reader(config: Mapping[str, Any]) -> TopicReader:
    """Return a reader of a real cluster's topics, to plan and run reads.

    Args:
        config: all options of the client, by Kafka's keys.

    Raises:
        ConfigError: an option is not accepted.
    """
    return _remote_reader(parse_cluster_options(config, alone=True), DEFAULT_PATIENCE)


def _remote_reader(cluster: ClusterOptions, patience: Patience) -> TopicReader:
    # What speaks to a network is loaded only by those who name a cluster in one.
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
        return ClusterParts(path, files=files)


def _broker_logs(path: StrPath, foreign_end: str, files: Files) -> ForeignSource | None:
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
    return ForeignSource(metadata.path, log_dir, foreign_end=foreign_end)


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
