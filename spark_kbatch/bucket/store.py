"""A cluster in a bucket, as a store of topics.

    1 the object `cluster` says which cluster lies at the URL
    2 the ledger is read, and followed by whatever is asked later
    3 writes put objects, and then an entry

What the ledger's state is made of is remembered by this machine, for the next process; see `shared_ledger`.
"""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self

from spark_kbatch.bucket.agreements import AgreedOffsets, agree
from spark_kbatch.bucket.gathering import common_cuts, gathered
from spark_kbatch.bucket.objects import Objects
from spark_kbatch.bucket.place import (
    create_cluster,
    ensure_no_cluster,
    read_cluster,
)
from spark_kbatch.bucket.probe import probe
from spark_kbatch.bucket.reading import (
    BucketReads,
    BucketView,
    PartitionReader,
    partitions_of,
    topic_id_of,
)
from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.bucket.topics import BucketCatalog
from spark_kbatch.bucket.urls import checked, known_at, nothing_at, objects_at
from spark_kbatch.clock import monotonic_ms, now_ms, sleep_ms
from spark_kbatch.consumer import planning
from spark_kbatch.consumer.same_topic import OwnSource, of_agreed
from spark_kbatch.errors import (
    ConfigError,
    CorruptLedgerError,
)
from spark_kbatch.ledger import names
from spark_kbatch.ledger.extents import Change, within
from spark_kbatch.model import (
    LONG_MAX,
    LogOffsets,
    OffsetRange,
    PartitionInfo,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, StoreOptions
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.options.topic import Topic
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.record.header import NO_LEADER_EPOCH, LogRead
from spark_kbatch.store.reports import RepairReport
from spark_kbatch.store.source import FoundTopic

if TYPE_CHECKING:
    from spark_kbatch.bucket.groups import BucketGroups
    from spark_kbatch.bucket.history import BucketCommits
    from spark_kbatch.bucket.job import BucketJob
    from spark_kbatch.producer.producer import Producer
    from spark_kbatch.store.repetitions import LastKept

logger = logging.getLogger(__name__)

_LINGER_MS = 100  # for which a producer gathers records by default: each request costs two requests to the store
_REQUEST_BYTES = 8 << 20

# Of a stream's poll.
_EAGER = 3  # questions after news for which the store is asked at once: a micro-batch has two
_IDLE_SHARE = 10  # waits last that part of the time without news
_LONGEST = 10  # times `poll.ms`


class BucketStore(OwnSource):
    """A cluster in a bucket; a `store.Store`, and its own source. Thread-safe."""

    disks = server = None
    _requests_for_sizes = LONG_MAX
    is_remote = False
    why_not = "it is in a bucket, which has no disks or server yet"

    def __init__(
        self,
        url: str,
        options: StoreOptions = NO_STORE_OPTIONS,
        *,
        create: bool = False,
        implied: bool = False,
    ) -> None:
        """Open the cluster at a URL, and read its ledger.

        Args:
            url: see `urls`.
            options: of the store that the bucket is in.
            create: whether to create a cluster if there is none.
            implied: whether no one asked for the creation, so that it is logged as a warning.

        Raises:
            ConfigError: there is none; or the URL, the library or the store cannot be used.
            ObjectStoreError, ObjectAccessDeniedError: the store cannot be used.
            CorruptLedgerError, UnsupportedLedgerError: its ledger cannot be read.
        """
        self.address, self._options = checked(url), options
        place = objects_at(self.address, options, create=create)
        found = read_cluster(place)
        if found is None and create:
            ensure_no_cluster(place)
            level = logging.WARNING if implied else logging.INFO
            found = _created(self.address, place, level)
        if found is None:
            raise nothing_at(self.address, place)
        self.cluster_id = found
        cache, known = known_at(self.address, options, found)
        self._use(SharedLedger(self.address, place, found, cache, known))

    @property
    def commits(self) -> BucketCommits:
        """The commits of Spark jobs, from its ledger."""
        from spark_kbatch.bucket.history import BucketCommits  # noqa: PLC0415  few processes list them

        return BucketCommits(self._ledger)

    @property
    def groups(self) -> BucketGroups:
        """The consumer groups, from its ledger."""
        from spark_kbatch.bucket.groups import BucketGroups  # noqa: PLC0415  as above

        return BucketGroups(self._ledger)

    @property
    def upkeep(self) -> Self:
        """The store itself."""
        return self

    @property
    def ledger(self) -> SharedLedger:
        """The ledger, for a writer of its own kind, such as a mirror."""
        return self._ledger

    def close(self) -> None:
        """Make every later call raise ClosedError, including those of reads in progress."""
        self._ledger.close()

    def follow(self) -> int:
        """Read what is new, by one request if nothing is, and return the number of the last entry."""
        with self._ledger.state() as state:
            return state.number

    def followed(self, *, requests_for_sizes: int = LONG_MAX) -> BucketStore:
        """Return the same store, with topics and ends of partitions as they were followed last.

        Args:
            requests_for_sizes: of one `describe`; the sizes of topics that take more are -1. A later one has
                them, since what was asked for stays in memory.
        """
        found = copy.copy(self)
        found._requests_for_sizes = requests_for_sizes  # noqa: SLF001  of the same class
        found._use(self._ledger.followed())  # noqa: SLF001  of the same class
        return found

    def polled(self, poll_ms: int = ReadOptions.poll_ms) -> Callable[[], BucketStore]:
        """Return what follows the ledger by a request now and then; see `StreamPoll`."""
        return StreamPoll(self, poll_ms, monotonic_ms).source

    def _use(self, ledger: SharedLedger) -> None:
        self._ledger = ledger
        self.catalog, self._reads = BucketCatalog(lambda: ledger), BucketReads(ledger)
        self._agreed: tuple[str, AgreedOffsets] = "", {}  # of the last action that asked

    # The source.

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted; none is internal."""
        del internal
        with self._ledger.state() as state:
            return sorted(state.topic_ids)

    def topic(self, name: str) -> Topic:
        """Return a topic; raises UnknownTopicOrPartitionError, which says what there is."""
        return self.catalog.topic(name)

    def existing_topics(self, names: Iterable[str]) -> dict[str, FoundTopic]:
        """Return those of the named topics that exist, all as of one moment."""
        with self._ledger.state() as state:
            return {
                name: FoundTopic(state.topic_ids[name], partitions_of(state, name))
                for name in names
                if name in state.topic_ids
            }

    def views(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BucketView]:
        """Return views of these partitions, all as of one moment."""
        return self._reads.views(partitions)

    def describe(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of all partitions of these topics, at one moment."""
        views, left, sized = self._reads.views_of_topics(topics), self._requests_for_sizes, set()
        for name, view in {tp.topic: view for tp, view in views.items()}.items():
            left -= view.load(left)  # for the whole topic
            if left < 0:
                break
            sized.add(name)
        return [
            PartitionInfo(tp, view.offsets, view.size_in_bytes if tp.topic in sized else -1)
            for tp, view in views.items()
        ]

    def verify(self, partitions: Sequence[TopicPartition] | None) -> Iterator[RepairReport]:
        """Check the ledger and partitions, by default all; yields as `BucketRepair.verify`.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
        """
        from spark_kbatch.bucket.mending import BucketRepair  # noqa: PLC0415  seldom needed

        mending = BucketRepair(self.address, self._options, dry_run=True)
        return mending.verify(None if partitions is None else [*map(mending.known, partitions)])

    def repair(
        self, partitions: Sequence[TopicPartition] | None, *, dry_run: bool
    ) -> Iterator[RepairReport]:
        """Repair the ledger, which is logged, and then partitions, by default all; yield a report of each.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
            CorruptLedgerError: an entry or a part is lost for good; after all reports.
            UnsupportedLedgerError: writers need a later version.
        """
        from spark_kbatch.bucket.mending import BucketRepair  # noqa: PLC0415  seldom needed

        mending = BucketRepair(self.address, self._options, dry_run=dry_run)
        chosen = None if partitions is None else [*map(mending.known, partitions)]
        ledger = mending.ledger()
        for sentence in ledger.found:
            logger.warning("%s: %s", self.address, sentence)
        yield from mending.repair(chosen)
        if ledger.damaged:
            raise CorruptLedgerError(names.LEDGER, "; ".join(ledger.damaged))

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Return whole batches from an offset on."""
        return self._reads.fetch(topic_partition, asked)

    def fetcher(
        self, wanted: OffsetRange, topic_id: str, last_epoch: int = NO_LEADER_EPOCH
    ) -> AbstractContextManager[PartitionReader]:
        """Return a fetcher that reads ahead, and fails if the topic's id is no longer `topic_id`."""
        del last_epoch
        return self._reads.fetcher(wanted, topic_id)

    def common_cuts(
        self, wanted: Iterable[OffsetRange], *, piece_bytes: int
    ) -> list[dict[TopicPartition, int]]:
        """Return where to cut ranges whose batches lie in the same small objects."""
        ledger = self._ledger.followed()
        held: dict[str, dict[TopicPartition, list[Change]]] = {}
        for tp, start, end in wanted:
            with ledger.state() as state:
                _, changes = ledger.partition(topic_id_of(state, tp.topic), tp.partition)
            held.setdefault(tp.topic, {})[tp] = within(changes, start, end)
        return [
            cut
            for of_topic in held.values()
            for cut in common_cuts(self._reads.placements, of_topic, piece_bytes=piece_bytes)
        ]

    def gathered(
        self, wanted: Mapping[OffsetRange, str]
    ) -> Iterator[tuple[OffsetRange, AbstractContextManager[PartitionReader]]]:
        """Yield parts of ranges and their fetchers, which ask for an object once for all partitions."""
        return gathered(self._reads, wanted)

    def agreed_offsets(
        self, partitions: Collection[TopicPartition], options: ReadOptions, action: str
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return partitions' start and end offsets, on which all tasks of a Spark action agree."""
        self._ledger.ensure_open()
        of_action, agreed = self._agreed
        if action != of_action:
            objects, now = self._ledger.objects, now_ms()
            agreed = agree(objects, action, lambda: planning.current_offsets(options, self), now)
            self._agreed = action, agreed
        return of_agreed(agreed, partitions, self.address)

    # Writes.

    def producer(self, config: Mapping[str, object], options: Mapping[str, object]) -> Producer:
        """Return a producer, which writes one entry for all records of a request, or of a transaction."""
        from spark_kbatch.bucket.transport import BucketTransport  # noqa: PLC0415  few processes append
        from spark_kbatch.options.producer import parse_producer_options  # noqa: PLC0415
        from spark_kbatch.producer.producer import Producer  # noqa: PLC0415

        self._ledger.ensure_open()
        given = {name.replace("_", ".").lower() for name in (*config, *options)}
        defaults = {"linger.ms": _LINGER_MS, "max.request.size": _REQUEST_BYTES}
        own = {key: value for key, value in defaults.items() if key not in given}
        chosen = parse_producer_options(config, options, own)
        if chosen.transactional_id is not None:
            from spark_kbatch.producer.staged_transactions import (  # noqa: PLC0415  as above
                StagingProducer,
            )

            return StagingProducer(
                self.address, chosen, self.begin_job, self._last_kept, self._options
            )
        at_once = chosen.max_in_flight_requests_per_connection
        maintain = self._maintain(chosen.maintain_ms)
        transport = BucketTransport(
            self._ledger, maintain, at_once=at_once, client_id=chosen.client_id
        )
        return Producer(
            chosen,
            transport,
            self.catalog.finder(create=chosen.auto_create_topics_enable),
            now_ms,
            # Without a counter, which all would have to write: of so many, no two are the same.
            new_producer_id=lambda: self._ledger.rng.randrange(LONG_MAX),
            nodes=transport,
            takes_runs=True,
        )

    def _last_kept(self, query_id: str) -> LastKept:
        with self._ledger.state() as state:
            return state.last_kept(query_id)

    def _maintain(self, budget_ms: int) -> Callable[[Iterable[str]], object] | None:
        """Return what merges for a short while; None if no time is given."""

        def maintain(topic_ids: Iterable[str]) -> None:
            from spark_kbatch.bucket.maintenance import merge_within  # noqa: PLC0415  seldom needed

            merge_within(self.address, self._options, budget_ms, topic_ids)

        return maintain if budget_ms else None

    def begin_job(
        self, options: WriteOptions, *, overwrite: bool = False, is_micro_batch: bool = False
    ) -> BucketJob:
        """Begin a job whose rows are visible once it is committed, all of them or none."""
        from spark_kbatch.bucket.job import BucketJob  # noqa: PLC0415  as above

        return BucketJob.begin(
            self.address, self._ledger, options, overwrite=overwrite, is_micro_batch=is_micro_batch
        )


class StreamPoll:
    """The source of a stream's planner, which asks for it with each question. Not thread-safe.

    Spark asks its source for the latest offset all the time while there is nothing to read, a
    hundred times a second at worst. A request for each of these would cost more than the data. So
    what was asked lately is answered from memory:

        there was news      the store is asked again with the next few questions
        there was none      `poll.ms` later; after a while without news, up to ten times as long
    """

    def __init__(self, store: BucketStore, poll_ms: int, monotonic_ms: Callable[[], int]) -> None:
        """Begin with the store as it is.

        Args:
            store: the cluster.
            poll_ms: how long not to ask after there was no news.
            monotonic_ms: the clock.
        """
        self._store, self._followed = store, store.followed()
        self._poll_ms, self._monotonic_ms = poll_ms, monotonic_ms
        self._number: int | None = None  # of the last entry
        self._asked_ms = self._news_ms = monotonic_ms()
        self._eager = _EAGER

    def source(self) -> BucketStore:
        """Return the cluster as it is, or was lately, as of one moment."""
        now_ms = self._monotonic_ms()
        if self._eager > 0 or now_ms - self._asked_ms >= self._wait_ms(now_ms):
            number = self._store.follow()
            self._eager, self._asked_ms = self._eager - 1, now_ms
            if number != self._number:
                self._number, self._news_ms, self._eager = number, now_ms, _EAGER
        return self._followed

    def _wait_ms(self, now_ms: int) -> int:
        idle_ms = now_ms - self._news_ms
        return min(max(idle_ms // _IDLE_SHARE, self._poll_ms), _LONGEST * self._poll_ms)


def _created(url: str, place: Objects, level: int) -> str:
    """Create a cluster at a place; return its id, or that of one that someone else has created meanwhile.

    Args:
        url: of the place.
        place: the objects at it.
        level: of the line in the log that tells the creation.

    Raises:
        ConfigError: its store would lose commits.
    """
    rng = random.Random()
    wrong = probe(place, rng)
    if wrong:
        raise ConfigError(
            f"no cluster can be made at {url}: {wrong[0]}; a store that does so loses commits"
        )
    cluster_id = names.random_id(rng)
    found = create_cluster(place, cluster_id, "passed", sleep_ms)
    if found == cluster_id:
        logger.log(level, "created a cluster in %s", url)
    return found
