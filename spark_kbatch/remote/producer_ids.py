"""Reuse of producer ids: a producer that ends leaves its id to the process's next one for the cluster.

A cluster remembers a producer id for a day after its last write, and a Spark worker runs many short tasks. So a
producer that ends leaves its id, with the sequence number of each partition, to the next one of the process to
the same cluster. Two producers at the same time have different ids. A forked child takes its own.

Another cluster may come to answer at the same address, such as a broker for tests that starts with an empty disk
each time. It gives the same ids to others, and would take their batches for repetitions of each other. So an id
goes with the id of its cluster, which the next producer compares (`transport`).

Source: Kafka clients/producer/internals/TransactionManager.java; producer.id.expiration.ms.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spark_kbatch.options.remote import ClusterOptions
from spark_kbatch.producer.idempotence import Sequences


@dataclass
class ProducerIdentity:
    """A producer id with its sequence numbers, and the cluster that gave it."""

    sequences: Sequences
    cluster_id: str = ""  # if it is known


_free: dict[ClusterOptions, list[ProducerIdentity]] = {}  # needs no lock: append and pop are atomic


@contextlib.contextmanager
def passed_on_identity(
    options: ClusterOptions, new_producer_id: Callable[[], int]
) -> Iterator[ProducerIdentity]:
    """Yield the producer id of a producer that has ended, or a new one, and keep it for the next one.

    Args:
        options: of the cluster.
        new_producer_id: asks the cluster for an id, when the first batch needs one.
    """
    process_id = os.getpid()
    free = _free.setdefault(options, [])
    try:
        identity = free.pop()
        identity.sequences = identity.sequences.passed_on(new_producer_id)
    except IndexError:
        identity = ProducerIdentity(Sequences(new_producer_id))
    try:
        yield identity
    finally:
        if os.getpid() == process_id:
            free.append(identity)


os.register_at_fork(after_in_child=_free.clear)
