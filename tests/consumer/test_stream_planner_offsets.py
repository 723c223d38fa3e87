"""Offsets of streams have one text form, and any other text is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.consumer.stream_planner import StreamOffset, is_another_topic
from spark_kbatch.errors import ConfigError
from spark_kbatch.model import TopicPartition

A0, A2, A10, B0 = (
    TopicPartition("a", 0),
    TopicPartition("a", 2),
    TopicPartition("a", 10),
    TopicPartition("b", 0),
)

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b", "A-b_c.d"]), st.integers(0, 30))
offsets = st.dictionaries(partitions, st.integers(0, 2**63 - 1))
stream_offsets = st.builds(
    StreamOffset,
    offsets,
    st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"])),
    st.none() | offsets,
)


@given(stream_offsets)
def test_an_offset_round_trips_through_json(offset: StreamOffset) -> None:
    text = json.dumps(offset.to_json())

    assert StreamOffset.from_json(json.loads(text)) == offset


@given(stream_offsets, st.randoms())
def test_equal_offsets_have_equal_texts(offset: StreamOffset, random: Any) -> None:
    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        items = [(key, shuffled(one)) for key, one in value.items()]
        random.shuffle(items)
        return dict(items)

    text = json.dumps(offset.to_json())

    assert json.dumps(StreamOffset.from_json(shuffled(offset.to_json())).to_json()) == text


def test_topics_are_sorted_by_name_and_partitions_by_number_with_our_part_last() -> None:
    offset = StreamOffset(
        {B0: 1, A10: 3, A2: 7}, {"b": "id-b", "a": "id-a"}, initial={B0: 0, A2: 5, A10: 3}
    )

    assert json.dumps(offset.to_json()) == (
        '{"a": {"2": 7, "10": 3}, "b": {"0": 1}, "@kbatch": {"ids": {"a": "id-a", "b": "id-b"}, '
        '"initial": {"a": {"2": 5, "10": 3}, "b": {"0": 0}}}}'
    )


def test_an_offset_of_sparks_connector_is_accepted() -> None:
    offset = StreamOffset.from_json({"a": {"0": 5, "2": 1}, "b": {"0": 0}})

    assert offset == StreamOffset({A0: 5, A2: 1, B0: 0})
    assert offset.to_json() == {"a": {"0": 5, "2": 1}, "b": {"0": 0}}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="nothing"),
        pytest.param(7, id="a number"),
        pytest.param({"a": 7}, id="no partitions"),
        pytest.param({"a": {"0": "7"}}, id="text for an offset"),
        pytest.param({"a": {"0": True}}, id="a truth for an offset"),
        pytest.param({"a": {"0": 7.0}}, id="a fraction for an offset"),
        pytest.param({"a": {"0": -1}}, id="latest"),
        pytest.param({"a": {"0": 2**63}}, id="an offset of 65 bits"),
        pytest.param({"a": {"-1": 7}}, id="a negative partition"),
        pytest.param({"a": {"x": 7}}, id="text for a partition"),
        pytest.param({"a": {"²": 7}}, id="a partition in superscript"),
        pytest.param({"a": {"9" * 5000: 7}}, id="a partition of 5000 digits"),
        pytest.param({"a/b": {"0": 7}}, id="an invalid topic name"),
        pytest.param({"@kbatch": 7}, id="our part is not an object"),
        pytest.param({"@kbatch": {"ids": {"a": 7}}}, id="a number for an id"),
        pytest.param({"@kbatch": {"initial": 7}}, id="initial is not an object"),
        pytest.param({"@kbatch": {"later": 7}}, id="written by a later release"),
    ],
)
def test_other_json_is_refused_as_an_offset(value: Any) -> None:
    with pytest.raises(ConfigError, match="checkpoint holds"):
        StreamOffset.from_json(value)


@pytest.mark.parametrize(
    ("initial", "moved"),
    [
        pytest.param({A0: 5}, False, id="at its start"),
        pytest.param({A0: 4}, True, id="further"),
        pytest.param({}, True, id="a new partition"),
        pytest.param(None, True, id="start forgotten"),
    ],
)
def test_a_query_has_moved_once_it_is_past_its_start(initial: Any, moved: bool) -> None:
    assert StreamOffset({A0: 5}, initial=initial).has_moved is moved


@pytest.mark.parametrize(
    ("ids", "later", "another"),
    [
        pytest.param({"a": "x"}, {"a": "x"}, False, id="the same"),
        pytest.param({"a": "x"}, {"a": "y"}, True, id="another"),
        pytest.param({}, {"a": "x"}, False, id="not known before"),
        pytest.param({"a": "x"}, {}, False, id="not known now"),
        pytest.param({"b": "x"}, {"b": "y"}, False, id="of another topic"),
    ],
)
def test_a_topic_was_recreated_only_if_both_ids_are_known_and_differ(
    ids: dict[str, str], later: dict[str, str], another: bool
) -> None:
    assert is_another_topic("a", ids, later) is another
