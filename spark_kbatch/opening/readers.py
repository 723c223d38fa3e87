"""Opening for reads: the object that users get, and the readers of Spark's tasks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.consumer import planning
from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.files import Files
from spark_kbatch.opening.cluster import Cluster
from spark_kbatch.opening.stores import open_bucket, open_store
from spark_kbatch.options.paths import StrPath, bucket_scheme
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.store.source import Source
from spark_kbatch.store.store import Store

if TYPE_CHECKING:
    from spark_kbatch.bucket.store import StreamPoll
    from spark_kbatch.consumer.stream_planner import StreamPlanner


def open_for_reading(
    address: StrPath,
    *,
    foreign_end: str | None = None,
    client: Mapping[str, Any] | None = None,
    files: Files | None = None,
) -> Cluster:
    """Open what lies at an address as the object that users get; arguments and errors are those of `open_store`."""
    return Cluster.over(open_store(address, foreign_end=foreign_end, client=client, files=files))


def connect(bootstrap_servers: Any, config: Any, options: Mapping[str, Any]) -> Cluster:
    """Connect to a real Kafka cluster, with the arguments and errors of `spark_kbatch.connect`."""
    # The network's modules are loaded only for a real cluster.
    from spark_kbatch.remote.store import RemoteStore, parse_connection  # noqa: PLC0415

    store = RemoteStore(parse_connection(bootstrap_servers, config, options))
    store.ensure_answers()
    return Cluster.over(store)


def open_reader(
    address: StrPath, *, foreign_end: str | None = None, client: Mapping[str, Any] | None = None
) -> TopicReader:
    """Return a reader of the topics at an address, to plan and run reads.

    Arguments and errors are those of `open_store`.
    """
    return TopicReader(open_store(address, foreign_end=foreign_end, client=client).source)


def _store_of(options: ReadOptions) -> Store:
    return open_store(
        options.cluster or options.path,
        foreign_end=options.foreign_end,
        store=options.store,
        patience=options.patience,
    )


def open_topics(options: ReadOptions) -> TopicReader:
    """Return a reader of the topics in the place that Spark's read options name.

    Raises the errors of `open_store`, or if the real cluster cannot be reached.
    """
    return TopicReader(_store_of(options).source)


def ensure_selection_exists(options: ReadOptions, *, is_batch: bool) -> None:
    """Check that the topics and partitions that read options name exist; for a batch, the offsets too.

    A stream that resumes from its checkpoint does not need what its starting offsets name.

    Raises the errors of `planning.ranges`.
    """
    topics = open_topics(options).source
    if is_batch:
        planning.ranges(options, topics)
    else:
        planning.selected(options.selection, topics, strict=options.fail_on_data_loss)


def open_stream(options: ReadOptions) -> StreamPlanner:
    """Return the planner of one run of a streaming query; it opens the topics again for each call."""
    # Tasks and batch reads do not need it.
    from spark_kbatch.consumer.stream_planner import StreamPlanner  # noqa: PLC0415

    def open_source() -> Source:
        return open_topics(options).source

    if bucket_scheme(options.path):  # whose ledger need not be read from the start each time
        open_source = _polled(options)
    return StreamPlanner(options, open_source, monotonic_ms)


def _polled(options: ReadOptions) -> Callable[[], Source]:
    @functools.cache
    def poll() -> StreamPoll:
        from spark_kbatch.bucket.store import StreamPoll  # noqa: PLC0415  only for a bucket

        store = open_bucket(options.path, store=options.store)
        return StreamPoll(store, options.poll_ms, monotonic_ms)

    return lambda: poll().source()


def with_absolute_path(options: ReadOptions) -> ReadOptions:
    """Return read options with an absolute path, so that they mean the same in every process.

    Raises the errors of `open_store`.
    """
    if options.cluster is not None:
        return options
    return replace(options, path=_store_of(options).address)
