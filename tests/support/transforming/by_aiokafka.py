"""aiokafka's loop: `python -m tests.support.transforming.by_aiokafka ADDRESS GROUP SOURCE TARGET ID`."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import random
import signal
import sys
from collections.abc import Sequence
from typing import Any

import aiokafka
from aiokafka.errors import KafkaError


async def main(address: str, group: str, source: str, target: str, transactional_id: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=address, transactional_id=transactional_id, linger_ms=1,
        transaction_timeout_ms=10_000, retry_backoff_ms=50,
    )  # fmt: skip
    # It ends what the program before it has left, so that no offset is pending when the consumer asks.
    await producer.start()
    consumer = aiokafka.AIOKafkaConsumer(
        source, bootstrap_servers=address, group_id=group, isolation_level="read_committed",
        enable_auto_commit=False, auto_offset_reset="earliest", session_timeout_ms=6_000,
        heartbeat_interval_ms=500, fetch_max_wait_ms=100, retry_backoff_ms=50,
    )  # fmt: skip
    await consumer.start()
    while not stopped.is_set():
        found = await consumer.getmany(timeout_ms=200, max_records=100)
        read = [one for some in found.values() for one in some]
        if not read:
            continue
        if random.random() < 0.2:
            await producer.begin_transaction()
            await _send(producer, target, "aborted", read)
            await producer.abort_transaction()
        async with producer.transaction():
            await _send(producer, target, "done", read)
            offsets = {tp: some[-1].offset + 1 for tp, some in found.items() if some}
            await producer.send_offsets_to_transaction(offsets, group)
    await consumer.stop()
    await producer.stop()


async def _send(producer: Any, target: str, word: str, read: Sequence[Any]) -> None:
    sent = [
        await producer.send(target, b"%s %s" % (word.encode(), one.value), partition=one.partition)
        for one in read
    ]
    await asyncio.gather(*sent)


if __name__ == "__main__":
    faulthandler.register(signal.SIGQUIT)
    logging.basicConfig(level=logging.WARNING)
    try:
        asyncio.run(main(*sys.argv[1:]))
    except KafkaError as error:
        print("ended after", repr(error), file=sys.stderr)
        sys.exit(3)
