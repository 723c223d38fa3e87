"""Topics of a real cluster: look them up with their settings, create, grow, change, empty and delete them.

Each change is sent to the controller, or to the leaders, and waits until it shows in metadata. It may be sent
twice, because an answer can be lost. So what is asked for is checked first, and a change that turns out to be done
already is not an error.

Source: Kafka clients/.../admin/KafkaAdminClient.java; DeleteTopicsRequest.json, CreatePartitionsRequest.json,
IncrementalAlterConfigsRequest.json, DeleteRecordsRequest.json.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from spark_kbatch.errors import (
    ConfigError,
    KBatchError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
)
from spark_kbatch.model import TopicPartition, bytes_of_uuid, numbers_by_topic
from spark_kbatch.options import arguments
from spark_kbatch.options.topic import (
    Topic,
    TopicConfig,
    ensure_more_partitions,
    ensure_valid_topic,
    topic_key,
)
from spark_kbatch.remote import offsets
from spark_kbatch.remote.client import Client
from spark_kbatch.remote.metadata import TopicMetadata
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.errors import ErrorCode, error_of
from spark_kbatch.wire.protocol import (
    ApiKey,
    CreatePartitionsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)

ALL_RECORDS = -1  # in place of an offset to delete below
_CLUSTERS_DEFAULT = -1
_DEFAULT_MAX_MESSAGE_BYTES = 1_048_588  # of a cluster that does not tell its own
_TOPIC = 2  # a type of resources
_SET, _DELETE = 0, 1  # operations on a setting
_DELETES_BY_ID_SINCE = 6
_OF_THE_TOPIC = 1  # the source of a setting that is not a default
_HIDES_SETTINGS = {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}


@dataclass(frozen=True)
class RemoteTopic(Topic):
    """A topic of a real cluster: its name, id, partitions, replicas and settings.

    The id is empty if the cluster tells none. `config` is None: what settings there are, and what they mean,
    is for the cluster to say.
    """

    leaders: tuple[int, ...] = ()  #: node ids by partition; -1 for a partition without a leader
    isr: tuple[tuple[int, ...], ...] = ()  #: replicas that are in sync, by partition
    #: By Kafka's keys, as the cluster tells them; empty if this client may not see them.
    settings: Mapping[str, str | None] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        copies = f", replication_factor={self.replication_factor}"
        return f"RemoteTopic({self.name!r}, partitions={self.partitions}{copies})"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), "leaders", "isr", "settings"]

    @property
    def replication_factor(self) -> int:
        """The topic's number of replicas per partition."""
        return len(self.replicas[0]) if self.replicas else 0


class RemoteCatalog:
    """The topics of one real cluster; a `store.Catalog`.

    Brokers learn of a change one after another: for a moment some may still show what was before.
    """

    def __init__(self, client: Callable[[], AbstractContextManager[Client]]) -> None:
        """Set up for the cluster of which `client` leases a client."""
        self._client = client

    def topics(self, *, internal: bool) -> list[RemoteTopic]:
        """Return all topics, sorted by name; internal ones only if asked."""
        with self._client() as client:
            found = client.metadata(fresh=True).topics.values()
            return _with_settings(client, [one for one in found if internal or not one.is_internal])

    def topic(self, name: str) -> RemoteTopic:
        """Return a topic with its replicas and settings."""
        with self._client() as client:
            return find_topic(client, name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None,
        replication_factor: int | None,
        config: TopicConfig | Mapping[str, object],
        exist_ok: bool,
    ) -> RemoteTopic:
        """Create a topic, and wait until its partitions have leaders.

        Raises:
            TopicAlreadyExistsError: it exists; with `exist_ok`, or where the answer to a first request was lost,
                it differs; says how.
            KBatchError: the cluster refused it; says why.
        """
        ensure_valid_topic(name)
        settings = {key: _set(key, value) for key, value in _settings(config).items()}
        is_ours = False
        with self._client() as client:
            try:
                is_ours = client.create_topic(
                    name,
                    _CLUSTERS_DEFAULT if partitions is None else partitions,
                    _CLUSTERS_DEFAULT if replication_factor is None else replication_factor,
                    settings,
                )
            except TopicAlreadyExistsError:
                if not exist_ok:
                    raise
            found = find_topic(client, name)
            given = {"partitions": partitions, "replication_factor": replication_factor}
            differs = [
                f"{key}={getattr(found, key)}"
                for key, value in given.items()
                if value is not None and getattr(found, key) != value
            ]
            differs += [
                f"{key}={found.settings.get(key)}"
                for key, value in settings.items()
                if found.settings and _plain(found.settings.get(key)) != _plain(value)
            ]
            if differs and not is_ours:
                raise TopicAlreadyExistsError(name, ", ".join(differs))
            return found

    def delete_topic(self, name: str) -> RemoteTopic:
        """Delete a topic with all its records."""
        with self._client() as client:
            found = find_topic(client, name)
            _ensure_not_internal(client, name)
            timeout_ms = _timeout_ms(client)

            def body(version: int) -> Any:
                if version < _DELETES_BY_ID_SINCE:
                    return DeleteTopicsRequest(topic_names=[name], timeout_ms=timeout_ms)
                # By its id, so that a request that is sent again deletes no other topic with this name.
                topic = DeleteTopicsRequest.DeleteTopicState
                one = (
                    topic(name=None, topic_id=uuid.UUID(bytes=bytes_of_uuid(found.topic_id)))
                    if found.topic_id
                    else topic(name=name, topic_id=uuid.UUID(int=0))
                )
                return DeleteTopicsRequest(topics=[one], timeout_ms=timeout_ms)

            (deleted,) = client.request_controller(ApiKey.DELETE_TOPICS, body).responses
            gone = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
            if deleted.error_code not in gone:
                _ensure_done(deleted, f"topic {name!r} cannot be deleted")

            def is_gone() -> bool:
                there = client.metadata([name], fresh=True).topics.get(name)
                return there is None or there.topic_id != found.topic_id

            _wait_until(client, is_gone, f"topic {name!r} was deleted, but is still there")
            return found

    def create_partitions(self, name: str, total_count: int) -> RemoteTopic:
        """Add partitions to a topic."""
        with self._client() as client:
            found = find_topic(client, name)
            _ensure_not_internal(client, name)
            ensure_more_partitions(name, found.partitions, total_count)
            topic = CreatePartitionsRequest.CreatePartitionsTopic
            body = CreatePartitionsRequest(
                topics=[topic(name=name, count=total_count, assignments=None)],
                timeout_ms=_timeout_ms(client),
                validate_only=False,
            )
            (created,) = client.request_controller(ApiKey.CREATE_PARTITIONS, body).results

            def count() -> int:
                return len(client.topic(name, fresh=True).partitions)

            if created.error_code != ErrorCode.INVALID_PARTITIONS or count() != total_count:
                _ensure_done(created, f"topic {name!r} cannot have {total_count} partitions")
            _wait_until(
                client,
                lambda: count() >= total_count,
                f"topic {name!r} has been given partitions that are not there yet",
            )
            for number in range(total_count):
                client.leader(TopicPartition(name, number))
            return find_topic(client, name)

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> RemoteTopic:
        """Change settings of a topic, which the cluster checks."""
        settings = {
            key: None if value is None else _set(key, value)
            for key, value in _settings(changes).items()
        }
        with self._client() as client:
            find_topic(client, name)
            if settings:
                resource = IncrementalAlterConfigsRequest.AlterConfigsResource
                body = IncrementalAlterConfigsRequest(
                    resources=[
                        resource(
                            resource_type=_TOPIC,
                            resource_name=name,
                            configs=[
                                resource.AlterableConfig(
                                    name=key,
                                    config_operation=_DELETE if value is None else _SET,
                                    value=value,
                                )
                                for key, value in settings.items()
                            ],
                        )
                    ],
                    validate_only=False,
                )
                (altered,) = client.request_controller(
                    ApiKey.INCREMENTAL_ALTER_CONFIGS, body
                ).responses
                _ensure_done(altered, f"settings of topic {name!r} cannot be changed")

            def is_shown(entries: list[Any]) -> bool:
                by_key = {one.name: one for one in entries}
                return all(
                    by_key[key].config_source != _OF_THE_TOPIC
                    if value is None
                    else _plain(by_key[key].value) == _plain(value)
                    for key, value in settings.items()
                    if key in by_key
                )

            return _find(
                client,
                name,
                is_shown,
                f"settings of topic {name!r} were changed, and no broker that was asked shows it",
            )

    def delete_records(self, below: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset in each partition."""
        if not below:
            return {}
        with self._client() as client:
            # As numbers, so that a request that is sent again deletes no record that came meanwhile.
            wanted = {}
            for tp, edges in offsets.edges(client, below).items():
                wanted[tp] = edges.high_watermark if below[tp] == ALL_RECORDS else below[tp]
                if wanted[tp] > edges.high_watermark:
                    raise OffsetOutOfRangeError(
                        str(tp), wanted[tp], edges.log_start_offset, edges.high_watermark
                    )
            timeout_ms = _timeout_ms(client)
            topic = DeleteRecordsRequest.DeleteRecordsTopic

            def build(_node: Node, partitions: list[TopicPartition]) -> Any:
                topics = [
                    topic(
                        name=name,
                        partitions=[
                            topic.DeleteRecordsPartition(
                                partition_index=number, offset=wanted[TopicPartition(name, number)]
                            )
                            for number in numbers
                        ],
                    )
                    for name, numbers in numbers_by_topic(partitions).items()
                ]
                return DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)

            return client.request_leaders(ApiKey.DELETE_RECORDS, wanted, build, _log_starts)


def find_topic(client: Client, name: str) -> RemoteTopic:
    """Return a topic of the cluster with its settings, as it is now.

    Raises:
        UnknownTopicOrPartitionError: it does not exist; names those that do.
    """
    return _find(
        client, name, lambda _entries: True, f"topic {name!r} is known to some brokers only"
    )


def _find(
    client: Client, name: str, is_shown: Callable[[list[Any]], bool], otherwise: str
) -> RemoteTopic:
    """Return a topic once a broker shows it with its settings, and these are as they should be.

    Brokers learn one after another of topics that come and go, and of settings that change.

    Raises:
        UnknownTopicOrPartitionError: it does not exist; names those that do.
        RequestTimedOutError: begins with `otherwise`.
    """
    found: list[RemoteTopic] = []

    def look() -> bool:
        topic = client.topic(name, fresh=True)
        entries = _entries_of(client, [name]).get(name)
        if entries is None or not is_shown(entries):
            return False
        found.append(_topic(topic, _values(entries)))
        return True

    _wait_until(client, look, otherwise)
    return found[0]


def _with_settings(client: Client, topics: list[TopicMetadata]) -> list[RemoteTopic]:
    settings = settings_of(client, [one.name for one in topics])
    return [_topic(one, settings[one.name]) for one in topics if one.name in settings]


def _topic(found: TopicMetadata, settings: Mapping[str, str | None]) -> RemoteTopic:
    return RemoteTopic(
        found.name,
        found.topic_id,
        len(found.partitions),
        None,
        replicas=tuple(one.replicas for one in found.partitions),
        leaders=tuple(one.leader for one in found.partitions),
        isr=tuple(one.isr for one in found.partitions),
        settings=settings,
    )


def settings_of(client: Client, topics: Iterable[str]) -> dict[str, dict[str, str | None]]:
    """Return the settings of these topics, by topic name, without topics deleted meanwhile."""
    return {name: _values(entries) for name, entries in _entries_of(client, topics).items()}


def max_message_bytes(client: Client, topic: str) -> int:
    """Return how large a topic's batches may be; Kafka's default if this client may not see."""
    settings = settings_of(client, [topic]).get(topic, {})
    return int(settings.get("max.message.bytes") or _DEFAULT_MAX_MESSAGE_BYTES)


def _values(entries: Iterable[Any]) -> dict[str, str | None]:
    return {one.name: one.value for one in sorted(entries, key=lambda one: one.name)}


def _entries_of(client: Client, topics: Iterable[str]) -> dict[str, list[Any]]:
    """Return the settings of these topics as a broker describes them, none if this client may not see them."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        resource(resource_type=_TOPIC, resource_name=name, configuration_keys=None)
        for name in topics
    ]
    if not resources:
        return {}
    body = DescribeConfigsRequest(
        resources=resources, include_synonyms=False, include_documentation=False
    )
    found: dict[str, list[Any]] = {}
    for one in client.request(ApiKey.DESCRIBE_CONFIGS, body).results:
        if one.error_code in _HIDES_SETTINGS:
            found[one.resource_name] = []
        elif one.error_code == ErrorCode.NONE:
            found[one.resource_name] = one.configs
        elif one.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise error_of(one.error_code, _said(f"settings of {one.resource_name!r}", one))
    return found


def _plain(value: str | None) -> list[str | float]:
    """Return a setting's value so that it equals what brokers make of it: lists, numbers, words."""
    found: list[str | float] = []
    for one in (value or "").split(","):
        text = one.strip().lower()
        try:
            found.append(float(text))
        except ValueError:
            found.append(text)
    return found


def _log_starts(answer: Any) -> dict[TopicPartition, int | KBatchError]:
    return {
        TopicPartition(topic.name, one.partition_index): error_of(
            one.error_code, f"records of {topic.name}-{one.partition_index} cannot be deleted"
        )
        if one.error_code
        else one.low_watermark
        for topic in answer.topics
        for one in topic.partitions
    }


def _ensure_not_internal(client: Client, name: str) -> None:
    if client.topic(name).is_internal:
        raise ConfigError(
            f"topic {name!r} of {client.options} is the cluster's own, which alone changes it"
        )


def _ensure_done(result: Any, what: str) -> None:
    # What takes the controller longer than the request goes on, and is waited for.
    if result.error_code not in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
        raise error_of(result.error_code, _said(what, result))


def _said(what: str, result: Any) -> str:
    return f"{what}: {getattr(result, 'error_message', None) or 'no reason given'}"


def _wait_until(client: Client, is_done: Callable[[], bool], otherwise: str) -> None:
    timeout_ms = client.options.default_api_timeout_ms
    end_ms = client.monotonic_ms() + timeout_ms
    while not is_done():
        if client.monotonic_ms() >= end_ms:
            raise RequestTimedOutError(f"{otherwise} after {timeout_ms} ms, in {client.options}")
        client.wait(client.options.retry_backoff_ms)


def _timeout_ms(client: Client) -> int:
    return min(client.options.request_timeout_ms, client.options.default_api_timeout_ms)


def _settings(config: Any) -> dict[str, object]:
    """Return a topic's settings by Kafka's keys, such as retention.ms; the cluster checks the values."""
    if isinstance(config, TopicConfig):
        config = {
            field: value
            for field, value in vars(config).items()
            if value != getattr(TopicConfig, field)
        }
    if not isinstance(config, Mapping) or any(not isinstance(key, str) for key in config):
        arguments.refuse("config", config, 'a dict of settings, such as {"retention.ms": 86400000}')
    found: dict[str, object] = {}
    for name, value in config.items():
        key = topic_key(name)
        if key in found:
            raise ConfigError(f"config names {key!r} twice; name it once")
        found[key] = value
    return found


def _set(key: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    try:
        return str(arguments.whole_number(key, value, -(2**63)))
    except ConfigError:
        arguments.refuse(f"option {key!r} in config", value, "text, a number, True or False")
