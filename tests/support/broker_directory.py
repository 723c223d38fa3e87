"""Makes the log directory that notebooks/a-brokers-directory.ipynb opens: real Kafka writes it, and is killed.

    python -m tests.support.broker_directory notebooks/kafka-logs.tar.xz

It needs Maven, as `make interop` does. The records are the same each time; batches, ids and the files' times are
not, so the notebook is to be run again with a new archive.
"""

from __future__ import annotations

import json
import math
import random
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from tests.support.kafka import Broker, Kafka, class_path
from tests.support.waiting import until

MIDNIGHT = 1_772_409_600_000  # 2026-03-02, UTC
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
MiB = 1 << 20
TRANSACTIONS = 24
ABORTED = {5, 6, 15}


class Record(NamedTuple):
    """A record to send."""

    key: str
    value: object
    timestamp: int


def clicks(chance: random.Random) -> Iterator[Record]:
    """A day of a shop: quiet at night, busy at noon and in the evening."""
    for minute in range(24 * 60):
        hour = minute / 60
        busy = math.exp(-((hour - 12.5) ** 2) / 3) + 1.6 * math.exp(-((hour - 20) ** 2) / 5)
        for _ in range(chance.randrange(2) + round(6 * busy * chance.random())):
            shopper = f"shopper-{min(int(chance.expovariate(0.02)), 400)}"
            page = chance.choice(["/", "/shoes", "/hats", "/cart"])
            time = MIDNIGHT + minute * MINUTE_MS + chance.randrange(MINUTE_MS)
            yield Record(shopper, {"page": page}, time)


def prices(chance: random.Random) -> Iterator[Record]:
    """Forty products, some of which change their price all day."""
    for minute in range(0, 24 * 60, 4):
        product = min(int(chance.expovariate(0.12)), 39)
        price = round(chance.uniform(5, 80), 2)
        yield Record(f"product-{product:02}", {"price": price}, MIDNIGHT + minute * MINUTE_MS)


def send(broker: Broker, topic: str, records: Iterator[Record], *, at_a_time: int) -> None:
    """Send records, so many in a batch for each partition or fewer."""
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": "lz4"})
    for number, (key, value, timestamp) in enumerate(records, start=1):
        producer.produce(topic, key=key, value=json.dumps(value), timestamp=timestamp)
        if number % at_a_time == 0:
            producer.flush()
    producer.flush()


def checkpointed(broker: Broker, name: str, topic: str) -> int:
    """Return the offset that one of the broker's checkpoints has of a topic's first partition; -1 for none."""
    path = broker.log_dir / name
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[2]) for line in lines if line.startswith(f"{topic} 0 ")), -1)


def payments(broker: Broker, chance: random.Random) -> None:
    """Write payments in transactions: most are committed, some aborted, and the last stays open."""
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "tills"})
    producer.init_transactions()
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for _ in range(chance.randrange(3, 9)):
            euros = round(chance.expovariate(0.03), 2)
            time = MIDNIGHT + 8 * HOUR_MS + number * 30 * MINUTE_MS + chance.randrange(MINUTE_MS)
            key, value = f"till-{chance.randrange(4)}", json.dumps({"euros": euros})
            producer.produce("payments", key=key, value=value, timestamp=time)
        producer.flush()
        if number == TRANSACTIONS - 1:
            return
        if number in ABORTED:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def small(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out the indexes of the controller's log, 10 MiB of zeros each, and whose files they are."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member if member.size < MiB else None


def make(archive: Path) -> None:
    """Run a broker, kill it, and pack its log dir."""
    chance = random.Random(7)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = Broker(
            Kafka(class_path(folder)),
            folder / "broker",
            log_index_size_max_bytes=64 * 1024,  # a killed broker leaves them at their full size
            log_cleaner_backoff_ms=500,
            log_retention_ms=-1,
        ).start()
        try:
            broker.create_topic("clicks", partitions=3, segment_ms=6 * HOUR_MS)
            broker.create_topic("payments")
            broker.create_topic(
                "prices", cleanup_policy="compact", segment_ms=HOUR_MS, min_cleanable_dirty_ratio=0.01
            )  # fmt: skip
            send(broker, "clicks", clicks(chance), at_a_time=200)
            send(broker, "prices", prices(chance), at_a_time=1)
            payments(broker, chance)
            until(lambda: checkpointed(broker, "cleaner-offset-checkpoint", "prices") > 300)
            until(lambda: checkpointed(broker, "replication-offset-checkpoint", "payments") > 0)
        finally:
            broker.kill()
        with tarfile.open(archive, "w:xz") as packed:
            packed.add(broker.log_dir, "kafka-logs", filter=small)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
