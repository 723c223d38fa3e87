"""What lies at a path: a cluster, or what a broker wrote."""

from __future__ import annotations

from spark_kbatch.cluster.broker_logs import BrokerLogs
from spark_kbatch.cluster.cluster import Cluster, StrPath
from spark_kbatch.errors import ConfigError
from spark_kbatch.files import Files
from spark_kbatch.log.foreign.log_dir import WHAT_IS_LOOKED_FOR, ForeignLogDir
from spark_kbatch.options.paths import absolute_path
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.replica.metadata import Metadata


def open_topics(options: ReadOptions) -> Cluster | BrokerLogs:
    """What a read goes to; raises as `open_for_reading`."""
    return open_for_reading(options.path, foreign_end=options.foreign_end)


def open_for_reading(
    path: StrPath, *, foreign_end: str = "log", files: Files | None = None
) -> Cluster | BrokerLogs:
    """What lies at PATH: a cluster, or what a broker wrote.

    Args:
        path: the cluster's folder; a broker's log dir, the directory of a partition in one, or a
            .log file.
        foreign_end: where a broker's logs end: "log" or "checkpoint".
        files: the disk.

    Raises:
        ConfigError: neither is there; says what was looked for.
    """
    files = files or Files()
    metadata = Metadata(files, absolute_path(path))
    if metadata.cluster_file.exists():
        return Cluster(path, files=files)
    metadata.cluster_file.ensure_not_inside_a_cluster()
    try:
        log_dir = ForeignLogDir.find(files, metadata.path)
    except OSError as error:
        raise ConfigError(f"{metadata.path} cannot be read: {error.strerror or error}") from error
    if log_dir is not None:
        return BrokerLogs(metadata.path, log_dir, foreign_end=foreign_end)
    try:
        return Cluster(path, files=files)
    except ConfigError as error:
        raise ConfigError(f"{error}; {WHAT_IS_LOOKED_FOR}") from None
