"""A producer's options: Kafka's names, ranges, defaults, and the rules between them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.errors import ConfigError
from spark_kbatch.options.producer import ProducerConfig, parse_producer_options

VALID: dict[str, tuple[Any, str, Any]] = {
    "batch.size": (1000, "batch_size", 1000),
    "buffer.memory": ("65536", "buffer_memory", 65536),
    "compression.type": ("SNAPPY", "compression_type", "snappy"),
    "max.block.ms": (0, "max_block_ms", 0),
    "partitioner.ignore.keys": (True, "partitioner_ignore_keys", True),
    "partitioner.adaptive.partitioning.enable": (
        "false", "partitioner_adaptive_partitioning_enable", False,
    ),
    "retry.backoff.ms": ("7", "retry_backoff_ms", 7),
    "flush": (False, "flush", False),
    "transactional.id": ("a name", "transactional_id", "a name"),
    "transaction.timeout.ms": ("5000", "transaction_timeout_ms", 5000),
    "partitioner.class": ("a.b", "partitioner_class", "a.b"),
}  # fmt: skip


@given(st.sets(st.sampled_from(sorted(VALID))), st.booleans())
def test_any_valid_options_change_their_fields_and_no_other(keys: set[str], dots: bool) -> None:
    options = {key if dots else key.replace(".", "_"): VALID[key][0] for key in keys}
    found = vars(parse_producer_options(options))
    assert found == vars(ProducerConfig()) | {VALID[key][1]: VALID[key][2] for key in keys}


@pytest.mark.parametrize(("value", "acks"), [("all", -1), (-1, -1), (1, 1), ("0", 0), ("ALL", -1)])
def test_acks_may_be_a_word_or_a_number(value: Any, acks: int) -> None:
    assert parse_producer_options({"acks": value}).acks == acks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acks": 2}, "option 'acks' is '2'; accepted: all, -1, 1, 0"),
        ({"linger_ms": -1}, "option 'linger.ms' is '-1'; accepted: a whole number from 0"),
        ({"linger_ms": 1.5}, "option 'linger.ms' is 1.5 of type float; accepted: 0 or more"),
        ({"batch_size": "big"}, "option 'batch.size' is 'big'"),
        ({"flush": "maybe"}, "option 'flush' is 'maybe'; accepted: true or false"),
        ({"compression_type": "lzma"}, "option 'compression.type' is 'lzma'; accepted: none, gzip"),
        ({"compression_gzip_level": 0}, "option 'compression.gzip.level' is '0'"),
        ({"compression.lz4.level": 18}, "option 'compression.lz4.level' is '18'"),
        ({"compression.zstd.level": 23}, "option 'compression.zstd.level' is '23'"),
        ({"linger": 5}, "unknown option 'linger'; the nearest known one is 'linger.ms'"),
        ({"linger_ms": 1, "linger.ms": 1}, "given twice"),
        ({"bootstrap_servers": "x:1"}, "has no meaning here: the cluster is a folder"),
        (
            {"transactional.id": ""},
            "option 'transactional.id' is ''; accepted: a name of 1 to 1000",
        ),
        ({"transactional_id": "a\nb"}, "option 'transactional.id' is 'a\\nb'; accepted: a name"),
        (
            {"transaction_timeout_ms": 0},
            "option 'transaction.timeout.ms' is '0'; accepted: a whole",
        ),
        (
            {"transaction.two.phase.commit.enable": True},
            "no other system takes part in a transaction",
        ),
        (
            {"transactional_id": "t", "acks": 1},
            "'transactional.id' is given, which requires idempotence, and 'acks' is 1; accepted",
        ),
        (
            {"transactional_id": "t", "enable_idempotence": False},
            "'enable.idempotence' is false and 'transactional.id' is given; accepted with it: true",
        ),
        ({"ssl_cafile": "x"}, "option 'ssl.cafile' has no meaning here: it concerns connections"),
        ({"key_serializer": str}, "records are bytes or text already"),
        ({"partitioner_availability_timeout_ms": 1}, "no brokers that could be slow"),
        (
            {"delivery_timeout_ms": 10},
            "'delivery.timeout.ms' is 10; accepted: at least 'linger.ms' + 'request.timeout.ms', 30000",
        ),
        (
            {"enable_idempotence": True, "acks": 1},
            "'enable.idempotence' is true and 'acks' is 1; accepted with idempotence: all",
        ),
        ({"enable_idempotence": True, "retries": 0}, "'retries' is 0"),
        (
            {"enable_idempotence": True, "max.in.flight.requests.per.connection": 6},
            "accepted with idempotence: at most 5",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_key_value_and_what_is_accepted(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        parse_producer_options(options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "options", [{"acks": 1}, {"retries": 0}, {"max.in.flight.requests.per.connection": 6}]
)
def test_idempotence_that_no_one_asked_for_gives_way_and_says_so(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert not parse_producer_options(options).enable_idempotence
    assert f"idempotence is off, because {next(iter(options))} is" in caplog.text


def test_a_long_linger_raises_the_delivery_timeout_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse_producer_options({"linger_ms": 100_000}).delivery_timeout_ms == 130_000
    assert "delivery.timeout.ms is raised" in caplog.text


def test_a_level_counts_only_for_the_codec_that_is_used() -> None:
    levels = {"compression_gzip_level": 2, "compression_zstd_level": 7}
    assert parse_producer_options(levels).compression_level is None
    found = parse_producer_options(levels | {"compression_type": "zstd"})
    assert found.compression_level == 7


def test_a_partitioner_may_be_the_function_itself() -> None:
    assert parse_producer_options({"partitioner_class": min}).partitioner_class is min


def test_a_pause_that_cannot_grow_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse_producer_options({"retry.backoff.ms": 2000})
    assert "retry.backoff.ms, 2000, is greater than retry.backoff.max.ms" in caplog.text


def test_no_batch_size_is_a_batch_per_record() -> None:
    assert parse_producer_options({"batch.size": 0}).batch_size == 1
