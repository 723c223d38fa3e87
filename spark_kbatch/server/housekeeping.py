"""A server's periodic work: delete old segments and deleted topics' files, bring lagging replicas up to date.

Without a server, each append does the work that is due for its partition. A server does the same every
log.retention.check.interval.ms for partitions without appends, in a thread of its own, which may wait for
locks:

    delete old segments            of topics with a retention
    delete files                   of deleted topics, after their delay
    replicate                      to replicas that lag because their log dir was away
    create __consumer_offsets      while all disks are there, if there are several: later one may be away

Groups look after their own offsets.

Source: Kafka storage/.../log/LogManager.java cleanupLogs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spark_kbatch.clock import monotonic_s
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.state_log import make_topic
from spark_kbatch.commit.internal_topics import CONSUMER_OFFSETS
from spark_kbatch.errors import KBatchError
from spark_kbatch.options.topic import Topic
from spark_kbatch.replica.administration import replicate_all

logger = logging.getLogger(__name__)

_ENDS_WITHIN_S = 1.0
_LOCK_WITHIN_S = 1.0


class Housekeeping:
    """The background thread that does a server's periodic work on its logs."""

    def __init__(self, parts: FolderParts, *, interval_ms: int) -> None:
        """Prepare the thread; after `start` it first works one interval later."""
        self._parts, self._interval_s = parts, interval_ms / 1000
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kbatch-housekeeping", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """End the thread, which may finish its current task first."""
        self._ended.set()
        self._thread.join(_ENDS_WITHIN_S)

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self.run_once()

    def run_once(self) -> None:
        """Do all work that is due. Errors are logged: the next round may succeed."""
        for task in (
            self._delete_old_segments,
            self._remove_deleted_topics,
            self._replicate,
            self._make_offsets_topic,
        ):
            if self._ended.is_set():
                return
            self._tried(task)

    def _tried(self, task: Callable[[], None]) -> None:
        try:
            task()
        except (OSError, KBatchError) as error:
            logger.warning("housekeeping is incomplete for now: %s", error)
        except Exception:
            logger.exception("housekeeping failed")

    def _delete_old_segments(self) -> None:
        manager, replicas = self._parts.manager, self._parts.snapshots.replicas
        for topic in self._topics(lambda topic: topic.known_config.has_retention):
            planned = manager.planned_deletions(manager.partitions(topic.name), replicas)
            due = [tp for tp, deletion in planned.items() if deletion.segments or deletion.files]
            if due and not self._ended.is_set():
                manager.delete_old_segments(due, self._parts.commits, skip_deleted=True)

    def _remove_deleted_topics(self) -> None:
        self._parts.manager.remove_deleted_topics()

    def _replicate(self) -> None:
        names = [topic.name for topic in self._topics(lambda topic: topic.replication_factor > 1)]
        if names:
            replicate_all(self._parts.manager, names, self._parts.commits, skip_deleted=True)

    def _make_offsets_topic(self) -> None:
        dirs = self._parts.manager.dirs
        if len(dirs.all) > 1 and all(dirs.is_online(one.node_id) for one in dirs.all):
            make_topic(self._parts, CONSUMER_OFFSETS, monotonic_s() + _LOCK_WITHIN_S)

    def _topics(self, wanted: Callable[[Topic], bool]) -> list[Topic]:
        topics = self._parts.metadata.topics
        found = []
        for name in topics.names(internal=True):
            try:
                topic = topics.find(name)
            except (OSError, KBatchError) as error:
                logger.warning("topic %r is left out of housekeeping: %s", name, error)
                continue
            if topic is not None and wanted(topic):
                found.append(topic)
        return found
