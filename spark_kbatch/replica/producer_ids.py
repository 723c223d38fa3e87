"""Producer ids: each process takes a block of them, and gives them out one by one.

Source: Kafka transaction-coordinator/.../RPCProducerIdManager.java, ProducerIdsBlock.java.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from spark_kbatch.catalog.cluster_file import ClusterFile
from spark_kbatch.replica.locks import Locks

BLOCK_SIZE = 1000


class ProducerIds:
    """A source of producer ids that no producer of this cluster has had.

    It is thread-safe. A forked child has its own block of ids.
    """

    def __init__(self, cluster_file: ClusterFile, locks: Locks) -> None:
        self._cluster_file, self._locks = cluster_file, locks
        # Guarded by the metadata lock, which excludes threads too and which no child inherits.
        self._block: Iterator[int] = iter(())
        self._process_id = os.getpid()

    def next(self, *, deadline: float | None = None) -> int:
        """Return a producer id that was never given out before.

        The rest of a process's block is never given out once the process ends.

        Raises:
            LockTimeoutError: the metadata lock was not free by the deadline, a time of `clock.monotonic_s`.
        """
        with self._locks.metadata(deadline=deadline):
            if self._process_id != os.getpid():
                self._block, self._process_id = iter(()), os.getpid()
            for producer_id in self._block:
                return producer_id
            self._block = iter(self._cluster_file.take_producer_ids(BLOCK_SIZE))
            return next(self._block)
