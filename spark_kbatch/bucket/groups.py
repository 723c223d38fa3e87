"""The consumer groups of a cluster in a bucket: the offsets that they have committed.

No group has members here, as nothing runs that would look after them. What a group commits is an
entry of the ledger, or several for many partitions. The state has the last offset of each group and
partition, until it is older than `offsets.retention.ms` by the times of entries. Offsets belong to
a topic's id: they go with the topic, and one that is created again has none.

Each checkpoint has all offsets of all groups, so there is a bound on how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_kbatch.bucket.reading import topic_id_of
from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.errors import ConfigError, GroupIdNotFoundError, RefusedEntryError
from spark_kbatch.ledger.entries import CommittedGroupOffset, LedgerCommit
from spark_kbatch.ledger.state import LedgerState
from spark_kbatch.model import ConsumerGroup, TopicPartition
from spark_kbatch.store.groups import committed, with_ends
from spark_kbatch.store.store import NO_IDS, CheckOffsets, Groups

GROUP_ID_CHARACTERS_MAX = 255
OFFSETS_MAX = 100_000  # of all groups together: 6 MB of each checkpoint

_WRITER = "group"  # as which entries name it
# Even with the longest ids of topics and of a group an entry of so many is below ENTRY_BYTES_MAX.
_OFFSETS_OF_ENTRY = 2500
_COMMIT_AGE_MAX_MS = 1000  # of the state that is written to, for which no news is asked then


class BucketGroups(Groups):
    """The consumer groups of one cluster in a bucket; a `store.Groups`. Thread-safe."""

    commit_pause_ms = 10_000  # a commit is an entry, which is paid for, and which all others read

    def __init__(self, ledger: SharedLedger) -> None:
        """Set up for a cluster, by its ledger."""
        self._ledger = ledger

    def groups(self) -> list[ConsumerGroup]:
        """Return all groups, sorted by id, with offsets, ends and lag as of one moment."""
        with self._ledger.state() as state:
            names = state.topic_names
            found = [
                ConsumerGroup(
                    group_id,
                    "Empty",
                    protocol_type="",
                    protocol="",
                    generation=0,
                    members=(),
                    offsets={
                        TopicPartition(names[topic_id], partition): committed(*head)
                        for (topic_id, partition), head in of_group.items()
                    },
                )
                for group_id, of_group in sorted(state.groups.items())
            ]
            return with_ends(
                found,
                lambda partitions: {
                    tp: state.partition(state.topic_ids[tp.topic], tp.partition).next_offset
                    for tp in partitions
                },
            )

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the offsets at which a group goes on; none if there is no such group."""
        with self._ledger.state() as state:
            return _held(state, group_id)

    def alter_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str] = NO_IDS,
        check: CheckOffsets | None = None,
    ) -> None:
        """Commit offsets of a group, which need not exist.

        Those of more than 2,500 partitions are several entries, of which an error may leave the
        first ones.

        Raises:
            ConfigError: the id has more than GROUP_ID_CHARACTERS_MAX characters.
            UnknownTopicOrPartitionError: a partition does not exist.
            RefusedEntryError: there would be more than OFFSETS_MAX offsets of groups.
            Other errors, as `Ledger.commit`.
        """
        if len(group_id) > GROUP_ID_CHARACTERS_MAX:
            raise ConfigError(
                f"the id of a consumer group has {len(group_id)} characters; in a bucket it has at "
                f"most {GROUP_ID_CHARACTERS_MAX}"
            )

        with self._ledger.state(max_age_ms=_COMMIT_AGE_MAX_MS) as state:
            topics = {tp.topic for tp in offsets}
            ids = {name: topic_ids.get(name) or topic_id_of(state, name) for name in topics}
            rows = [
                CommittedGroupOffset(ids[tp.topic], tp.partition, offset, "")
                for tp, offset in sorted(offsets.items())
                if ids[tp.topic] in state.topics
            ]
            for one in rows:  # all of them, before the first entry is written
                state.partition(one.topic_id, one.partition)
            held = state.groups.get(group_id, {})
            count = sum(map(len, state.groups.values())) + sum(one[:2] not in held for one in rows)
        if count > OFFSETS_MAX:
            raise RefusedEntryError(
                f"the consumer groups of {self._ledger.address} would have {count} offsets, and "
                f"may have {OFFSETS_MAX}: delete those that are not needed with `kbatch groups "
                "delete`"
            )
        self._commit(group_id, rows, check)

    def delete(self, group_id: str) -> None:
        """Delete a group, with the offsets that it has now.

        Raises:
            GroupIdNotFoundError: there is no such group.
            Other errors, as `Ledger.commit`.
        """
        with self._ledger.state() as state:
            held = sorted(state.groups.get(group_id, ()))
        if not held:
            raise GroupIdNotFoundError(group_id, self._ledger.address)
        self._commit(group_id, [CommittedGroupOffset(*key, None, "") for key in held])

    def _commit(
        self,
        group_id: str,
        rows: Sequence[CommittedGroupOffset],
        check: CheckOffsets | None = None,
    ) -> None:
        """Write rows as one entry, or several, but for those of what has been deleted by now."""
        for first in range(0, len(rows), _OFFSETS_OF_ENTRY):

            def propose(state: LedgerState, first: int = first) -> LedgerCommit | None:
                if check is not None and first == 0:
                    check(_held(state, group_id))
                held = state.groups.get(group_id, {})
                left = tuple(
                    one
                    for one in rows[first : first + _OFFSETS_OF_ENTRY]
                    if (one[:2] in held if one.offset is None else one.topic_id in state.topics)
                )
                return LedgerCommit(groups={group_id: left}) if left else None

            self._ledger.commit(propose, by=_WRITER, max_age_ms=_COMMIT_AGE_MAX_MS)


def _held(state: LedgerState, group_id: str) -> dict[TopicPartition, int]:
    return {
        TopicPartition(state.topics[topic_id].name, partition): head.offset
        for (topic_id, partition), head in state.groups.get(group_id, {}).items()
    }
