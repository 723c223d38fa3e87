"""TLS and SASL against a real broker: reads, writes, refusals; and secrets, which are never printed."""

from __future__ import annotations

import pickle
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_kbatch
from spark_kbatch.errors import KBatchError
from tests.support.kafka_clients import Address, read
from tests.support.secret_jobs import (
    EXCEPTION,
    JOB_ROWS,
    Job,
    ensure_in_no_text,
    for_spark,
    run_jobs,
)
from tests.support.secure_broker import WAYS, SecureBroker

pytestmark = pytest.mark.interop

PARTITIONS = 2
ROWS = 400
# Less than any time-out of Kafka's clients; a job of Spark takes most of its time to start.
REFUSED_WITHIN_S, JOB_REFUSED_WITHIN_S = 10, 25

each_way = pytest.mark.parametrize("way", WAYS)


def options_of(secured: SecureBroker, way: str) -> dict[str, str]:
    listener, options = secured.ways()[way]
    return for_spark(secured.servers(listener), options)


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS).selectExpr(
        "CAST(id AS STRING) AS value", f"CAST(id % {PARTITIONS} AS INT) AS partition"
    )


def expected() -> dict[int, list[str]]:
    return {p: [str(n) for n in range(ROWS) if n % PARTITIONS == p] for p in range(PARTITIONS)}


def stored(secured: SecureBroker, topic: str) -> dict[int, list[str]]:
    """Return the values as another make of client reads them, without TLS."""
    found = read(Address(secured.broker.address), topic, range(PARTITIONS))
    return {p: sorted(((r.value or b"").decode() for r in records), key=int) for p, records in found.items()}  # fmt: skip


def by_partition(frame: DataFrame) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {p: [] for p in range(PARTITIONS)}
    for value, partition in frame.selectExpr("string(value)", "partition").collect():
        found[partition].append(value)
    return {p: sorted(values, key=int) for p, values in found.items()}


@pytest.fixture(scope="module")
def warm(spark: SparkSession, secured: SecureBroker) -> None:
    """A session that has had its first job, which compiles."""
    options = options_of(secured, "tls")
    secured.broker.create_topic("warm", partitions=PARTITIONS)
    rows(spark).write.format("kbatch").mode("append").options(**options, topic="warm").save()
    assert spark.read.format("kbatch").options(**options, subscribe="warm").load().count() == ROWS


# What works


@each_way
def test_spark_writes_and_reads(
    spark: SparkSession, secured: SecureBroker, topic: str, way: str
) -> None:
    secured.broker.create_topic(topic, partitions=PARTITIONS)
    options = options_of(secured, way)

    rows(spark).write.format("kbatch").mode("append").options(**options, topic=topic).save()
    frame = spark.read.format("kbatch").options(**options, subscribe=topic).load()

    assert by_partition(frame) == stored(secured, topic) == expected()


@pytest.mark.parametrize("way", ["mutual-tls", "inline-mutual-tls", "scram-512"])
def test_spark_streams(
    spark: SparkSession, secured: SecureBroker, topic: str, way: str, tmp_path: Path
) -> None:
    """With files, with certificates within the options, and with a password; jobs that print all use each way in."""
    for name in (topic, "to-" + topic):
        secured.broker.create_topic(name, partitions=PARTITIONS)
    options = options_of(secured, way)
    rows(spark).write.format("kbatch").mode("append").options(**options, topic=topic).save()

    frame = (
        spark.readStream.format("kbatch").options(**options, subscribe=topic)
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", ROWS // 4).load()
    )  # fmt: skip
    query = (
        frame.select("value", "partition").writeStream.format("kbatch")
        .options(**options, topic="to-" + topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()

    assert stored(secured, "to-" + topic) == expected()


@each_way
def test_plain_python_writes_and_reads(secured: SecureBroker, topic: str, way: str) -> None:
    secured.broker.create_topic(topic, partitions=PARTITIONS)
    listener, options = secured.ways()[way]
    with spark_kbatch.connect(secured.servers(listener), **options) as cluster:
        assert topic in cluster.topic_names()
        with cluster.producer() as producer:
            for p, values in expected().items():
                for value in values:
                    producer.send(topic, value=value, partition=p)
        found: dict[int, list[str]] = {p: [] for p in range(PARTITIONS)}
        for batch in cluster.read(topic):
            for value, p in zip(
                batch["value"].to_pylist(), batch["partition"].to_pylist(), strict=True
            ):
                found[p].append(value.decode())
        shown = f"{cluster!r} {cluster} {producer!r}"

    assert found == stored(secured, topic) == expected()
    ensure_hidden(shown, secured.secrets)


# What is refused


class Refusal(NamedTuple):
    """A way that is closed."""

    listener: str
    options: Callable[[SecureBroker], Mapping[str, str]]
    said: tuple[str, ...]
    secrets: tuple[str, ...] = ()  # beside the broker's


def strangers_client(secured: SecureBroker) -> Mapping[str, str]:
    issued = secured.stranger.issue("client")
    return secured.tls() | {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(issued.both)}


WRONG = "wr0ng-passw0rd"
# A lost connection may be a broker that restarts: these are retried, so a test that waits for the end gives a time.
SOON = {"default.api.timeout.ms": "3000"}

REFUSALS = {
    "unknown-authority": Refusal(
        "TLS",
        lambda s: s.tls() | {"ssl.truststore.location": str(s.stranger.certificate)},
        ("certificate", "ssl.truststore"),
    ),
    "no-authority-given": Refusal(
        "TLS", lambda s: {"security.protocol": "SSL"}, ("certificate", "ssl.truststore")
    ),
    "expired": Refusal("EXPIRED", SecureBroker.tls, ("certificate", "expired")),
    "wrong-name": Refusal("WRONGNAME", SecureBroker.tls, ("certificate", r"127\.0\.0\.1")),
    "no-client-certificate": Refusal(
        "MTLS", SecureBroker.tls, ("certificate", r"ssl\.keystore")
    ),
    "strangers-client-certificate": Refusal("MTLS", strangers_client, ("certificate",)),
    "wrong-password-of-key": Refusal(
        "MTLS", lambda s: s.inline_mutual_tls() | {"ssl.key.password": WRONG},
        (r"ssl\.key\.password",), (WRONG,),
    ),
    "no-such-file": Refusal(
        "TLS", lambda s: s.tls() | {"ssl.truststore.location": "/none/ca.pem"}, ("/none/ca.pem",)
    ),
    "wrong-password-plain": Refusal(
        "SASL", lambda s: s.sasl("PLAIN", WRONG), ("authentication|password",), (WRONG,)
    ),
    "wrong-password-scram": Refusal(
        "SASL", lambda s: s.sasl("SCRAM-SHA-512", WRONG), ("authentication|password",), (WRONG,)
    ),
    "no-such-mechanism": Refusal(
        "SASL", lambda s: s.sasl("PLAIN") | {"sasl.mechanism": "AWS_MSK_IAM"}, ("AWS_MSK_IAM",)
    ),
    "no-login": Refusal("SASL", lambda s: s.tls() | SOON, (r"security\.protocol",)),
    "no-tls": Refusal("TLS", lambda s: SOON, (r"security\.protocol",)),
    "tls-where-there-is-none": Refusal(
        "PLAINTEXT", lambda s: s.tls() | SOON, (r"security\.protocol",)
    ),
}  # fmt: skip
each_refusal = pytest.mark.parametrize("refusal", [pytest.param(r, id=n) for n, r in REFUSALS.items()])  # fmt: skip


Spark = Callable[[], SparkSession]


def python(spark: Spark, options: Mapping[str, str], topic: str, folder: Path) -> None:
    bare = {key.removeprefix("kafka."): value for key, value in options.items()}
    with spark_kbatch.connect(bare.pop("bootstrap.servers"), **bare) as cluster:
        cluster.topic_names()


def python_producer(spark: Spark, options: Mapping[str, str], topic: str, folder: Path) -> None:
    bare = {key.removeprefix("kafka."): value for key, value in options.items()}
    with (
        spark_kbatch.connect(bare.pop("bootstrap.servers"), **bare) as cluster,
        cluster.producer() as producer,
    ):
        producer.send(topic, value="a").result(60)


def batch_read(spark: Spark, options: Mapping[str, str], topic: str, folder: Path) -> None:
    spark().read.format("kbatch").options(**options, subscribe=topic).load().collect()


def batch_write(spark: Spark, options: Mapping[str, str], topic: str, folder: Path) -> None:
    rows(spark()).write.format("kbatch").mode("append").options(**options, topic=topic).save()


def stream(spark: Spark, options: Mapping[str, str], topic: str, folder: Path) -> None:
    frame = spark().readStream.format("kbatch").options(**options, subscribe=topic).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "c"))
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize(
    "door", [python, python_producer, batch_read, batch_write, stream],
    ids=["python", "python-producer", "batch-read", "batch-write", "stream"],
)  # fmt: skip
@each_refusal
def test_a_closed_way_is_refused_soon_and_clearly_and_tells_no_secret(
    request: pytest.FixtureRequest, secured: SecureBroker, refusal: Refusal, tmp_path: Path,
    door: Callable[[Spark, Mapping[str, str], str, Path], None], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level("DEBUG", "spark_kbatch")
    caplog.set_level("DEBUG", "kafka")
    address = secured.servers(refusal.listener)
    options = for_spark(address, refusal.options(secured))

    of_spark = door not in (python, python_producer)
    if of_spark:
        request.getfixturevalue("warm")

    start = time.monotonic()
    with pytest.raises((KBatchError, PySparkException, Py4JJavaError)) as caught:
        door(lambda: request.getfixturevalue("spark"), options, "there", tmp_path)
    took_s = time.monotonic() - start

    text = "".join(traceback.format_exception(caught.value))
    for part in refusal.said:
        assert re.search(part, str(caught.value), re.IGNORECASE), (part, str(caught.value))
    assert took_s < (JOB_REFUSED_WITHIN_S if of_spark else REFUSED_WITHIN_S)
    ensure_hidden(text + caplog.text, [*secured.secrets, *refusal.secrets])
    if isinstance(caught.value, KBatchError):
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        ensure_hidden(repr(pickle.dumps(caught.value)), [*secured.secrets, *refusal.secrets])


# Secrets


def ensure_hidden(text: str, secrets: Iterable[str]) -> None:
    """Ensure that none of the secrets is in a text; name where, not what."""
    for number, secret in enumerate(secrets):
        place = text.find(secret)
        around = text[max(0, place - 200) : place]
        assert place < 0, f"secret {number} is shown after: {around}"


def test_no_secret_is_in_anything_that_jobs_leave(
    secured: SecureBroker, topic: str, tmp_path: Path
) -> None:
    """The log and the output of Spark and Python, plans, exceptions, the event log, checkpoints."""
    jobs: list[Job] = []
    for way in WAYS:
        name = f"{way}-{topic}"[:200]
        for one in (name, "to-" + name):
            secured.broker.create_topic(one, partitions=PARTITIONS)
        jobs.append(Job(way, name, options_of(secured, way)))
    for name in ("wrong-password-of-key", "wrong-password-plain", "wrong-password-scram"):
        refusal = REFUSALS[name]
        options = for_spark(secured.servers(refusal.listener), refusal.options(secured))
        jobs.append(Job(name, f"plain-{topic}"[:200], options))
    printed, texts = run_jobs(jobs, tmp_path)
    # What was to be seen is there, so what is searched is what was written. Each way in has copied its rows.
    for job in jobs[: len(WAYS)]:
        copies = stored(secured, "to-" + job.topic)
        copied = [int(value) for values in copies.values() for value in values]
        assert sorted(copied) == [*range(JOB_ROWS)], job.name
    assert printed.count(EXCEPTION) == 3 * len(jobs[-3:])
    assert printed.count("== Physical Plan ==") >= len(WAYS)
    events = [text for path, text in texts.items() if "events" in path.parts]
    assert any("SparkListenerSQLExecutionStart" in text for text in events)
    assert any("SparkListenerJobStart" in text for text in events)
    assert any("offsets" in path.parts for path in texts)
    ensure_in_no_text([*secured.secrets, WRONG], texts)
