"""What holds for each option, whatever takes it: its name in Python, and its default."""

from __future__ import annotations

import re
import tracemalloc

import pytest

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


def test_no_name_is_near_to_a_very_long_one_which_costs_nothing_to_say() -> None:
    long = "retention.ms" * 20_000
    tracemalloc.start()
    found = nearest(long, ["retention.ms"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert found is None
    assert peak < len(long)
    assert nearest("retention.mss", ["retention.ms"]) == "retention.ms"
