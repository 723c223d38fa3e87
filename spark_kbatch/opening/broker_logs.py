"""`BrokerLogs`, the Python API of a real Kafka broker's logs, with the interface of `Cluster`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from spark_kbatch.cluster.foreign_store import ForeignStore
from spark_kbatch.errors import ConfigError
from spark_kbatch.opening.os_errors import raises_kbatch_errors
from spark_kbatch.opening.topics_at_path import TopicsAtPath
from spark_kbatch.options import arguments

if TYPE_CHECKING:
    from spark_kbatch.log.repair import RepairReport


def _refused(what: str) -> Callable[..., NoReturn]:
    """Return a method for writing to a broker's logs that raises ConfigError, with the reason `what`."""

    def refuse_to_write(self: BrokerLogs, *_given: Any, **_named: Any) -> NoReturn:
        """Raise ConfigError: a broker's logs are only read."""
        raise ConfigError(
            f"{what} in {self.path}: it is a Kafka broker's log directory, which kbatch only reads; "
            "write to a cluster of your own, and export its topics with `kbatch export`"
        )

    return refuse_to_write


@raises_kbatch_errors
class BrokerLogs(TopicsAtPath):
    """Read-only topics of a Kafka broker's log dir, a partition's directory, or one .log file.

    They are only read; methods that would write raise ConfigError.
    """

    def __init__(self, source: ForeignStore) -> None:
        super().__init__(source)
        self._source = source

    def verify(self, partitions: Iterable[tuple[str, int]] | None = None) -> Iterator[RepairReport]:
        """Check the files of these partitions, by default all, and yield each report once it is done.

        See `log/foreign/check.py`.
        """
        if partitions is None:
            chosen = [
                tp for name in self.topic_names(internal=True) for tp in self.partitions(name)
            ]
        else:
            chosen = arguments.topic_partitions("partitions", partitions)
        return map(self._source.check, chosen)

    # Here so that what `open` returns can be used without asking what it is.

    create_topic = _refused("topics cannot be created")
    alter_topic = _refused("topics cannot be altered")
    create_partitions = _refused("partitions cannot be created")
    delete_topic = _refused("topics cannot be deleted")
    producer = _refused("there is no producer")
    delete_records = _refused("records cannot be deleted")
    collect_garbage = _refused("nothing can be deleted")
    repair = _refused("nothing can be repaired")
    export = _refused("topics cannot be exported, they are a broker's already")
    serve = _refused("they cannot be served; `kbatch serve` serves a cluster")
    running_server = _refused("they cannot be served")
    groups = _refused("groups of consumers are not read from them")
    alter_group_offsets = _refused("groups of consumers are not in them")
    delete_group = _refused("groups of consumers are not in them")
    history = _refused("there are no commits of Spark jobs")
    find_commit = _refused("there are no commits of Spark jobs")
    first_commit = _refused("there are no commits of Spark jobs")
    replicas = _refused("there is one replica of each partition")
    replicate = _refused("there is one replica of each partition")
    log_dirs = _refused("there is one log dir")
    metrics = _refused("there are no metrics")
    replace_log_dir = _refused("there is one log dir")
    elect_unclean = _refused("there is one replica of each partition")
