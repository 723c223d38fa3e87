"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: the settings of topics, and of the one node.

AlterConfigs is the older request, and all that some clients have. It replaces the settings of a topic:
those that it leaves out get their defaults.

Source: ConfigHelper.describeConfigs, ConfigAdminManager.preprocess; KIP-133, KIP-339.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, TypeAlias

from spark_kbatch.clock import monotonic_s
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.options.topic import Topic, altered, topic_field
from spark_kbatch.replica import administration
from spark_kbatch.server import settings
from spark_kbatch.server.metadata import NODE_ID
from spark_kbatch.server.outcomes import Outcomes, RefusedError
from spark_kbatch.server.requests import Received, Respond
from spark_kbatch.server.settings import Changes, Setting
from spark_kbatch.server.topics import ensure_not_the_clusters
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode

_TIMEOUT_S = 30.0  # the request names none


# What a request changes of a topic, given its settings in the request.
_ChangesOf: TypeAlias = Callable[[Topic, Sequence[Any]], Changes]


class ResourceType(IntEnum):
    """The types of resources that have configs here, topics and brokers, with Kafka's numbers."""

    TOPIC = 2
    BROKER = 4


class _Operation(IntEnum):
    """The operations on a config in IncrementalAlterConfigs, with Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigsHandler:
    """Handler of requests that describe or alter the configs of topics and of the server; thread-safe."""

    def __init__(
        self,
        parts: FolderParts,
        of_the_server: Callable[[Received], Sequence[Setting]],
        outcomes: Outcomes,
    ) -> None:
        """Serve the configs of `parts`, and those that `of_the_server` returns for a request."""
        self._parts, self._of_the_server, self._outcomes = parts, of_the_server, outcomes

    # Showing.

    def describe_configs(self, received: Received, respond: Respond) -> None:
        """Answer DescribeConfigs."""
        response = protocol.DescribeConfigsResponse
        results = []
        # Each is described once: otherwise a small request could have an answer of any size.
        asked = {(one.resource_type, one.resource_name): one for one in received.body.resources}
        for resource in asked.values():
            describe = functools.partial(self._described, received, resource)
            found, outcome = self._outcomes.attempt(describe)
            results.append(
                response.DescribeConfigsResult(
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=[_described(one, received.body) for one in found or ()],
                    **outcome._asdict(),
                )
            )
        respond(response(results=results))

    def _described(self, received: Received, resource: Any) -> list[Setting]:
        """Return the configs of one topic or broker that a DescribeConfigs request asks for."""
        found: Iterable[Setting]
        if resource.resource_type == ResourceType.TOPIC:
            topic = self._parts.metadata.topics.existing(resource.resource_name)
            found = settings.topic_settings(topic.known_config, topic.given)
        elif resource.resource_type == ResourceType.BROKER:
            # The empty name stands for the defaults of all brokers, of which there are none.
            is_node = _ensure_node(resource.resource_name)
            found = self._of_the_server(received) if is_node else ()
        else:
            raise _unknown_resource(resource.resource_type)
        keys = resource.configuration_keys or ()  # none stands for all
        return [one for one in found if not keys or one.name in keys]

    # Changing.

    def incremental_alter_configs(self, received: Received, respond: Respond) -> None:
        """Answer IncrementalAlterConfigs: change all given settings of a resource, or none."""
        self._alter_all(received, respond, protocol.IncrementalAlterConfigsResponse, _changes)

    def alter_configs(self, received: Received, respond: Respond) -> None:
        """Answer AlterConfigs: give a resource exactly these settings, or change nothing."""
        self._alter_all(received, respond, protocol.AlterConfigsResponse, _replacement)

    def _alter_all(
        self, received: Received, respond: Respond, response: Any, changes_of: _ChangesOf
    ) -> None:
        body = received.body
        deadline = monotonic_s() + _TIMEOUT_S
        times = Counter((one.resource_type, one.resource_name) for one in body.resources)
        by_name = {(one.resource_type, one.resource_name): one for one in body.resources}
        results = []
        for (kind, name), resource in by_name.items():
            alter = functools.partial(
                self._alter, resource, times[kind, name], deadline, body.validate_only, changes_of
            )
            _, outcome = self._outcomes.attempt(alter)
            results.append(
                response.AlterConfigsResourceResponse(
                    resource_type=kind, resource_name=name, **outcome._asdict()
                )
            )
        respond(response(responses=results))

    def _alter(
        self,
        resource: Any,
        times: int,
        deadline: float,
        validate_only: bool,
        changes_of: _ChangesOf,
    ) -> None:
        name = resource.resource_name
        if times > 1:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name!r} is named twice in the request")
        if resource.resource_type == ResourceType.BROKER:
            _ensure_node(name)
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                "the server's settings cannot be changed while it runs; give them when it is started",
            )
        if resource.resource_type != ResourceType.TOPIC:
            raise _unknown_resource(resource.resource_type)
        if not name:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "there are no settings of all topics")
        ensure_not_the_clusters(name)
        topic = self._parts.metadata.topics.existing(name)
        changes, fixed = changes_of(topic, resource.configs)
        if validate_only:
            altered(topic, changes, fixed)
        else:
            administration.alter_topic(
                self._parts.manager,
                self._parts.commits,
                name,
                changes,
                fixed=fixed,
                deadline=deadline,
            )


def _changes(topic: Topic, configs: Sequence[Any]) -> Changes:
    """Return the settings that an IncrementalAlterConfigs changes, with new values; None is the default."""
    return settings.changes_of((one.name, _value_after(topic, one)) for one in configs)


def _replacement(_: Topic, configs: Sequence[Any]) -> Changes:
    """Return all of a topic's settings, with their values after an AlterConfigs; None is the default."""
    return settings.all_of((one.name, _value(one)) for one in configs)


def _value(change: Any) -> str:
    if change.value is None:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"option {change.name!r} has no value; give one"
        )
    return str(change.value)


def _value_after(topic: Topic, change: Any) -> str | None:
    """Return a topic setting's value after an IncrementalAlterConfigs operation; None is the default."""
    key, operation = change.name, change.config_operation
    if operation == _Operation.DELETE:
        return None
    value = _value(change)
    if operation == _Operation.SET:
        return value
    if operation not in (_Operation.APPEND, _Operation.SUBTRACT):
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"operation {operation} on option {key!r} is not known"
        )
    if not settings.is_list(key):
        verb = _Operation(operation).name.lower()
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"option {key!r} is not a list, so nothing can be {verb}ed; set it",
        )
    words = [word.strip() for word in value.split(",")]
    now = getattr(topic.known_config, topic_field(key)).split(",")
    if operation == _Operation.APPEND:
        return ",".join([*now, *(word for word in words if word not in now)])
    return ",".join(word for word in now if word not in words)


def _ensure_node(name: str) -> bool:
    """Return True for the one node's name, False for the empty name, which stands for all brokers.

    Raises:
        RefusedError: there is no such node.
    """
    if name not in ("", str(NODE_ID)):
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"there is no node {name!r}; the only one is {NODE_ID}"
        )
    return bool(name)


def _unknown_resource(kind: int) -> RefusedError:
    known = ", ".join(f"{one} ({one.name.lower()})" for one in ResourceType)
    return RefusedError(
        ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no settings here; known: {known}"
    )


def _described(setting: Setting, asked: Any) -> Any:
    result = protocol.DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
    synonyms = []
    if asked.include_synonyms:
        synonyms = [
            result.DescribeConfigsSynonym(name=name, value=value, source=source)
            for name, value, source in setting.synonyms
        ]
    return result(
        name=setting.name,
        value=setting.value,
        read_only=setting.is_read_only,
        config_source=setting.source,
        is_sensitive=False,
        synonyms=synonyms,
        config_type=setting.type,
        documentation=setting.documentation if asked.include_documentation else None,
    )
