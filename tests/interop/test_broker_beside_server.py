"""Our server answers as a real broker does: both get the same requests, of every kind and version.

`KBATCH_JUDGE` is the number of requests, `KBATCH_JUDGE_FIRST` the first seed. Differences that are accepted
are rows of `ACCEPTED`, each with its reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_kbatch.record.header import MAGIC, MAGIC_POSITION
from spark_kbatch.wire import protocol
from spark_kbatch.wire.protocol import ApiKey, request_class
from tests.conftest import REPOSITORY
from tests.support.any_request import Ids, Requests, World
from tests.support.judge import NOT_ASKED, SILENT, Difference, Judge
from tests.support.kafka import Broker, Kafka
from tests.support.served import Served

REQUESTS = int(os.environ.get("KBATCH_JUDGE", "2000"))
SEED = int(os.environ.get("KBATCH_JUDGE_FIRST", "0"))
RESTARTS = 3
PART = REQUESTS // 2 // (RESTARTS + 1)  # requests before the first restart
SHOWN_MAX = 30


def _always(_: Difference) -> bool:
    return True


class Accepted(NamedTuple):
    """A difference from Kafka that is accepted."""

    why: str
    said: str  # in docs/server.md; empty where no client's user can notice
    requests: str  # the names of their kinds, as a pattern
    path: str  # of the field, as a pattern
    when: Callable[[Difference], bool] = _always

    def covers(self, found: Difference) -> bool:
        """Return True if it explains a difference."""
        return bool(
            re.fullmatch(self.requests, found.api_key.name)
            and re.fullmatch(self.path, found.path)
            and self.when(found)
        )


def _codes(*pairs: tuple[object, object]) -> Callable[[Difference], bool]:
    return lambda found: (found.broker, found.server) in pairs


def _server_says(*codes: int) -> Callable[[Difference], bool]:
    return lambda found: found.server in codes


def _both(found: Difference) -> set[object]:
    return {found.broker, found.server}


def _asks(key: str, *values: object) -> Callable[[Difference], bool]:
    return lambda found: found.fields.get(key, values[0]) not in values


def _is_of_brokers(found: Difference) -> bool:
    return found.context.get("resource_type") != 2


def _is_internal(found: Difference) -> bool:
    names = (
        found.context.get("name"),
        found.context.get("topic"),
        *_names(found.broker, found.server),
    )
    return any(str(name).startswith("__") for name in names)


def _names(*values: object) -> list[object]:
    return [one.get("name") or one.get("topic") for one in values if isinstance(one, dict)]


def _has_no_partitions(found: Difference) -> bool:
    one = found.broker or found.server
    names = ("partitions", "partition_responses", "results_by_partition")
    return isinstance(one, dict) and [] in map(one.get, names)


def _is_empty(value: object) -> bool:
    """Return True if a partition of a log dir, or each of a topic's, has no records."""
    if not isinstance(value, dict):
        return False
    return not any(one["partition_size"] for one in value.get("partitions", [value]))


def _has_unknown_magic(fields: Mapping[str, Any]) -> bool:
    batches = [one["records"] for topic in fields["topic_data"] for one in topic["partition_data"]]
    return any(one and one[MAGIC_POSITION] > MAGIC for one in batches)


def _names_twice(found: Difference) -> bool:
    return _repeats(found.fields)


def _repeats(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_repeats, value.values()))
    if not isinstance(value, list):
        return False
    names = [
        repr(next(iter(one.values()))) if isinstance(one, dict) and one else repr(one)
        for one in value
    ]
    return len({*names}) < len(names) or any(map(_repeats, value))


ERROR = r"(.*\.)?error_code"
ACCEPTED = [
    # What a user may notice.
    Accepted(
        "the server's settings are fixed while it runs",
        "a change of the server's settings while it runs",
        "(INCREMENTAL_)?ALTER_CONFIGS",
        ERROR,
        _is_of_brokers,
    ),
    Accepted(
        "there are no settings of clients, groups and loggers",
        "settings of clients, groups and loggers",
        "DESCRIBE_CONFIGS|(INCREMENTAL_)?ALTER_CONFIGS",
        ERROR,
        _is_of_brokers,
    ),
    Accepted(
        "settings with one possible value cannot be changed, and say so",
        "one that has a single value here",
        "CREATE_TOPICS|DESCRIBE_CONFIGS",
        r".*\.configs\.read_only",
        _codes((False, True)),
    ),
    Accepted(
        "segments are not rolled by time",
        "Records expire, and segments are rolled by time, only if a topic's settings say so",
        "CREATE_TOPICS|DESCRIBE_CONFIGS",
        r".*\.configs\.value",
        lambda found: found.context["name"] in ("segment.ms", "retention.ms"),
    ),
    Accepted(
        "logs are not compacted",
        "`cleanup.policy=compact`",
        "CREATE_TOPICS|(INCREMENTAL_)?ALTER_CONFIGS",
        ERROR,
        _codes((0, 40)),
    ),
    Accepted(
        "the cluster's own topics are shown, and read only",
        "anything but reading a topic whose name starts with `__`",
        ".*",
        ".*",
        _is_internal,
    ),
    Accepted(
        "fetch sessions are not offered",
        "fetch sessions",
        "FETCH",
        "error_code",
        _codes((70, 0), (71, 0), (0, 70), (-1, 70)),
    ),
    Accepted(
        "a follower of the network is refused at once; Kafka looks at the partitions first",
        "a fetch as a replica",
        "FETCH",
        ERROR,
        _server_says(31),
    ),
    Accepted(
        "a producer that goes on is compared with the epoch first, a broker aborts the open transaction first",
        "A producer that was replaced harms no one",
        "INIT_PRODUCER_ID",
        ERROR,
        _codes((51, 90), (51, 47)),
    ),
    Accepted(
        "a broker's leader epochs rise with each restart",
        "",
        ".*",
        r"(.*\.)?leader_epoch",
        lambda found: "now" in f"{found.broker} {found.server}",
    ),
    # What no client sends, or looks at.
    Accepted(
        "where Kafka fails on a bad value, the answer says what is wrong, or the value has a meaning",
        "",
        "LIST_OFFSETS|FETCH|PRODUCE|CREATE_PARTITIONS|JOIN_GROUP",
        rf"{ERROR}|member_id",
        lambda found: -1 in (found.broker, found.context.get("error_code")),
    ),
    Accepted(
        "a request as a whole is refused before its partitions are looked at",
        "",
        "PRODUCE",
        ERROR,
        _server_says(21),
    ),
    Accepted(
        "a batch has log append time, or a producer id without an epoch and a sequence",
        "",
        "PRODUCE",
        ERROR,
        _codes((0, 32), (0, 87), (45, 87)),
    ),
    Accepted(
        "of several errors of one resource, topic or transaction, another one is named",
        "",
        "(INCREMENTAL_)?ALTER_CONFIGS|CREATE_TOPICS|CREATE_PARTITIONS|TXN_OFFSET_COMMIT",
        ERROR,
        lambda found: 0 not in (found.broker, found.server),
    ),
    Accepted(
        "a broker makes the logs of new partitions, and drops those of deleted ones, a moment later",
        "",
        "DESCRIBE_LOG_DIRS",
        r"results\.topics(\.partitions)?",
        lambda found: (
            None in (found.broker, found.server) and _is_empty(found.broker or found.server)
        ),
    ),
    Accepted(
        "records that were all deleted count in a broker until their segment is rolled",
        "",
        "DESCRIBE_LOG_DIRS",
        r"results\.topics\.partitions\.partition_size",
        lambda found: found.server < found.broker,
    ),
    Accepted(
        "records that were all deleted count in a broker until their segment is rolled",
        "",
        "LIST_OFFSETS",
        r"topics\.partitions\.(timestamp|offset|leader_epoch)",
        lambda found: found.server == -1 and "'timestamp': -3" in str(found.fields),
    ),
    Accepted(
        "two new topics of one request collide",
        "",
        "CREATE_TOPICS",
        ERROR,
        _codes((0, 17)),
    ),
    Accepted(
        "a resource of an unknown type makes Kafka refuse the others",
        "",
        "DESCRIBE_CONFIGS",
        ERROR,
        lambda found: any(one["resource_type"] in (0, 1, 99) for one in found.fields["resources"]),
    ),
    Accepted(
        "a topic is deleted by its name and by its id in one request",
        "",
        "DELETE_TOPICS",
        ".*",
        lambda found: len(found.fields.get("topics", ())) > 1,
    ),
    Accepted(
        "a topic that a client asks for is there when the answer is; Kafka lets the client ask again",
        "",
        "METADATA",
        r"topics(\.error_code)?",
        _codes((3, 0)),
    ),
    Accepted(
        "a batch is bad, and so is its partition: either error is named",
        "",
        "PRODUCE",
        ERROR,
        lambda found: 0 not in _both(found) and bool(_both(found) & {3, 17}),
    ),
    Accepted(
        "a batch has a magic that no one knows: Kafka looks at none of the request, here at the others",
        "",
        "PRODUCE",
        ".*",
        lambda found: found.broker == 2 and _has_unknown_magic(found.fields),
    ),
    Accepted(
        "a transactional batch of no transaction: a broker says what its coordinator misses",
        "",
        "PRODUCE",
        ERROR,
        lambda found: found.server == 48 and found.broker in (42, 49),
    ),
    Accepted(
        "a broker that was stopped forgets producers whose last record is older than a day",
        "",
        "DESCRIBE_PRODUCERS",
        r"topics\.partitions\.active_producers",
        lambda found: found.broker is None and found.number >= PART,
    ),
    Accepted(
        "a broker that was stopped forgets producers whose last record is older than a day",
        "",
        "PRODUCE",
        ERROR,
        lambda found: (found.broker, found.server) == (0, 45) and found.number >= PART,
    ),
    Accepted(
        "so it appends a batch again, which the server takes for the first one's repetition",
        "",
        "PRODUCE",
        r".*\.base_offset",
        lambda found: 0 <= found.server < found.broker and found.number >= PART,
    ),
    Accepted(
        "a broker knows of a transaction a partition with the offsets of many groups, not the group",
        "",
        "TXN_OFFSET_COMMIT",
        ERROR,
        _codes((0, 48), (0, 120)),
    ),
    Accepted(
        "a broker remembers producers whose records were all deleted",
        "",
        "DESCRIBE_PRODUCERS",
        r"topics\.partitions\.active_producers",
        lambda found: found.server is None,
    ),
    Accepted(
        "a broker on a busy machine takes longer than it was asked to wait",
        "",
        "FETCH",
        "waited",
        lambda found: found.broker and not found.fields["max_wait_ms"],
    ),
    Accepted(
        "a topic of a request has neither a name nor an id: Kafka says nothing besides",
        "",
        "METADATA",
        "brokers|controller_id|error_code",
        lambda found: {"topic_id": None, "name": None} in (found.fields.get("topics") or ()),
    ),
    Accepted(
        "a protocol of a group whose name is empty: Kafka says that there is none",
        "",
        "JOIN_GROUP|SYNC_GROUP",
        "protocol_name",
        _codes((None, "")),
    ),
    Accepted(
        "the log start offset beside an error",
        "",
        "PRODUCE|FETCH",
        r"responses\.partition(s|_responses)\.log_start_offset",
        lambda found: found.context["error_code"] != 0,
    ),
    Accepted(
        "no aborted transactions, as null or as none, beside an error or for a bad isolation level",
        "",
        "FETCH",
        r"responses\.partitions\.aborted_transactions",
        lambda found: found.context["error_code"] != 0 or _asks("isolation_level", 0, 1)(found),
    ),
    Accepted(
        "a topic without partitions in a request",
        "",
        ".*",
        r"(.*\.)?(topics|responses|results_by_topic_v3_and_below)",
        _has_no_partitions,
    ),
    Accepted(
        "what is named twice in a request is answered once, or refused",
        "",
        ".*",
        ".*",
        _names_twice,
    ),
    Accepted(
        "a broker shows a new group once its record is read from its log, a moment later",
        "",
        "LIST_GROUPS",
        "groups",
        lambda found: found.broker is None,
    ),
    Accepted(
        "a group of which no one is a member, and none was: Kafka remembers it, or shows it later",
        "",
        "LIST_GROUPS",
        "groups",
        lambda found: (found.broker or found.server)["protocol_type"] == "",
    ),
    Accepted(
        "a group of which no one is a member, and none was: Kafka remembers it, or shows it later",
        "",
        "DESCRIBE_GROUPS",
        r"groups\.group_state",
        _codes(("Empty", "Dead"), ("Dead", "Empty")),
    ),
    Accepted(
        "a group is empty a moment after its last member left, if another has an id and did not join",
        "",
        "DESCRIBE_GROUPS",
        r"groups\.group_state",
        _codes(("Empty", "PreparingRebalance")),
    ),
    Accepted(
        "a group of which no one is a member, and none was: Kafka remembers it, or shows it later",
        "",
        "OFFSET_DELETE|DELETE_GROUPS|OFFSET_COMMIT",
        ERROR,
        _codes((0, 69), (25, 22)),
    ),
    Accepted(
        "a member joins again while its join waits; Kafka never answers the first request",
        "",
        "JOIN_GROUP",
        "",
        lambda found: found.broker == SILENT and found.server["error_code"] == 25,
    ),
    Accepted(
        "the leader left while others joined: Kafka makes any of them the leader, here it is the first",
        "",
        "JOIN_GROUP",
        "leader|members",
        lambda found: found.context["error_code"] == 0 and found.context["generation_id"] > 1,
    ),
    Accepted(
        "a topic that is only validated has no id; Kafka makes one up",
        "",
        "CREATE_TOPICS",
        r"topics\.topic_id",
        _codes(("a new id", None)),
    ),
]


@pytest.mark.interop
@pytest.mark.parametrize("auto_create", [True, False], ids=["auto-create", "no auto-create"])
def test_the_server_answers_any_request_as_a_broker_does(
    kafka: Kafka, tmp_path: Path, auto_create: bool
) -> None:
    broker = Broker(
        kafka, tmp_path / "broker", log_retention_ms=-1,
        auto_create_topics_enable=str(auto_create).lower(),
    )  # fmt: skip
    options = [] if auto_create else ["--no-auto-create"]
    server = Served(
        tmp_path / "cluster", tmp_path / "server.log", "--create",
        "--config", "group.initial.rebalance.delay.ms=0", *options,
    )  # fmt: skip
    with broker, server, Judge(broker.address, server.address, seed=SEED + auto_create) as judge:
        for number in range(PART * (RESTARTS + 1)):
            if number and number % PART == 0:
                judge.before_restart()
                broker.stop()
                server.kill()
                broker.start()
                server.start()
                judge.after_restart()
            judge.ask(number)

    unexplained = [
        found for found in judge.differences if not any(row.covers(found) for row in ACCEPTED)
    ]
    assert not unexplained, "\n".join(map(str, unexplained[:SHOWN_MAX]))


@pytest.mark.interop
def test_requests_of_which_a_broker_has_higher_versions_are_in_the_page(
    kafka: Kafka, tmp_path: Path
) -> None:
    server = Served(tmp_path / "cluster", tmp_path / "server.log", "--create")
    with Broker(kafka, tmp_path / "broker") as broker, server:
        judge = Judge(broker.address, server.address, seed=SEED)
        ones, others = (side.versions() for side in judge.sides)
        judge.disconnect()
    higher = {key for key in others if ones[key][1] > others[key][1]}
    page = (REPOSITORY / "docs/server.md").read_text()
    (said,) = [line for line in page.splitlines() if line.startswith("Versions of Kafka 4.1 ")]

    words = {*re.findall(r"\w+", said)}
    assert higher == {
        key for key in others if request_class(key).__name__.removesuffix("Request") in words
    }


def test_every_kind_of_request_is_asked_in_every_version_that_both_offer() -> None:
    """The kinds that are left out are named."""
    asked = {ApiKey(key) for key in protocol.SUPPORTED} - NOT_ASKED

    assert asked == {key for key in asked if _can_be_made(key)}


def _can_be_made(api_key: ApiKey) -> bool:
    world, ids = World(), Ids()
    versions = protocol.SUPPORTED[api_key]
    for version in range(versions.first, versions.last + 1):
        for number in range(20):
            Requests(world, SEED).make(number, api_key, version).frame_for(ids)
    return True


def test_differences_that_users_may_notice_are_in_the_page_about_the_server() -> None:
    page = (REPOSITORY / "docs/server.md").read_text()

    assert [row.said for row in ACCEPTED if row.said not in page] == []
