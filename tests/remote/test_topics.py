"""Topics of a real cluster whose brokers know of a change one after another, and lose answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_kbatch.errors import (
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.options.remote import parse_cluster_options
from spark_kbatch.remote.client import Client
from spark_kbatch.remote.topics import RemoteCatalog, RemoteTopic
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import (
    ApiKey,
    CreateTopicsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
    Request,
)
from tests.support.wire_servers import LoopbackServer, metadata_answer

DEFAULT, OF_THE_TOPIC = 5, 1  # sources of a setting


class Broker:
    """A broker with a topic of three partitions, which may exist or not; its answers may be replaced."""

    def __init__(self) -> None:
        self.exists = True
        self.settings = {"retention.ms": ("1000", DEFAULT), "cleanup.policy": ("delete", DEFAULT)}
        self.answers: dict[int, Callable[[int], Any]] = {}  # by kind: of the nth request, from 0 on
        self.asked: dict[int, int] = {}
        self.node = Node(-1, "", 0)

    def __call__(self, request: Request) -> Any:
        key = request.api_key
        number = self.asked[key] = self.asked.get(key, -1) + 1
        given = self.answers[key](number) if key in self.answers else None
        if given is not None:
            return given
        if key == ApiKey.METADATA:
            nodes = [Node(1, self.node.host, self.node.port)]
            found = metadata_answer(nodes, {"t": [1, 1, 1]} if self.exists else {})
            if not self.exists and request.body.topics:
                topic = type(found).MetadataResponseTopic
                unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                found.topics = [topic(error_code=unknown, name="t", partitions=[])]
            return found
        if key == ApiKey.CREATE_TOPICS:
            created = CreateTopicsResponse.CreatableTopicResult
            code = ErrorCode.TOPIC_ALREADY_EXISTS if self.exists else ErrorCode.NONE
            self.exists = True
            return CreateTopicsResponse(topics=[created(name="t", error_code=code, configs=[])])
        if key == ApiKey.INCREMENTAL_ALTER_CONFIGS:
            one = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=0, error_message=None, resource_type=2, resource_name="t"
            )
            return IncrementalAlterConfigsResponse(responses=[one])
        return self.described()

    def described(self, code: int = 0, **changed: tuple[str, int]) -> Any:
        """Return the answer to DescribeConfigs."""
        result = DescribeConfigsResponse.DescribeConfigsResult
        settings = self.settings | {key.replace("_", "."): one for key, one in changed.items()}
        entries = [
            result.DescribeConfigsResourceResult(
                name=name, value=value, read_only=False, config_source=source, is_sensitive=False,
                synonyms=[], config_type=0, documentation=None,
            )
            for name, (value, source) in settings.items()
        ]  # fmt: skip
        one = result(
            error_code=code, error_message=None, resource_type=2, resource_name="t",
            configs=[] if code else entries,
        )  # fmt: skip
        return DescribeConfigsResponse(results=[one])


@pytest.fixture
def broker() -> Broker:
    return Broker()


@contextmanager
def asking(broker: Broker, **options: Any) -> Iterator[Client]:
    """Yield a client of the broker."""
    with LoopbackServer(broker) as server:
        broker.node = server.node
        given = {"bootstrap_servers": str(server.node), "retry_backoff_ms": 1, **options}
        with Client(parse_cluster_options(given, alone=True)) as client:
            yield client


def catalog_of(client: Client) -> RemoteCatalog:
    return RemoteCatalog(lambda: contextlib.nullcontext(client))


def create(client: Client, *, exist_ok: bool = False, **settings: str) -> RemoteTopic:
    return catalog_of(client).create_topic(
        "t",
        partitions=int(settings.pop("partitions", "3")),
        replication_factor=None,
        config={key.replace("_", "."): value for key, value in settings.items()},
        exist_ok=exist_ok,
    )


def first(answer: Any) -> Callable[[int], Any]:
    """Return a script that gives an answer to the first request alone."""
    return lambda number: answer if number == 0 else None


@pytest.mark.parametrize("asked", [{"partitions": "7"}, {"retention_ms": "5"}])
def test_a_topic_that_differs_is_not_taken_for_one_that_a_lost_request_created(
    broker: Broker, asked: dict[str, str]
) -> None:
    broker.answers[ApiKey.CREATE_TOPICS] = first("hang up")

    with asking(broker) as client, pytest.raises(TopicAlreadyExistsError, match="exists, with"):
        create(client, **asked)


def test_a_topic_that_a_lost_request_may_have_created_is_returned(broker: Broker) -> None:
    broker.answers[ApiKey.CREATE_TOPICS] = first("hang up")

    with asking(broker) as client:
        assert create(client, retention_ms="1000").partitions == 3


def test_attempts_that_created_nothing_are_no_reason_to_take_a_topic_that_exists(
    broker: Broker,
) -> None:
    broker.answers[ApiKey.METADATA] = first("hang up")

    with asking(broker) as client, pytest.raises(TopicAlreadyExistsError, match="choose another"):
        create(client)


def test_changed_settings_are_returned_once_a_broker_shows_them(broker: Broker) -> None:
    changed = {"retention_ms": ("7", OF_THE_TOPIC), "cleanup_policy": ("compact,delete", 1)}

    def shown(number: int) -> Any:
        return broker.described(**changed) if number > 2 else broker.described()

    broker.answers[ApiKey.DESCRIBE_CONFIGS] = shown
    with asking(broker) as client:
        wanted = {"retention.ms": " 7", "cleanup.policy": "compact, delete"}
        found = catalog_of(client).alter_topic("t", wanted)

    assert found.settings == {"retention.ms": "7", "cleanup.policy": "compact,delete"}


def test_reset_settings_are_returned_once_a_broker_shows_them(broker: Broker) -> None:
    def shown(number: int) -> Any:
        source = DEFAULT if number > 2 else OF_THE_TOPIC
        return broker.described(retention_ms=(str(number), source))

    broker.answers[ApiKey.DESCRIBE_CONFIGS] = shown
    with asking(broker) as client:
        assert (
            catalog_of(client).alter_topic("t", {"retention.ms": None}).settings["retention.ms"]
            == "3"
        )


def test_settings_that_no_broker_shows_are_an_error_that_says_so(broker: Broker) -> None:
    with (
        asking(broker, default_api_timeout_ms=100, request_timeout_ms=50) as client,
        pytest.raises(RequestTimedOutError, match=r"'t' were changed, and no broker .* 100 ms"),
    ):
        catalog_of(client).alter_topic("t", {"retention.ms": "7"})


def test_settings_that_this_client_may_not_see_are_not_waited_for(broker: Broker) -> None:
    hidden = broker.described(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    broker.answers[ApiKey.DESCRIBE_CONFIGS] = lambda _number: hidden

    with asking(broker) as client:
        assert catalog_of(client).alter_topic("t", {"retention.ms": "7"}).settings == {}


def test_a_topic_that_one_broker_does_not_know_yet_is_asked_for_again(broker: Broker) -> None:
    unknown = broker.described(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    broker.answers[ApiKey.DESCRIBE_CONFIGS] = first(unknown)

    with asking(broker) as client:
        assert catalog_of(client).topic("t").settings["retention.ms"] == "1000"


def test_a_topic_that_goes_while_it_is_looked_at_does_not_exist(broker: Broker) -> None:
    def gone(_number: int) -> Any:
        broker.exists = False
        return broker.described(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    broker.answers[ApiKey.DESCRIBE_CONFIGS] = gone

    with asking(broker) as client, pytest.raises(UnknownTopicOrPartitionError, match="'t'"):
        catalog_of(client).topic("t")
