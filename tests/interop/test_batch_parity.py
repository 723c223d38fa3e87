"""Batches: `format("kbatch")` does with a folder what Spark's own connector does with a broker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions

from tests.conftest import SPARK
from tests.support.frames import kafkas_partition
from tests.support.parity_sites import Message, Read, Site, refused, rows, values

pytestmark = pytest.mark.interop

EARLIEST, LATEST = -2, -1
LONG_MAX = 2**63 - 1


def offsets(topic: str, *by_partition: int) -> str:
    """Return the JSON of `startingOffsets` and similar options."""
    return json.dumps({topic: {str(p): offset for p, offset in enumerate(by_partition)}})


def three_partitions(site: Site, topic: str) -> None:
    """Send 4, 2 and 1 messages to three partitions."""
    site.create_topic(topic, partitions=3)
    site.send(topic, {0: ["0", "1", "2", "3"], 1: ["4", "5"], 2: ["6"]})


def timed(site: Site, topic: str) -> None:
    """Send messages with the times 1000, 2000 and 3000 to each of 3 partitions."""
    site.create_topic(topic, partitions=3)
    site.send(
        topic,
        {
            p: [Message(f"{p}-{second}", timestamp=1000 * second) for second in (1, 2, 3)]
            for p in range(3)
        },
    )


# Bounds by offset


def test_rows_are_all_records_at_the_time_of_the_evaluation(
    spark: SparkSession, site: Site, topic: str
) -> None:
    three_partitions(site, topic)
    by_default = site.read(spark, subscribe=topic)
    named = site.read(spark, subscribe=topic, startingOffsets="EarLiest", endingOffsets=" laTest ")
    expected = [Read(p, o, v) for p, o, v in (
        (0, 0, "0"), (0, 1, "1"), (0, 2, "2"), (0, 3, "3"), (1, 0, "4"), (1, 1, "5"), (2, 0, "6")
    )]  # fmt: skip

    assert rows(by_default) == rows(named) == expected
    site.send(topic, {2: ["7"]})
    assert rows(by_default) == rows(named) == [*expected, Read(2, 1, "7")]


def test_an_end_offset_stays_fixed_and_latest_moves(
    spark: SparkSession, site: Site, topic: str
) -> None:
    three_partitions(site, topic)
    frame = site.read(
        spark,
        subscribe=topic,
        startingOffsets=offsets(topic, EARLIEST, 1, 0),
        endingOffsets=offsets(topic, 3, LATEST, LATEST),
    )

    assert values(frame) == ["0", "1", "2", "5", "6"]
    site.send(topic, {0: ["x"], 1: ["y"], 2: ["z"]})
    assert values(frame) == ["0", "1", "2", "5", "6", "y", "z"]


def test_earliest_is_looked_up_when_the_frame_is_evaluated(
    spark: SparkSession, site: Site, topic: str
) -> None:
    three_partitions(site, topic)
    frame = site.read(spark, subscribe=topic)
    assert len(rows(frame)) == 7

    site.delete_records(topic, {0: 4, 1: 2, 2: 1})
    site.send(topic, {0: ["new"]})

    assert rows(frame) == [Read(0, 4, "new")]


def test_one_frame_twice_in_a_query_gives_its_rows_twice(
    spark: SparkSession, site: Site, topic: str
) -> None:
    three_partitions(site, topic)
    frame = site.read(spark, subscribe=topic)

    assert values(frame.union(frame)) == sorted(2 * values(frame))
    assert (
        frame.join(frame.select("topic", "offset", "partition"), ["partition", "offset"]).count()
        == 7
    )


# Columns


def test_columns_have_kafkas_names_and_types(spark: SparkSession, site: Site, topic: str) -> None:
    site.create_topic(topic)
    plain = site.read(spark, subscribe=topic)
    full = site.read(spark, subscribe=topic, includeHeaders="true")

    assert plain.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    assert all(field.nullable for field in full.schema)
    assert full.schema["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )


def test_headers_keep_their_order_and_duplicates(
    spark: SparkSession, site: Site, topic: str
) -> None:
    site.create_topic(topic)
    given = [(), [("a", b"b"), ("c", b"d")], [("c", b"1"), ("c", b"2")], [("n", None)]]
    site.send(topic, {0: [Message(str(n), headers=h) for n, h in enumerate(given)]})

    frame = site.read(spark, subscribe=topic, includeHeaders="true").orderBy("offset")
    found = [
        h and [(key, value if value is None else bytes(value)) for key, value in h]
        for (h,) in frame.select("headers").collect()
    ]

    assert found == [None, *given[1:]]


def test_nulls_and_times_come_back_as_they_were_sent(
    spark: SparkSession, site: Site, topic: str
) -> None:
    site.create_topic(topic)
    sent = [(None, None), ("k", None), (None, "v"), ("", "")]
    site.send(
        topic, {0: [Message(value, key, 1000 * n + 1) for n, (key, value) in enumerate(sent)]}
    )

    found = (
        site.read(spark, subscribe=topic)
        .orderBy("offset")
        .selectExpr(
            "CAST(key AS STRING)", "CAST(value AS STRING)", "unix_millis(timestamp)", "timestampType",
            "topic",
        )
        .collect()
    )  # fmt: skip

    assert [tuple(row) for row in found] == [
        (key, value, 1000 * n + 1, 0, topic) for n, (key, value) in enumerate(sent)
    ]


# Bounds by time


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(
            {"startingTimestamp": 2000, "endingTimestamp": 3000}, ["0-2", "1-2", "2-2"], id="global"
        ),
        pytest.param(
            {"startingTimestamp": 1500}, ["0-2", "0-3", "1-2", "1-3", "2-2", "2-3"], id="start"
        ),
        pytest.param({"endingTimestamp": 1001}, ["0-1", "1-1", "2-1"], id="end"),
        pytest.param(
            {
                "startingOffsetsByTimestamp": (1000, 2000, 3000),
                "endingOffsetsByTimestamp": (2000, 3000, LONG_MAX),
            },
            ["0-1", "1-2", "2-3"],
            id="by-partition-and-no-later-one-is-the-end",
        ),
        pytest.param(
            {"startingOffsetsByTimestamp": (3000, 3000, 3000), "endingOffsets": (3, 3, 2)},
            ["0-3", "1-3"],
            id="start-by-time-end-by-offset",
        ),
        pytest.param(
            {"startingOffsets": (0, 2, EARLIEST), "endingOffsetsByTimestamp": (2000, 3001, 1000)},
            ["0-1", "1-3"],
            id="start-by-offset-end-by-time",
        ),
        pytest.param(
            {
                "startingTimestamp": 3000,
                "startingOffsetsByTimestamp": (1000, 1000, 1000),
                "startingOffsets": "not looked at",
                "endingOffsetsByTimestamp": (LONG_MAX, LONG_MAX, 3000),
                "endingOffsets": "earliest",
            },
            ["0-3", "1-3"],
            id="the-first-of-several-counts",
        ),
    ],
)
def test_times_bound_a_read(
    spark: SparkSession, site: Site, topic: str, options: Mapping[str, Any], expected: list[str]
) -> None:
    timed(site, topic)
    given = {
        key: offsets(topic, *value) if isinstance(value, tuple) else value
        for key, value in options.items()
    }

    assert values(site.read(spark, subscribe=topic, **given)) == expected


def test_a_start_later_than_all_records_is_an_error_or_the_end(
    spark: SparkSession, site: Site, topic: str
) -> None:
    timed(site, topic)
    late = {"subscribe": topic, "startingOffsetsByTimestamp": offsets(topic, 3000, 3000, LONG_MAX)}

    with refused("No offset matched from request"):
        site.read(spark, **late).collect()
    frame = site.read(spark, **late, startingOffsetsByTimestampStrategy="Latest")
    assert values(frame) == ["0-3", "1-3"]


# Topics


def test_a_pattern_is_searched_for_in_the_names(
    spark: SparkSession, site: Site, topic: str
) -> None:
    for number, name in enumerate((topic, f"eu-{topic}-1", f"eu-{topic}-2", "other-" + topic[:-1])):
        site.create_topic(name)
        site.send(name, {0: [str(number)]})

    assert values(site.read(spark, subscribePattern=topic)) == ["0", "1", "2"]
    assert values(site.read(spark, subscribePattern=f"^eu-{topic}-[2-9]$")) == ["2"]


def test_several_topics_are_read_by_name(spark: SparkSession, site: Site, topic: str) -> None:
    for name in ("a-" + topic, "b-" + topic):
        site.create_topic(name)
        site.send(name, {0: [name]})

    assert values(site.read(spark, subscribe=f" a-{topic} , ,b-{topic}")) == [
        "a-" + topic,
        "b-" + topic,
    ]


def test_assigned_partitions_that_do_not_exist_are_left_out(
    spark: SparkSession, site: Site, topic: str
) -> None:
    three_partitions(site, topic)

    assert values(site.read(spark, assign=json.dumps({topic: [1, 2, 7]}))) == ["4", "5", "6"]
    assert values(site.read(spark, assign=json.dumps({topic: []}))) == []


# Division into tasks


def pieces(site: Site, spark: SparkSession, **options: Any) -> list[tuple[int, int, int]]:
    """Return the partition, the first offset and the end offset (exclusive) of each task's piece."""
    frame = site.read(spark, **options)
    by_task = frame.groupBy("partition", functions.spark_partition_id()).agg(
        functions.min("offset"), functions.max("offset") + 1
    )
    return sorted((p, first, end) for p, _, first, end in by_task.collect())


@pytest.mark.parametrize(
    ("counts", "options", "expected"),
    [
        pytest.param(
            (4, 20), {"minPartitions": 4},
            [(0, 0, 4), (1, 0, 6), (1, 6, 13), (1, 13, 20)], id="large-ones-are-split",
        ),
        pytest.param(
            (1, 100), {"minPartitions": 4},
            [(0, 0, 1), (1, 0, 33), (1, 33, 66), (1, 66, 100)], id="small-ones-are-not",
        ),
        pytest.param(
            (10, 10, 1), {"minPartitions": 6},
            [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 3), (1, 3, 6), (1, 6, 10), (2, 0, 1)],
            id="a-hint",
        ),
        pytest.param(
            (39, 49, 59), {"maxRecordsPerPartition": 20},
            [
                (0, 0, 19), (0, 19, 39), (1, 0, 16), (1, 16, 32), (1, 32, 49), (2, 0, 19),
                (2, 19, 39), (2, 39, 59),
            ],
            id="at-most",
        ),
        pytest.param(
            (39,), {"minPartitions": 4, "maxRecordsPerPartition": 20},
            [(0, 0, 9), (0, 9, 19), (0, 19, 29), (0, 29, 39)], id="both",
        ),
        pytest.param((40, 3), {"minPartitions": 2}, [(0, 0, 40), (1, 0, 3)], id="enough-already"),
    ],
)  # fmt: skip
def test_ranges_are_split_at_the_same_offsets(
    spark: SparkSession, site: Site, topic: str, counts: tuple[int, ...], options: dict[str, int],
    expected: list[tuple[int, int, int]],
) -> None:  # fmt: skip
    site.create_topic(topic, partitions=len(counts))
    site.send(topic, {p: [str(n) for n in range(count)] for p, count in enumerate(counts)})
    bounds = {
        "startingOffsets": offsets(topic, *(0 for _ in counts)),
        "endingOffsets": offsets(topic, *counts),
    }

    assert pieces(site, spark, subscribe=topic, **options, **bounds) == expected


def test_ranges_from_earliest_to_latest_are_split_too_and_stay_unresolved(
    spark: SparkSession, site: Site, topic: str
) -> None:
    site.create_topic(topic)
    site.send(topic, {0: [str(n) for n in range(10)]})
    frame = site.read(spark, subscribe=topic, minPartitions=6)

    assert frame.rdd.getNumPartitions() >= 6
    assert len(values(frame)) == 10
    site.send(topic, {0: ["new"]})
    assert "new" in values(frame)


# Refusals


TWO = '{"%s":[0]}'


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({}, ["subscribe", "assign", "subscribePattern"], id="no-strategy"),
        pytest.param({"subscribe": "t", "subscribePattern": "t"}, ["only one|exactly one"], id="two"),
        pytest.param({"subscribe": "t", "assign": TWO % "t"}, ["only one|exactly one"], id="assign-too"),
        pytest.param({"subscribe": " , "}, ["topics"], id="no-topic"),
        pytest.param({"subscribePattern": " "}, ["pattern"], id="no-pattern"),
        pytest.param({"assign": "t"}, ["partitions|assign"], id="assign-no-json"),
        pytest.param({"subscribe": "t", "endingOffsets": "earliest"}, ["end", "earliest"], id="end"),
        pytest.param(
            {"subscribe": "t", "endingOffsets": '{"t":{"0":-2}}'}, ["end", "earliest|-1 is latest"],
            id="end-of-one",
        ),
        pytest.param(
            {
                "subscribe": "t",
                "startingOffsets": '{"t":{"0":0,"1":0}}',
                "endingOffsets": '{"t":{"0":1}}',
            },
            ["same topic-partitions|same partitions"], id="other-partitions",
        ),
        pytest.param(
            {
                "subscribe": "t",
                "startingOffsets": '{"t":{"0":1}}',
                "endingOffsets": '{"t":{"0":0}}',
            },
            ["start.*1", "end"], id="start-past-its-end",
        ),
        pytest.param({"subscribe": "t", "minPartitions": "0"}, ["minPartitions"], id="none-at-least"),
        pytest.param({"subscribe": "t", "minPartitions": "1.0"}, ["minPartitions|1\\.0"], id="fraction"),
        pytest.param(
            {"subscribe": "t", "maxRecordsPerPartition": "0"}, ["maxRecordsPerPartition"], id="max-0"
        ),
        pytest.param({"subscribe": "t", "startingTimestamp": "noon"}, ["long|time|ms"], id="no-time"),
        *(
            pytest.param({"subscribe": "t", f"kafka__{key.replace('.', '__')}": "x"}, [key], id=key)
            for key in (
                "auto.offset.reset", "enable.auto.commit", "interceptor.classes", "key.deserializer",
                "value.deserializer",
            )
        ),
    ],
)  # fmt: skip
def test_load_refuses(
    spark: SparkSession, site: Site, options: dict[str, str], said: list[str]
) -> None:
    if (
        site.format == "kafka"
        and SPARK < (4, 1)
        and {"startingOffsets", "endingOffsets"} <= {*options}
    ):
        pytest.skip("Spark 4.0's own connector compares these only when it plans")
    with refused(*said):
        site.read(spark, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"subscribe": "there-is-none"}, ["does not (host|exist)"], id="unknown-topic"),
        # `load()` of a source in Python cannot tell a batch from a stream, which may start there.
        pytest.param({"startingOffsets": "latest"}, ["start", "latest"], id="start-at-latest"),
        pytest.param(
            {"startingOffsets": (0, -1, 0)},
            ["start", "latest|-2 is earliest"],
            id="start-at-latest-of-one",
        ),
        pytest.param({"startingOffsets": (0, 0)}, ["-2"], id="offsets-of-some"),
        pytest.param({"startingOffsets": (0, 0, 0, 0)}, ["-3"], id="offsets-of-more"),
        pytest.param({"startingOffsetsByTimestamp": (0, 0)}, ["-2"], id="times-of-some"),
        pytest.param(
            {"startingOffsets": (3, 2, 1), "endingTimestamp": 1},
            ["3", "0"],
            id="start-past-its-end",
        ),
    ],
)
def test_an_action_is_refused(
    spark: SparkSession, site: Site, topic: str, options: dict[str, Any], said: list[str]
) -> None:
    three_partitions(site, topic)
    given = {"subscribe": topic} | {
        key: offsets(topic, *value) if isinstance(value, tuple) else value
        for key, value in options.items()
    }
    with refused(*said):
        site.read(spark, **given).collect()


# Data loss


def test_deleted_records_are_an_error_or_are_skipped(
    spark: SparkSession, site: Site, topic: str
) -> None:
    site.create_topic(topic)
    site.send(topic, {0: [str(n) for n in range(10)]})
    whole = {
        "subscribe": topic,
        "startingOffsets": offsets(topic, 0),
        "endingOffsets": offsets(topic, 10),
    }
    site.delete_records(topic, {0: 4})

    with refused(topic):
        site.read(spark, **whole).collect()
    left = site.read(spark, **whole, failOnDataLoss="false")
    assert values(left) == ["4", "5", "6", "7", "8", "9"]


# The sink


def test_a_row_becomes_a_record(spark: SparkSession, site: Site, topic: str) -> None:
    site.create_topic(topic, partitions=2)
    frame = spark.sql(
        "SELECT 'k' AS key, 'v' AS value, 1 AS partition,"
        " array(struct('a' AS key, X'01' AS value), struct('a' AS key, NULL AS value)) AS headers, 5 AS extra"
        " UNION ALL SELECT NULL, NULL, 0, NULL, 6"
    )
    site.write(frame, topic=topic)

    found = site.read(spark, subscribe=topic, includeHeaders="true").orderBy("partition")
    seen = [
        (p, key, value, headers and [(k, v) for k, v in headers])
        for p, key, value, headers in found.selectExpr(
            "partition", "string(key)", "string(value)", "headers"
        ).collect()
    ]
    assert seen == [(0, None, None, None), (1, "k", "v", [("a", b"\x01"), ("a", None)])]


def test_keys_go_to_the_same_partitions_and_the_column_wins(
    spark: SparkSession, site: Site, topic: str
) -> None:
    """Kafka's default partitioner uses murmur2 of the key."""
    site.create_topic(topic, partitions=7)
    frame = spark.range(40).selectExpr("CONCAT('key-', id) AS key", "'v' AS value")
    site.write(frame, topic=topic)

    found = dict(site.read(spark, subscribe=topic).selectExpr("string(key)", "partition").collect())
    assert found == {key: kafkas_partition(key.encode(), 7) for key in found}
    assert len(found) == 40
    site.write(
        frame.withColumn("partition", functions.expr("IF(key = 'key-3', NULL, 6)")), topic=topic
    )
    again = site.read(spark, subscribe=topic).groupBy("partition").count().collect()
    assert dict(again)[6] == list(found.values()).count(6) + 39 + (found["key-3"] == 6)


def test_the_topic_is_the_options_before_the_columns(
    spark: SparkSession, site: Site, topic: str
) -> None:
    for name in ("a-" + topic, "b-" + topic):
        site.create_topic(name)
    frame = spark.createDataFrame(
        [("a-" + topic, "1"), ("b-" + topic, "2")], "topic string, value string"
    )
    site.write(frame)
    site.write(frame, topic=f" b-{topic} ")

    assert values(site.read(spark, subscribe="a-" + topic)) == ["1"]
    assert values(site.read(spark, subscribe="b-" + topic)) == ["1", "2", "2"]


def test_rows_that_were_read_can_be_written_back(
    spark: SparkSession, site: Site, topic: str
) -> None:
    three_partitions(site, topic)
    frame = site.read(spark, subscribe=topic, includeHeaders="true")
    site.write(frame)

    assert values(frame) == sorted(2 * [str(n) for n in range(7)])
    counts = dict(frame.groupBy("partition").count().collect())
    assert counts == {0: 8, 1: 4, 2: 2}


def test_any_expression_of_the_plan_can_be_the_value(
    spark: SparkSession, site: Site, topic: str
) -> None:
    site.create_topic(topic)
    site.write(spark.sql("SELECT to_json(struct(*)) AS value FROM (SELECT 1 AS a)"), topic=topic)

    assert values(site.read(spark, subscribe=topic)) == ['{"a":1}']


@pytest.mark.parametrize(
    ("select", "said"),
    [
        pytest.param("'v' AS value", ["topic option required"], id="no-topic"),
        pytest.param("'t' AS topic", ["required attribute 'value' not found"], id="no-value"),
        pytest.param("'k' AS key", ["topic option required"], id="neither"),
        pytest.param("1 AS value, 1 AS key, 1 AS topic", ["topic must be a"], id="topic-first"),
        pytest.param("1 AS value, 1 AS key, 't' AS topic", ["key must be a"], id="key-before-value"),
        pytest.param("1 AS key, 't' AS topic", ["key must be a"], id="key-before-no-value"),
        pytest.param("'v' AS value, 1 AS topic", ["topic must be a"], id="topic"),
        pytest.param("1 AS value, 't' AS topic", ["value must be a"], id="value"),
        pytest.param("'v' AS value, 't' AS topic, 1 AS key", ["key must be a"], id="key"),
        pytest.param(
            "'v' AS value, 't' AS topic, '1' AS partition", ["partition must be a"], id="partition"
        ),
        pytest.param(
            "'v' AS value, 't' AS topic, map('a', X'01') AS headers", ["headers must be a"],
            id="headers",
        ),
    ],
)  # fmt: skip
def test_save_refuses_columns(
    spark: SparkSession, site: Site, select: str, said: list[str]
) -> None:
    with refused(*said):
        site.write(spark.sql(f"SELECT {select}"))


@pytest.mark.parametrize("key", ["key.serializer", "value.serializer"])
def test_save_refuses_options(spark: SparkSession, site: Site, key: str) -> None:
    with refused(key):
        site.write(
            spark.sql("SELECT 'v' AS value"),
            topic="t", **{f"kafka__{key.replace('.', '__')}": "x"},
        )  # fmt: skip


def test_a_null_topic_fails_the_job(spark: SparkSession, site: Site) -> None:
    with refused("null", "topic"):
        site.write(spark.sql("SELECT 'v' AS value, CAST(NULL AS STRING) AS topic"))


@pytest.mark.parametrize("mode", ["ignore"])
def test_save_refuses_modes(spark: SparkSession, site: Site, mode: str) -> None:
    with refused("mode"):
        site.write(spark.sql("SELECT 'v' AS value"), topic="t", mode=mode)
