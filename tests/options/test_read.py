"""The options of reads: accepted values, precedence, and error messages."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import EARLIEST, LATEST, IsolationLevel, TopicPartition
from spark_kbatch.options.read import (
    READ_OPTIONS,
    Assign,
    Offsets,
    ReadOptions,
    Subscribe,
    SubscribePattern,
    Timestamps,
    parse_batch_or_stream_options,
    parse_read_options,
    parse_stream_read_options,
)

READ = {"path": "/data", "subscribe": "events"}
EVENTS_0, EVENTS_1 = TopicPartition("events", 0), TopicPartition("events", 1)
BOTH = [
    pytest.param(parse_read_options, id="batch"),
    pytest.param(parse_stream_read_options, id="stream"),
]


def read(key: str, value: str) -> ReadOptions:
    selects = key in ("subscribe", "subscribePattern", "assign")
    return parse_read_options(({"path": "/data"} if selects else READ) | {key: value})


# Defaults, and values that are accepted.


@pytest.mark.parametrize(
    ("parse", "start"),
    [
        pytest.param(parse_read_options, EARLIEST, id="batch"),
        pytest.param(parse_stream_read_options, LATEST, id="stream"),
    ],
)
def test_a_read_needs_no_option_but_a_path_and_topics(
    parse: Callable[[dict[str, str]], ReadOptions], start: int
) -> None:
    assert parse(READ) == ReadOptions(
        path="/data",
        selection=Subscribe(("events",)),
        starting=Offsets("startingOffsets", start),
        ending=Offsets("endingOffsets", LATEST),
    )


@pytest.mark.parametrize(
    ("key", "value", "field", "parsed"),
    [
        pytest.param("subscribe", "a, b ,a,", "selection", Subscribe(("a", "b")), id="topics"),
        pytest.param("subscribePattern", " ev.* ", "selection", SubscribePattern("ev.*"), id="pattern"),
        pytest.param("assign", '{"events":[1,0,1]}', "selection", Assign((EVENTS_0, EVENTS_1)), id="assign"),
        pytest.param("assign", '{"events":[]}', "selection", Assign(()), id="assign of no partition"),
        pytest.param("assign", " {} ", "selection", Assign(()), id="assign of nothing"),
        pytest.param("startingOffsets", " EarLiest ", "starting", Offsets("startingOffsets", EARLIEST), id="earliest"),
        pytest.param("endingOffsets", "laTEST", "ending", Offsets("endingOffsets", LATEST), id="latest"),
        pytest.param(
            "startingOffsets", '{"events":{"0":0,"1":-2}}', "starting",
            Offsets("startingOffsets", {EVENTS_0: 0, EVENTS_1: EARLIEST}), id="starting offsets",
        ),
        pytest.param(
            "endingOffsets", ' {"events":{"0":9223372036854775807,"1":-1}} ', "ending",
            Offsets("endingOffsets", {EVENTS_0: 2**63 - 1, EVENTS_1: LATEST}), id="ending offsets",
        ),
        pytest.param(
            "startingOffsets", '{"Events":{"0":1}}', "starting",
            Offsets("startingOffsets", {TopicPartition("Events", 0): 1}), id="a topic in capitals",
        ),
        pytest.param(
            "startingOffsets", '{"events":{"0":1},"@kbatch":{"ids":{"events":"x"}}}', "starting",
            Offsets("startingOffsets", {EVENTS_0: 1}), id="offsets of a stream",
        ),
        pytest.param(
            "startingOffsets", '{"events":{"0":1},"clicks":"EarliesT"}', "starting",
            Offsets("startingOffsets", {EVENTS_0: 1}, {"clicks": EARLIEST}), id="a start of a topic",
        ),
        pytest.param(
            "endingOffsets", '{"events":"latest"}', "ending",
            Offsets("endingOffsets", {}, {"events": LATEST}), id="an end of a topic",
        ),
        pytest.param("startingTimestamp", " 0 ", "starting", Timestamps("startingTimestamp", 0), id="a time"),
        pytest.param("endingTimestamp", str(2**63 - 1), "ending", Timestamps("endingTimestamp", 2**63 - 1), id="the last time"),
        pytest.param(
            "endingOffsetsByTimestamp", '{"events":{"0":5,"01":6}}', "ending",
            Timestamps("endingOffsetsByTimestamp", {EVENTS_0: 5, EVENTS_1: 6}), id="times",
        ),
        pytest.param("startingOffsetsByTimestampStrategy", "LATEST", "no_match", "latest", id="strategy"),
        pytest.param("INCLUDEHEADERS", "True", "include_headers", True, id="key in capitals"),
        pytest.param("kafka.isolation.level", "Read_Uncommitted", "isolation_level", IsolationLevel.READ_UNCOMMITTED, id="isolation"),
        pytest.param("foreign.end", "Checkpoint", "foreign_end", "checkpoint", id="end of a broker's log"),
    ],
)  # fmt: skip
def test_read_option_is_parsed(key: str, value: str, field: str, parsed: object) -> None:
    assert getattr(read(key, value), field) == parsed


@pytest.mark.parametrize(
    ("key", "value", "field", "parsed"),
    [
        pytest.param("startingOffsets", "Latest", "starting", Offsets("startingOffsets", LATEST), id="latest"),
        pytest.param("startingOffsets", '{"events":{"0":-1,"1":-2}}', "starting", Offsets("startingOffsets", {EVENTS_0: LATEST, EVENTS_1: EARLIEST}), id="sentinels"),
        pytest.param("startingOffsets", '{"b":"LATEST","a":"earliest","events":{"0":2}}', "starting", Offsets("startingOffsets", {EVENTS_0: 2}, {"a": EARLIEST, "b": LATEST}), id="by topic"),
        pytest.param("MINOFFSETSPERTRIGGER", "0", "min_offsets_per_trigger", 0, id="least"),
        pytest.param("maxTriggerDelay", "5s", "max_trigger_delay_ms", 5000, id="seconds"),
        pytest.param("maxTriggerDelay", " 15M ", "max_trigger_delay_ms", 900_000, id="minutes"),
        pytest.param("maxTriggerDelay", "2min", "max_trigger_delay_ms", 120_000, id="minutes in full"),
        pytest.param("maxTriggerDelay", "250", "max_trigger_delay_ms", 250, id="no unit"),
        pytest.param("maxTriggerDelay", "1999us", "max_trigger_delay_ms", 1, id="microseconds"),
        pytest.param("maxTriggerDelay", "1h", "max_trigger_delay_ms", 3_600_000, id="hour"),
        pytest.param("maxTriggerDelay", "1d", "max_trigger_delay_ms", 86_400_000, id="day"),
    ],
)  # fmt: skip
def test_stream_option_is_parsed(key: str, value: str, field: str, parsed: object) -> None:
    assert getattr(parse_stream_read_options(READ | {key: value}), field) == parsed


@pytest.mark.parametrize("parse", BOTH)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("groupIdPrefix", "mine"),
        ("kafka.group.id", "mine"),
        ("kafkaConsumer.pollTimeoutMs", "1000"),
        ("KAFKACONSUMER.POLLTIMEOUTMS", "1000"),
        ("fetchOffset.numRetries", "0"),
        ("fetchoffset.numretries", "5"),
        ("fetchOffset.retryIntervalMs", "10"),
    ],
)
def test_option_that_only_a_broker_needs_is_accepted_and_changes_nothing(
    parse: Callable[[dict[str, str]], ReadOptions], key: str, value: str
) -> None:
    assert parse(READ | {key: value}) == parse(READ)


@pytest.mark.parametrize("key", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"])
def test_option_of_a_stream_is_ignored_in_a_batch_with_a_warning(
    caplog: pytest.LogCaptureFixture, key: str
) -> None:
    with caplog.at_level(logging.WARNING):
        read(key, "10")

    assert f"option {key!r} is ignored in a batch read" in caplog.text


# Precedence.


def side(parse: Callable[[dict[str, str]], ReadOptions], **options: str) -> Offsets | Timestamps:
    return parse(READ | options).starting


@pytest.mark.parametrize("parse", BOTH)
def test_one_time_goes_before_times_and_those_before_offsets(
    parse: Callable[[dict[str, str]], ReadOptions],
) -> None:
    one, times = {"startingTimestamp": "7"}, {"startingOffsetsByTimestamp": '{"events":{"0":8}}'}
    offsets = {"startingOffsets": '{"events":{"0":9}}'}

    assert side(parse, **one, **times, **offsets) == Timestamps("startingTimestamp", 7)
    assert side(parse, **times, **offsets) == Timestamps(
        "startingOffsetsByTimestamp", {EVENTS_0: 8}
    )
    assert side(parse, **offsets) == Offsets("startingOffsets", {EVENTS_0: 9})


def test_what_loses_is_not_looked_at() -> None:
    lost = {"startingOffsets": "latest", "startingOffsetsByTimestamp": "nonsense"}
    won = parse_read_options(READ | lost | {"startingTimestamp": "7"})

    assert won.starting == Timestamps("startingTimestamp", 7)


MISTAKES = [
    ("unknown", {"startingOfsets": "x"}),
    ("startingOffsetsByTimestampStrategy", {"startingOffsetsByTimestampStrategy": "x"}),
    ("startingOffsets", {"startingOffsets": "x"}),
    ("endingOffsets", {"endingOffsets": "x"}),
    ("exactly one", {"assign": "x"}),
    ("minPartitions", {"minPartitions": "x"}),
    ("maxRecordsPerPartition", {"maxRecordsPerPartition": "x"}),
    ("auto.offset.reset", {"kafka.auto.offset.reset": "x"}),
    ("no path", {"path": ""}),
    ("higher than", {"minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"}),
    ("failOnDataLoss", {"failOnDataLoss": "x"}),
]


@pytest.mark.parametrize("first", range(len(MISTAKES)))
def test_of_several_mistakes_the_first_is_reported(first: int) -> None:
    """Mistakes are reported in the order of Spark's connector, where it knows them."""
    options = dict(READ)
    for _, mistake in reversed(MISTAKES[first:]):
        options |= mistake
    with pytest.raises(ConfigError, match=MISTAKES[first][0]):
        parse_read_options(options)


def test_sides_that_do_not_fit_are_reported_last() -> None:
    wrong = offsets({"0": 2}, {"0": 1})
    with pytest.raises(ConfigError, match="failOnDataLoss"):
        parse_read_options(READ | wrong | {"failOnDataLoss": "x"})


# Values that are refused.


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        pytest.param("includeHeaders", "1", "true or false", id="headers"),
        pytest.param("subscribe", "", "one or more topics", id="no topic"),
        pytest.param("subscribe", " , ,", "one or more topics", id="commas only"),
        pytest.param("subscribePattern", " ", "a regular expression that is not empty", id="no pattern"),
        pytest.param("subscribePattern", "a(", "a regular expression in Python", id="no regular expression"),
        pytest.param("assign", "", "partitions by topic as JSON", id="empty assign"),
        pytest.param("assign", "events", "partitions by topic as JSON", id="assign of a word"),
        pytest.param("assign", "[0]", "partitions by topic as JSON", id="assign of a list"),
        pytest.param("assign", '{"events":0}', "partitions by topic as JSON", id="assign of a number"),
        pytest.param("startingOffsets", "latest", "'earliest', or offsets", id="start at latest"),
        pytest.param("endingOffsets", "earliest", "'latest', or offsets", id="end at earliest"),
        pytest.param("startingOffsets", "23", "'earliest', or offsets", id="start at a number"),
        pytest.param("startingOffsets", "", "'earliest', or offsets", id="empty start"),
        pytest.param("endingOffsets", '{"events":[0]}', "'latest', or offsets", id="end with a list"),
        pytest.param("endingOffsets", '{"events":{"0":1}', "'latest', or offsets", id="JSON cut off"),
        pytest.param("startingOffsets", '{"events":"first"}', "'earliest', or offsets", id="another word for a topic"),
        pytest.param("startingOffsets", '{"events":{"0":"earliest"}}', "'earliest', or offsets", id="a word for a partition"),
        pytest.param("startingOffsetsByTimestamp", '{"events":"earliest"}', "times in ms by topic", id="a word for times"),
        pytest.param("startingTimestamp", "now", "a whole number from 0", id="no time"),
        pytest.param("endingTimestamp", "-1", "a whole number from 0", id="a time below zero"),
        pytest.param("startingTimestamp", str(2**63), "a whole number from 0", id="a time past 63 bits"),
        pytest.param("startingOffsetsByTimestamp", "5", "times in ms by topic", id="one time for times"),
        pytest.param("startingOffsetsByTimestamp", '{"events":{"0":-2}}', "times in ms by topic", id="a sentinel for a time"),
        pytest.param("endingOffsetsByTimestamp", '{"events":{"0":1.5}}', "times in ms by topic", id="half a time"),
        pytest.param("startingOffsetsByTimestampStrategy", "earliest", "error, latest", id="strategy"),
        pytest.param("minPartitions", "0", "a whole number from 1 to 2147483647", id="partitions: none"),
        pytest.param("maxOffsetsPerTrigger", "all", "a whole number from 1", id="offsets a trigger"),
        pytest.param("maxTriggerDelay", "soon", "a time such as", id="delay: a word"),
        pytest.param("maxTriggerDelay", "1.5s", "a time such as", id="delay: a fraction"),
        pytest.param("maxTriggerDelay", "-1s", "a time such as", id="delay: negative"),
        pytest.param("maxTriggerDelay", "1 week", "a time such as", id="delay: unknown unit"),
        pytest.param("isolation.level", "serializable", "read_uncommitted, read_committed", id="isolation"),
        pytest.param("max.decompressed.batch.bytes", "0", "a whole number from 1 to 2147483647", id="largest batch: none"),
        pytest.param("fetchOffset.numRetries", "x", "a whole number", id="retries"),
    ],
)  # fmt: skip
def test_refusal_names_the_option_what_came_and_what_is_accepted(
    key: str, value: str, accepted: str
) -> None:
    with pytest.raises(ConfigError) as error:
        read(key, value)

    assert str(error.value).startswith(f"option {key!r} is {value!r}; accepted: {accepted}")


@pytest.mark.parametrize("value", ["latest", '{"events":{"0":-1}}'], ids=["word", "number"])
def test_a_batch_that_begins_where_only_a_stream_may_is_told_so(value: str) -> None:
    with pytest.raises(ConfigError, match="; only a stream may start at 'latest', or -1"):
        read("startingOffsets", value)


@pytest.mark.parametrize(
    ("key", "text", "wrong"),
    [
        pytest.param("startingOffsets", '{"a":{"0":23},"b":"LAST"}', "topic 'b' has \"LAST\"", id="a word"),
        pytest.param("startingOffsets", '{"a":"earliest","b":"latest"}', "topic 'b' has \"latest\"", id="a start of a batch"),
        pytest.param("endingOffsets", '{"a":"earliest"}', "topic 'a' has \"earliest\"", id="an end"),
        pytest.param("endingOffsets", '{"a":[0]}', "topic 'a' has [0]", id="a list"),
        pytest.param("startingOffsetsByTimestamp", '{"a":"latest"}', "topic 'a' has \"latest\"", id="times"),
    ],
)  # fmt: skip
def test_the_error_for_a_topic_as_a_whole_names_it_and_what_it_has(
    key: str, text: str, wrong: str
) -> None:
    with pytest.raises(ConfigError) as error:
        read(key, text)

    assert str(error.value).endswith(f"; {wrong}")


def test_the_error_before_it_is_known_whether_a_batch_or_a_stream_is_read_is_one_of_both() -> None:
    """What a batch alone refuses is not what is wrong with the options."""
    wrong = {"startingOffsets": '{"a":{"0":23,"1":-1},"b":"LAST"}'}
    with pytest.raises(ConfigError, match="; topic 'b' has \"LAST\""):
        parse_batch_or_stream_options(READ | wrong)
    with pytest.raises(ConfigError, match="; a-1 has -1"):
        parse_batch_or_stream_options(READ | wrong | {"endingOffsets": "latest"})


@pytest.mark.parametrize("key", ["endingOffsets", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(key: str) -> None:
    with pytest.raises(
        ConfigError, match=f"option '{key}' is for batch reads: a stream has no end"
    ):
        parse_stream_read_options(READ | {key: "latest"})


def test_the_time_at_which_a_batch_would_end_is_ignored_in_a_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse_stream_read_options(READ | {"endingTimestamp": "x"}) == (
            parse_stream_read_options(READ)
        )

    assert "'endingTimestamp' is ignored in a stream" in caplog.text


@pytest.mark.parametrize("parse", BOTH)
def test_least_offsets_of_a_trigger_are_not_more_than_the_most(
    parse: Callable[[dict[str, str]], ReadOptions],
) -> None:
    with pytest.raises(ConfigError) as error:
        parse(READ | {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"})

    assert str(error.value) == (
        "option 'minOffsetsPerTrigger' is 20, higher than 'maxOffsetsPerTrigger', 15"
    )


OFFSETS = [
    pytest.param("startingOffsets", LATEST, id="latest as a start"),
    pytest.param("endingOffsets", EARLIEST, id="earliest as an end"),
    pytest.param("startingOffsets", -3, id="start at minus three"),
    pytest.param("endingOffsets", 2**63, id="end past 63 bits"),
    pytest.param("startingOffsets", 10**40, id="start at a huge number"),
    pytest.param("startingOffsets", True, id="true"),
    pytest.param("endingOffsets", False, id="false"),
    pytest.param("startingOffsets", 1.0, id="a fraction"),
    pytest.param("startingOffsets", "1", id="a number in quotes"),
    pytest.param("endingOffsets", None, id="null"),
]


@pytest.mark.parametrize(("key", "offset"), OFFSETS)
def test_bad_offset_is_refused(key: str, offset: object) -> None:
    value = json.dumps({"events": {"0": offset}})
    with pytest.raises(ConfigError) as error:
        read(key, value)

    assert str(error.value).startswith(f"option {key!r} is {value!r}; accepted: ")
    assert str(error.value).endswith(f"; events-0 has {json.dumps(offset)}")


PARTITIONS = [
    pytest.param("-1", id="negative"),
    pytest.param("first", id="a word"),
    pytest.param("", id="empty"),
    pytest.param(" 0", id="a blank"),
    pytest.param("+0", id="a sign"),
    pytest.param("0.0", id="a fraction"),
    pytest.param("2147483648", id="past 31 bits"),
    pytest.param("9" * 5000, id="huge"),
    pytest.param("\N{ARABIC-INDIC DIGIT THREE}", id="a digit of another script"),
    pytest.param("0\n", id="a line end"),
]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_bad_partition_of_an_offset_is_refused(partition: str) -> None:
    value = json.dumps({"events": {partition: 1}})
    with pytest.raises(ConfigError, match=r"option 'startingOffsets' is .*; accepted: 'earliest'"):
        read("startingOffsets", value)


def test_zeros_in_front_of_a_partition_do_not_matter() -> None:
    assert read("startingOffsets", '{"events":{"01":7}}').starting == Offsets(
        "startingOffsets", {EVENTS_1: 7}
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"events":{"0":1,"00":2}}', id="with a zero in front"),
        pytest.param('{"events":{"0":1,"0":2}}', id="by its number"),
        pytest.param('{"events":{"0":1},"events":{"0":2}}', id="by its topic"),
        pytest.param('{"events":"earliest","events":{"0":2}}', id="for its topic as a whole too"),
    ],
)
def test_an_offset_given_twice_for_one_partition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="option 'startingOffsets' is "):
        read("startingOffsets", text)


@pytest.mark.parametrize(
    "partition",
    [
        pytest.param(-1, id="negative"),
        pytest.param(True, id="true"),
        pytest.param(0.0, id="a fraction"),
        pytest.param(None, id="null"),
        pytest.param([0], id="a list"),
        pytest.param(2**31, id="past 31 bits"),
    ],
)
def test_bad_partition_of_assign_is_refused(partition: object) -> None:
    value = json.dumps({"events": [partition]})
    with pytest.raises(ConfigError) as error:
        read("assign", value)

    assert str(error.value).startswith(
        f"option 'assign' is {value!r}; accepted: partitions by topic"
    )


@pytest.mark.parametrize("key", ["assign", "startingOffsets", "endingOffsets"])
def test_json_that_no_parser_can_hold_is_refused(key: str) -> None:
    """For excessive numbers or nesting, Python's parser raises other errors than for a typo."""
    for value in ('{"events":' * 200_000, '{"events":{"0":' + "9" * 10_000 + "}}"):
        with pytest.raises(ConfigError, match=f"option '{key}' is "):
            read(key, value)


# Options that belong together.


@pytest.mark.parametrize("parse", BOTH)
@pytest.mark.parametrize(
    ("options", "found"),
    [
        pytest.param({}, "none was given", id="none"),
        pytest.param(
            {"subscribe": "a", "assign": '{"a":[0]}'}, "'subscribe' and 'assign' were given", id="two"
        ),
        pytest.param(
            {"subscribe": "a", "SUBSCRIBEPATTERN": "a"},
            "'subscribe' and 'subscribePattern' were given", id="two others",
        ),
        pytest.param(
            {"assign": "", "subscribe": "", "subscribePattern": ""},
            "'subscribe' and 'subscribePattern' and 'assign' were given", id="all, empty",
        ),
    ],
)  # fmt: skip
def test_exactly_one_selection_is_needed(
    parse: Callable[[dict[str, str]], ReadOptions], options: dict[str, str], found: str
) -> None:
    with pytest.raises(ConfigError, match=f"exactly one of the options .* is required; {found}"):
        parse({"path": "/data", **options})


def offsets(start: dict[str, int], end: dict[str, int], by: str = "Offsets") -> dict[str, str]:
    return {
        f"starting{by}": json.dumps({"events": start}),
        f"ending{by}": json.dumps({"events": end}),
    }


SIDES = pytest.mark.parametrize("by", ["Offsets", "OffsetsByTimestamp"])


@SIDES
def test_both_sides_name_the_same_partitions(by: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_read_options(READ | offsets({"0": 1, "1": 1}, {"1": 2, "2": 2}, by))

    assert str(error.value) == (
        f"options 'starting{by}' and 'ending{by}' should have the same topic-partitions; "
        "only one of them names events-0, events-2"
    )


@SIDES
def test_start_past_end_is_refused(by: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_read_options(READ | offsets({"0": 1, "1": 8}, {"0": 1, "1": 7}, by))

    assert str(error.value) == (
        f"option 'starting{by}' of events-1 is 8, greater than 7 in 'ending{by}'"
    )


def test_sides_of_different_kinds_are_not_compared() -> None:
    start = {"startingOffsets": '{"events":{"0":9}}'}
    assert parse_read_options(READ | start | {"endingOffsetsByTimestamp": '{"events":{"1":1}}'})
    assert parse_read_options(READ | start | {"endingTimestamp": "1"})


@pytest.mark.parametrize(
    ("start", "end"),
    [
        pytest.param(7, 7, id="an empty range"),
        pytest.param(7, LATEST, id="to latest"),
        pytest.param(EARLIEST, 0, id="from earliest to the first"),
        pytest.param(EARLIEST, LATEST, id="everything"),
    ],
)
def test_start_before_end_is_accepted(start: int, end: int) -> None:
    parsed = parse_read_options(READ | offsets({"0": start}, {"0": end}))

    assert parsed.starting == Offsets("startingOffsets", {EVENTS_0: start})
    assert parsed.ending == Offsets("endingOffsets", {EVENTS_0: end})


def test_an_option_given_twice_with_two_values_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"option 'isolation\.level' is given twice"):
        parse_read_options(
            READ
            | {"isolation.level": "read_committed", "kafka.isolation.level": "read_uncommitted"}
        )


def test_every_option_of_sparks_connector_is_in_the_table() -> None:
    """Options with names of their own; Kafka's keys are passed through with their prefix."""
    assert {option.key for option in READ_OPTIONS} >= set(
        "assign subscribe subscribePattern kafka.bootstrap.servers startingTimestamp "
        "startingOffsetsByTimestamp startingOffsets startingOffsetsByTimestampStrategy "
        "endingTimestamp endingOffsetsByTimestamp endingOffsets failOnDataLoss includeHeaders "
        "minPartitions maxRecordsPerPartition maxOffsetsPerTrigger minOffsetsPerTrigger "
        "maxTriggerDelay kafkaConsumer.pollTimeoutMs fetchOffset.numRetries "
        "fetchOffset.retryIntervalMs groupIdPrefix".split()
    )
