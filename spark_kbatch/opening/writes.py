"""A Spark job's write, begun on the driver; clusters for commands that write."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from spark_kbatch.cluster import parts
from spark_kbatch.errors import ConfigError
from spark_kbatch.opening.cluster import Cluster
from spark_kbatch.opening.stores import open_store
from spark_kbatch.options.paths import StrPath
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.store.job import WriteJob
from spark_kbatch.store.reports import GivenUp


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
    return parts.given_up_by_restore(path, log_dirs, without_nodes)


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
