"""Topics that store all batches with one codec, whatever codec they are sent with."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.job import coordinator_for
from spark_kbatch.model import AppendOrigin, TopicPartition
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.record.header import walk
from tests.support import builders
from tests.support.reference import CODECS
from tests.support.store import store_of
from tests.support.topics_of_writes import task_producer

EVENTS = TopicPartition("events", 0)
ROWS = builders.rows(n=300)


def a_cluster(tmp_path: Path, codec: str) -> Cluster:
    cluster = Cluster(str(tmp_path / "cluster"), create=True)
    cluster.create_topic("events", config={"compression.type": codec})
    return cluster


def codecs(cluster: Cluster) -> list[int]:
    """The codec of each batch in the log."""
    log = (cluster.path / "broker-0" / "events-0" / "00000000000000000000.log").read_bytes()
    return [header.codec for _, header in walk(log)]


def a_job(cluster: Cluster, **options: str) -> None:
    given = parse_write_options(
        {"path": str(cluster.path), "topic": "events", "flush": "false"}
        | {key.replace("_", "."): value for key, value in options.items()}
    )
    producer = task_producer(store_of(cluster), "job", given)
    producer.append(ROWS)
    coordinator_for(store_of(cluster), given).commit(producer.finish(), transactional_id="job")


@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "zstd"])
@pytest.mark.parametrize("sent", ["none", "gzip", "lz4"])
def test_every_writer_uses_the_topics_codec(tmp_path: Path, sent: str, stored: str) -> None:
    cluster = a_cluster(tmp_path, stored)
    with cluster.producer(compression_type=sent, batch_size=4_000, flush=False) as producer:
        producer.send_arrow("events", ROWS).result()
    a_job(cluster, compression_type=sent, batch_size="4000")
    data = builders.encode(ROWS, compression=sent)
    builders.append_records(cluster, {EVENTS: data}, origin=AppendOrigin.NETWORK)

    found = codecs(cluster)
    assert len(found) > 10
    assert {*found} == {CODECS.get(stored, 0)}
    records = builders.to_records(ROWS)
    assert builders.contents(cluster)[EVENTS] == [
        one._replace(offset=offset) for offset, one in enumerate(records * 3)
    ]


def test_a_level_of_the_producers_codec_is_not_given_to_the_topics(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "gzip")
    options = {"compression_type": "zstd", "compression_zstd_level": "19"}
    a_job(cluster, **options)
    with cluster.producer(**options, flush=False) as producer:
        producer.send_arrow("events", ROWS).result()

    assert {*codecs(cluster)} == {CODECS["gzip"]}


def test_an_open_producer_notices_that_the_codec_was_altered(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "gzip")
    with cluster.producer(flush=False) as producer:
        producer.send("events", value=b"v").result()
        cluster.alter_topic("events", {"compression.type": "zstd"})
        producer.send("events", value=b"v").result()  # compressed again, if not noticed yet
        cluster.alter_topic("events", {"compression.type": None})
        builders.append_records(cluster, {EVENTS: builders.batch(compression="lz4")})

    assert codecs(cluster) == [CODECS["gzip"], CODECS["zstd"], CODECS["lz4"]]
