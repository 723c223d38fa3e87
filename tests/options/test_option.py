"""What holds for each option, whatever takes it: its name in Python, and its default."""

from __future__ import annotations

import re
import tracemalloc

import pytest

from spark_kbatch.errors import ConfigError
from spark_kbatch.options.option import Option, fields_of, nearest, table_of
from spark_kbatch.options.producer import ProducerConfig
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.options.registry import PREFIX, RegistryOptions
from spark_kbatch.options.remote import ClusterOptions
from spark_kbatch.options.security import Security
from spark_kbatch.options.server import ServerConfig
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.options.write import WriteOptions
from tests.support.generated_docs import default_text

ALL = (
    ClusterOptions, ProducerConfig, ReadOptions, RegistryOptions, Security, ServerConfig, TopicConfig, WriteOptions,
)  # fmt: skip
OTHER_NAMES = {
    "maxTriggerDelay": "max_trigger_delay_ms",
    "sasl.oauthbearer.client.credentials.client.id": "sasl_oauthbearer_client_id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl_oauthbearer_client_secret",
    "security.protocol": "protocol",
    "startingOffsetsByTimestampStrategy": "no_match",
}


def in_python(key: str) -> str:
    bare = key.removeprefix(PREFIX)
    return re.sub(r"[A-Z]", lambda capital: f"_{capital[0]}", bare).replace(".", "_").lower()


@pytest.mark.parametrize("cls", ALL)
def test_an_option_becomes_the_field_of_its_name(cls: type) -> None:
    keys = [option.key for option in table_of(cls)]
    assert len(set(keys)) == len(keys)
    for key in keys:
        named = fields_of(cls, {key: "x"})
        assert named in ({}, {OTHER_NAMES.get(key, in_python(key)): "x"})


@pytest.mark.parametrize(
    "option",
    {
        option.key: option
        for option in (option for cls in ALL for option in table_of(cls))
        if option.default is not None and option.default_words in ("", "all", "latest", "15m")
    }.values(),
    ids=lambda option: option.key,
)
def test_the_default_that_the_table_names_is_the_one_that_counts(option: Option) -> None:
    assert option.parse(default_text(option)) == option.default


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("retention.ms", "7d", "; it is in milliseconds: 7d is 604800000"),
        ("retention.ms", "7 days", "7 days is 604800000"),
        ("retention.ms", "90min", "90min is 5400000"),
        ("retention.ms", "500ms", "500ms is 500"),
        ("retention.ms", "5 Millis", "5 Millis is 5"),
        ("segment.bytes", "64MB", "; it is in bytes: 64MB is 67108864"),
        ("segment.bytes", "1 GiB", "1 GiB is 1073741824"),
        ("batch.size", "64k", "64k is 65536"),
        ("buffer.memory", "1g", "1g is 1073741824"),
        ("offsets.retention.minutes", "7d", "; it is in minutes: 7d is 10080"),
    ],
)
def test_a_number_with_a_unit_is_refused_with_what_it_is(key: str, value: str, said: str) -> None:
    (option,) = {one.key: one for cls in ALL for one in table_of(cls) if one.key == key}.values()
    with pytest.raises(ConfigError, match=rf"accepted: a whole number from .*{said}$"):
        option.parse(value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("retention.ms", "7mo"), ("retention.ms", "7x"), ("retention.ms", "d"), ("retention.ms", "64GB"),
     ("offsets.retention.minutes", "7s"), ("num.partitions", "5k"), ("segment.bytes", "7 days")],
)  # fmt: skip
def test_a_unit_that_an_option_cannot_have_is_not_converted(key: str, value: str) -> None:
    (option,) = {one.key: one for cls in ALL for one in table_of(cls) if one.key == key}.values()
    with pytest.raises(ConfigError, match=r"accepted: a whole number from -?\d+ to \d+$"):
        option.parse(value)


def test_no_name_is_near_to_a_very_long_one_which_costs_nothing_to_say() -> None:
    long = "retention.ms" * 20_000
    tracemalloc.start()
    found = nearest(long, ["retention.ms"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert found is None
    assert peak < len(long)
    assert nearest("retention.mss", ["retention.ms"]) == "retention.ms"
