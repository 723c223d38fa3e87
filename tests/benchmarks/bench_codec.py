"""How fast are rows encoded into batches, and batches decoded into Arrow, on one core?

Unit: million records a second; 16-byte keys, 100-byte values, batches of 64 KiB, uncompressed, with
CRC. Ceilings: memcpy of the encoded bytes between two arrays; and what every encoder and decoder does, a
copy of each batch and its CRC. Peer: aiokafka's Cython builder and reader. Before and after a change:
`make bench`, then read the ratios, not the rates.
"""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa

from spark_kbatch.kernels import records as record_kernels
from spark_kbatch.record import codec
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.builder import SPARE_SLOT, RecordBatchBuilder, fill
from spark_kbatch.record.checksums import crc32c
from spark_kbatch.record.header import walk
from tests.support.interleaved import Candidate, bulk_rows, interleave
from tests.support.targets import Targets

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

ROWS = 4_000_000  # more than any cache holds, as in a job
PEER_ROWS = 50_000
BATCH_SIZE = 64 * 1024
PIECE_BYTES = 4 * 1024 * 1024


def encode_all(
    rows: pa.RecordBatch, memory: memoryview, keep: bool = False, batch_size: int = BATCH_SIZE
) -> list[bytes]:
    """All rows as batches of `batch_size`, in memory that is used again, as a producer's pool is."""
    times = arrow.timestamps_ms(rows.column("timestamp"), rows.num_rows, 0)
    columns = arrow.columns(
        rows.num_rows,
        key=rows.column("key"),
        value=rows.column("value"),
        timestamps=times,
        headers=None,
    )
    kept, written = [], 0
    while written < rows.num_rows:
        builders = [
            RecordBatchBuilder(memory, start, batch_size, slot=SPARE_SLOT if start else 0)
            for start in range(0, len(memory), batch_size)
        ]
        first = written
        written = fill(builders, columns, written)
        for builder in builders:
            count = builder.records_count
            if count:
                builder.close(base_offset=first, leader_epoch=0)
                first += count
                if keep:
                    kept.append(bytes(builder.data))
    return kept


def copy_and_check(data: memoryview, batch: memoryview) -> None:
    """Copy each batch's bytes into memory that is used again, and compute their CRC."""
    for start in range(0, len(data), BATCH_SIZE):
        piece = data[start : start + BATCH_SIZE]
        batch[: len(piece)] = piece
        crc32c(batch[: len(piece)])


def decode_all(data: memoryview, columns: list[str]) -> int:
    batches = codec.decode_batches(data, walk(data), columns=columns, max_bytes=PIECE_BYTES)
    return sum(batch.num_rows for batch in batches)


def aiokafka_encode(rows: list[tuple[int, bytes, bytes]]) -> int:
    batches = delta = 0
    builder = None
    for timestamp, key, value in rows:
        while builder is None or builder.append(delta, timestamp, key, value, []) is None:
            if builder is not None:
                builder.build()
            builder, delta = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, BATCH_SIZE), 0
            batches += 1
        delta += 1
    builder.build()
    return batches


def aiokafka_decode(batches: list[bytes]) -> int:
    count = 0
    for data in batches:
        batch = DefaultRecordBatch(bytearray(data))
        assert batch.validate_crc()
        for record in batch:
            record.key, record.value, record.timestamp  # noqa: B018  what a consumer looks at
            count += 1
    return count


def bench_encode_and_decode(targets: Targets) -> None:
    record_kernels.load()
    rows = bulk_rows(ROWS, key_bytes=16, value_bytes=100)
    memory = np.empty(8 * BATCH_SIZE, np.uint8).data
    batches = encode_all(rows, memory, keep=True)
    encoded = b"".join(batches)
    assert codec.decode(encoded, columns=["key", "value"]).equals(rows.select(["key", "value"]))

    source, target = np.frombuffer(encoded, np.uint8), np.zeros(len(encoded), np.uint8)
    peer_rows = list(
        zip(
            *(rows.column(c)[:PEER_ROWS].to_pylist() for c in ("timestamp", "key", "value")),
            strict=True,
        )
    )
    peer_batches = batches[: PEER_ROWS * len(batches) // ROWS]
    peer_count = aiokafka_decode(peer_batches)
    view = memoryview(encoded)
    all_columns = ["key", "value", "offset", "timestamp"]
    rates = interleave(
        {
            "memcpy": Candidate(lambda: np.copyto(target, source), ROWS / 1e6),
            "copy and CRC": Candidate(
                lambda: copy_and_check(view, memory[:BATCH_SIZE]), ROWS / 1e6
            ),
            "encode": Candidate(lambda: encode_all(rows, memory), ROWS / 1e6),
            "decode": Candidate(lambda: decode_all(view, all_columns), ROWS / 1e6),
            "decode key, value": Candidate(lambda: decode_all(view, ["key", "value"]), ROWS / 1e6),
            "aiokafka encode": Candidate(lambda: aiokafka_encode(peer_rows), PEER_ROWS / 1e6),
            "aiokafka decode": Candidate(lambda: aiokafka_decode(peer_batches), peer_count / 1e6),
        },
        rounds=15,
    )
    targets.rates(
        rates,
        "Batches of 64 KiB, 16-byte keys, 100-byte values, CRC, one core",
        "M records/s",
        {
            ("encode", "memcpy"): 0.5,
            ("encode", "aiokafka encode"): 10.0,
            ("decode", "memcpy"): 0.36,
            ("decode", "aiokafka decode"): 8.0,
        },
    )
    for name in ("encode", "decode"):
        targets.ratio(rates, name, "copy and CRC")
