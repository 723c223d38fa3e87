"""The partitions of a cluster by topic and number; new topics; brokers kept out of the log dirs.

Easily broken:
- A topic exists once its JSON file does: the logs are made before it.
- Whoever writes into a log dir holds its `.lock` shared, so no broker starts on it meanwhile.

Source: Kafka core/.../log/LogManager.scala.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from spark_kbatch import mutexes
from spark_kbatch.errors import (
    ConfigError,
    KafkaStorageError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Files
from spark_kbatch.log import state as log_state
from spark_kbatch.log.checkpoints import random_id
from spark_kbatch.log.partition_log import PartitionLog, holds_records
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import Topic, TopicConfig, ensure_valid_topic
from spark_kbatch.replica.deletions import Deletions
from spark_kbatch.replica.locks import Locks
from spark_kbatch.replica.log_dirs import LogDirs
from spark_kbatch.replica.metadata import Metadata
from spark_kbatch.replica.partition import Partition
from spark_kbatch.replica.paths import partition_of
from spark_kbatch.replica.producer_ids import ProducerIds
from spark_kbatch.replica.view import Replica

_FEW, _FLUSHES_AT_ONCE = 64, 16


class Partitions:
    """All partitions of one cluster, for one process. Thread-safe."""

    def __init__(
        self,
        files: Files,
        metadata: Metadata,
        now_ms: Callable[[], int],
        *,
        monotonic_ms: Callable[[], int],
        uses_threads: bool,
    ) -> None:
        """With `uses_threads` the disks of several replicas are waited for together."""
        self._uses_threads = uses_threads
        self.files, self.metadata = files, metadata
        self.locks = Locks(files, metadata.paths.locks_dir)
        self.producer_ids = ProducerIds(metadata.cluster_file, self.locks)
        self._now_ms = now_ms
        self.dirs = LogDirs(files, metadata.cluster_file, monotonic_ms)
        self.deletions = Deletions(files, metadata.deleted, metadata.cluster_file, self.dirs)
        self._mutex: threading.Lock  # of whoever changes _partitions; innermost
        mutexes.make(self, "_mutex")
        self._partitions: dict[TopicPartition, Partition] = {}

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Return the replicas of a partition, of the topic that the disk has now.

        To the holder of the partition's lock they stay so: a topic is deleted, created again or
        altered by one that holds the locks of all its partitions.

        Raises:
            UnknownTopicOrPartitionError: no such topic, or fewer partitions.
        """
        found = self._partitions.get(topic_partition)
        if found is not None and found.topic is self.metadata.topics.find(topic_partition.topic):
            return found
        return self.all_of([topic_partition])[topic_partition]

    def all_of(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Partition]:
        """Return these partitions, with one look at each topic; raises as `partition`."""
        wanted = list(topic_partitions)
        topics = {name: self.metadata.topics.topic(name) for name in {tp.topic for tp in wanted}}
        found = {tp: self._partitions.get(tp) for tp in wanted}
        known = {
            tp: one
            for tp, one in found.items()
            if one is not None and one.topic is topics[tp.topic]
        }
        return known if len(known) == len(found) else self._renewed(wanted)

    def _renewed(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Partition]:
        with self._mutex:
            # Looked up again, so that of two threads the later one has the newer topic: the partition
            # that the holder of its lock has is not replaced.
            topics = {
                name: self.metadata.topics.topic(name) for name in {tp.topic for tp in wanted}
            }
            found = {}
            for tp in wanted:
                topic, one = topics[tp.topic], self._partitions.get(tp)
                if not 0 <= tp.partition < topic.partitions:
                    raise UnknownTopicOrPartitionError(
                        f"partition {tp} does not exist: topic {topic.name!r} has partitions 0 to "
                        f"{topic.partitions - 1}"
                    )
                if one is None or not one.is_of(topic):
                    # Nothing remembered of a topic that was recreated or altered is true of this one.
                    one = self._partitions[tp] = self._new(tp, topic)
                one.topic = topic
                found[tp] = one
            return found

    def _new(self, topic_partition: TopicPartition, topic: Topic) -> Partition:
        logs: dict[int, PartitionLog] = {}

        def log_of(node_id: int) -> PartitionLog:
            log = logs.get(node_id)
            if log is None:
                # One for all threads: it knows the partition's producers.
                log = logs.setdefault(node_id, self._open(topic_partition, topic.config, node_id))
            return log

        return Partition(
            topic_partition, topic, self.metadata.partition_states, self.dirs, log_of, self._now_ms,
            uses_threads=self._uses_threads,
        )  # fmt: skip

    def replica(self, topic_partition: TopicPartition) -> Replica:
        """The leader of a partition, or who stands in for it; a commit may have overtaken its state.

        Raises:
            UnknownTopicOrPartitionError: no such topic, or fewer partitions.
            KafkaStorageError: no replica can be read.
        """
        return self.partition(topic_partition).readable()

    def quick_high_watermarks(
        self, topic: str, besides: Container[int]
    ) -> list[tuple[int, int | None]]:
        """Return those of a topic's other partitions, by number; None where only `replica` can tell."""
        found = self.metadata.topics.topic(topic)
        others = [number for number in range(found.partitions) if number not in besides]
        if found.replication_factor > 1:
            return [(number, None) for number in others]
        starts = [f"{one.path}/{topic}-" for one in self.dirs.all]
        replicas = found.replicas or ((0,),) * found.partitions
        directories = [f"{starts[replicas[number][0]]}{number}" for number in others]
        return list(
            zip(others, log_state.read_high_watermarks(self.files, directories), strict=True)
        )

    def log(self, topic_partition: TopicPartition) -> PartitionLog:
        """The log of that replica; raises as `replica`."""
        only_log = self.partition(topic_partition).only_log
        return only_log or self.replica(topic_partition).log

    def _open(
        self, topic_partition: TopicPartition, config: TopicConfig, node_id: int
    ) -> PartitionLog:
        directory = self.metadata.cluster_file.log_directory(topic_partition, node_id)
        return PartitionLog(self.files, directory, topic_partition, config)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic, in order."""
        numbers = range(self.metadata.topics.topic(topic).partitions)
        return list(map(TopicPartition, itertools.repeat(topic), numbers))

    def create_topic(
        self, name: str, *, partitions: int, config: TopicConfig, replication_factor: int = 1
    ) -> Topic:
        """The topic, made if it does not exist.

        Raises:
            ConfigError: there are not as many log dirs, or another topic's name is the same here.
        """
        ensure_valid_topic(name)
        with self.locks.metadata():
            found = self.metadata.topics.find(name)
            if found is not None:
                return found
            self.metadata.topics.ensure_may_be_named(name)
            if replication_factor > 1:
                self.metadata.cluster_file.add_log_dirs(replication_factor)
            with self.writing():
                self.deletions.continue_locked(self._now_ms())
                self.deletions.ensure_name_is_free_locked(name)
                return self.create_topic_locked(
                    name,
                    partitions=partitions,
                    config=config,
                    replication_factor=replication_factor,
                )

    def create_topic_locked(
        self, name: str, *, partitions: int, config: TopicConfig, replication_factor: int = 1
    ) -> Topic:
        """As `create_topic`, of a topic that does not exist; the caller holds the metadata lock."""
        replicas = self.assign(partitions, replication_factor)
        topic = Topic(name, random_id(), partitions, config, replicas)
        self.make_logs(topic, range(partitions))
        self.metadata.topics.write(topic)
        return topic

    def make_logs(self, topic: Topic, partitions: range) -> None:
        """Make the empty logs of partitions that do not exist yet, on disk on return.

        What an attempt that was cut off has left is removed: that is always empty.

        Raises:
            KafkaStorageError: a directory with the name of such a partition holds records.
        """
        for log_dir in self.dirs.all:
            if self.dirs.is_readable(log_dir.node_id):
                self._ensure_no_records(log_dir.path, topic.name, partitions.start)
        nodes: set[int] = set()
        unflushed: list[Path] = []
        for partition in partitions:
            for node_id in topic.replicas_of(partition):
                log = self._open(TopicPartition(topic.name, partition), topic.config, node_id)
                unflushed += log.create_unflushed(topic.topic_id)
                nodes.add(node_id)
        self._flush(unflushed)
        self.files.flush(self.dirs.all[node_id].path for node_id in sorted(nodes))

    def _ensure_no_records(self, log_dir: Path, topic: str, first: int) -> None:
        for name in self.files.list(log_dir):
            found = partition_of(name)
            if found is not None and found.topic == topic and found.partition >= first:
                directory = log_dir / name
                is_kept = not self.metadata.deleted.owns(directory)
                if is_kept and holds_records(self.files, directory):
                    raise KafkaStorageError(
                        f"{directory} holds records, and no file in {self.metadata.paths.topics_dir} "
                        "tells of that partition: topic "
                        f"{topic!r} cannot be created over them. `kbatch repair {self.metadata.path}` "
                        "makes a topic's lost file again; for an empty topic move the directory away"
                    )

    def _flush(self, paths: Sequence[Path]) -> None:
        """Flush files; many at once, since those that wait together cost the disk one write."""
        if len(paths) < _FEW or not self._uses_threads:
            self.files.flush(paths)
            return
        with ThreadPoolExecutor(_FLUSHES_AT_ONCE) as pool:
            shares = (paths[first::_FLUSHES_AT_ONCE] for first in range(_FLUSHES_AT_ONCE))
            for _ in pool.map(self.files.flush, shares):
                pass  # and raise what went wrong

    def assign(self, partitions: int, replication_factor: int) -> tuple[tuple[int, ...], ...]:
        """Nodes for each partition, so that each node leads as many as any other.

        Raises:
            ConfigError: fewer log dirs are online.
        Source: Kafka metadata/.../placement/StripedReplicaPlacer.java.
        """
        nodes = [one.node_id for one in self.dirs.all]
        if len(nodes) > 1:
            nodes = [node for node in nodes if self.dirs.is_online(node)]
        if replication_factor > len(nodes):
            raise ConfigError(
                f"replication.factor is {replication_factor}, and {len(nodes)} of "
                f"{len(self.dirs.all)} log dirs are online; `kbatch log-dirs PATH` shows them"
            )
        return tuple(
            tuple(nodes[(partition + n) % len(nodes)] for n in range(replication_factor))
            for partition in range(partitions)
        )

    def writing(self, nodes: Collection[int] | None = None) -> AbstractContextManager[None]:
        """Keeps brokers out of the log dirs while this process writes into them.

        Args:
            nodes: whose log dirs it writes to; by default all.

        Entering it raises:
            LogDirLockedError: a broker is in.
        """
        if nodes is None:
            nodes = range(len(self.metadata.cluster_file.log_dirs()))
        if len(nodes) == 1:
            (node,) = nodes
            return self.locks.log_dir(self.metadata.cluster_file.log_dir(node).path)
        return self._writing_to(sorted(nodes))

    @contextlib.contextmanager
    def _writing_to(self, nodes: Iterable[int]) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            for node_id in nodes:
                if self.dirs.is_online(node_id):
                    try:
                        held.enter_context(
                            self.locks.log_dir(self.metadata.cluster_file.log_dir(node_id).path)
                        )
                    except OSError as error:
                        self.dirs.failed(node_id, error)
            yield
