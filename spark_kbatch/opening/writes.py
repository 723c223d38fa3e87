"""A Spark job's write, begun on the driver: to an embedded cluster or to a real one; clusters for commands that write."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spark_kbatch.cluster import folder_store
from spark_kbatch.cluster.folder_store import FolderStore
from spark_kbatch.cluster.job import Job
from spark_kbatch.opening.cluster import Cluster
from spark_kbatch.options.paths import StrPath
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.replica.given_up import GivenUp
from spark_kbatch.store.job import WriteJob


def cluster_to_write(path: StrPath) -> Cluster:
    """Open the cluster at `path` for a command that writes; if there is none, create it and log that."""
    FolderStore(path, create=True, implied=True)
    return Cluster(path)


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
    return folder_store.given_up_by_restore(path, log_dirs, without_nodes)


def begin_job(
    options: WriteOptions, *, overwrite: bool = False, is_micro_batch: bool = False
) -> WriteJob:
    """Begin a write to an embedded or real cluster, as its options say, and return the job.

    In a folder, a topic that does not exist is created by the commit; in a real cluster now, or by the first
    rows of a micro-batch, if `num.partitions` is given.

    Raises the errors of the job's `begin`.
    """
    if options.cluster is None:
        return Job.begin(options, overwrite=overwrite, is_micro_batch=is_micro_batch)
    # The network's modules are loaded only for a real cluster.
    from spark_kbatch.remote.job import RemoteJob  # noqa: PLC0415

    return RemoteJob.begin(options, overwrite=overwrite, is_micro_batch=is_micro_batch)
