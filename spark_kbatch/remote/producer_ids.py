"""Producer ids that a process has taken from clusters, for its next producers.

A cluster remembers a producer id for a day after its last write, and a Spark worker runs many short tasks. So a
producer that ends leaves its id, with the sequence number of each partition, to the next one of the process to
the same cluster. Two producers at the same time have different ids. A forked child takes its own.

Source: Kafka clients/producer/internals/TransactionManager.java; producer.id.expiration.ms.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from spark_kbatch.options.remote import ClusterOptions
from spark_kbatch.producer.idempotence import Sequences

_free: dict[ClusterOptions, list[Sequences]] = {}  # needs no lock: append and pop are atomic


@contextlib.contextmanager
def passed_on_sequences(
    options: ClusterOptions, new_producer_id: Callable[[], int]
) -> Iterator[Sequences]:
    """Yield the sequence numbers of a producer that has ended, or new ones; the next producer gets them after.

    Args:
        options: of the cluster.
        new_producer_id: asks the cluster for an id, when the first batch needs one.
    """
    process_id = os.getpid()
    free = _free.setdefault(options, [])
    try:
        sequences = free.pop().passed_on(new_producer_id)
    except IndexError:
        sequences = Sequences(new_producer_id)
    try:
        yield sequences
    finally:
        if os.getpid() == process_id:
            free.append(sequences)


os.register_at_fork(after_in_child=_free.clear)
