"""Every exception of spark_kbatch.

KBatchError
  ConfigError (also ValueError)     unknown key, bad value; names the nearest known key
    InvalidTopicError
    InvalidRequiredAcksError
  UnknownTopicOrPartitionError
  OffsetOutOfRangeError             offset, log_start_offset, log_end_offset
  DataLossError                     what was asked, what is left, why
  CorruptRecordError                path, position, expected, found
  RecordTooLargeError               size_in_bytes, limit
  InvalidTimestampError
  InvalidRecordError                a batch that a log does not take
  UnexpectedAppendOffsetError       a copy that does not go on where the log ends
  OffsetsOutOfOrderError            a copy whose batches do not follow each other
  OutOfOrderSequenceError           producer_id, expected, found
  InvalidProducerEpochError         producer_id, current epoch, found
  InvalidTxnStateError              producer_id, offset at which its transaction began
  TransactionCoordinatorFencedError producer_id, current coordinator epoch, found
  ProducerClosedError
  ProducerForkedError               process_id of who made the producer, of who used it
  CommitError                       outcome: nothing is visible / committed / unknown
  RetriableError                    repeating the same request is safe
    KafkaStorageError               a log dir or a file in it failed
    FencedLeaderEpochError          a leader epoch that is over
      UnknownLeaderEpochError       a leader epoch that has not begun here
    LogDirLockedError               a broker holds the log dir
    LockTimeoutError                a lock was not free in time; lock, path, waited_s
    NotLeaderOrFollowerError        the leader changed while an answer was awaited
    NotEnoughReplicasError          fewer in sync than min.insync.replicas; nothing is written
    NotEnoughReplicasAfterAppendError  the same, but the records are written
    RequestTimedOutError (also TimeoutError)
      BufferExhaustedError          buffer.memory stayed in use for max.block.ms

The names are Kafka's, `Error` for `Exception`. Fields go to `super().__init__` and the sentence to
`__str__`: so an error survives pickling out of a Spark worker with its fields, and the sentence
carries every number, because text is all that Spark shows.

Source: Kafka clients/.../common/errors.
"""

from __future__ import annotations

import errno
from typing import Any


class KBatchError(Exception):
    """Root of everything that spark_kbatch raises on purpose."""


class ConfigError(KBatchError, ValueError):
    """An option or argument is unknown, missing, or has a value that is not accepted."""


class InvalidTopicError(ConfigError):
    """A topic name that Kafka would refuse."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(topic, reason)
        self.topic, self.reason = topic, reason

    def __str__(self) -> str:
        return (
            f"topic name {self.topic!r} {self.reason}; a topic name has 1 to 249 characters of "
            "[a-zA-Z0-9._-] and is neither '.' nor '..'"
        )


class TopicAlreadyExistsError(ConfigError):
    """A topic that was to be created exists; `differs` says in what, where it may but as asked for."""

    def __init__(self, topic: str, differs: str = "") -> None:
        super().__init__(topic, differs)
        self.topic, self.differs = topic, differs

    def __str__(self) -> str:
        if self.differs:
            return f"topic {self.topic!r} exists already, with {self.differs}; choose another name"
        return (
            f"topic {self.topic!r} exists already; choose another name, or say exist_ok=True to take it "
            "as it is"
        )


class InvalidRequiredAcksError(ConfigError):
    """An append asked for acknowledgements that there are not."""

    def __init__(self, required_acks: int) -> None:
        super().__init__(required_acks)
        self.required_acks = required_acks

    def __str__(self) -> str:
        return f"acks is {self.required_acks}; accepted: -1 (all in-sync replicas), 0 and 1 (the leader)"


class UnknownTopicOrPartitionError(KBatchError):
    """A topic or partition that the cluster does not have."""


class OffsetOutOfRangeError(KBatchError):
    """A requested offset lies outside what the log holds.

    `option` is what asked for it, if one did; `why` says what became of it, where that is known.
    """

    def __init__(
        self,
        topic_partition: str,
        offset: int,
        log_start_offset: int,
        log_end_offset: int,
        option: str = "",
        why: str = "",
    ) -> None:
        super().__init__(topic_partition, offset, log_start_offset, log_end_offset, option, why)
        self.topic_partition, self.offset = topic_partition, offset
        self.option, self.why = option, why
        self.log_start_offset, self.log_end_offset = log_start_offset, log_end_offset

    def __str__(self) -> str:
        asked = f"option {self.option!r}: " if self.option else ""
        return (
            f"{asked}offset {self.offset} of {self.topic_partition} is out of range: the log holds offsets "
            f"{self.log_start_offset} to {self.log_end_offset} (exclusive)"
            f"{self.why and f'; {self.why}'}"
        )


class DataLossError(KBatchError):
    """Records that were asked for are gone or never existed."""

    def __init__(self, asked: str, left: str, why: str) -> None:
        super().__init__(asked, left, why)
        self.asked, self.left, self.why = asked, left, why

    def __str__(self) -> str:
        return f"{self.asked} cannot be read: {self.why}; available: {self.left}"


class CorruptRecordError(KBatchError):
    """Bytes that are not what the format says.

    `position` is a byte position in `path`, or in the given buffer where `path` is empty.
    """

    def __init__(
        self, what: str, *, path: str = "", position: int = -1, expected: Any = "", found: Any = ""
    ) -> None:
        super().__init__(what, path, position, expected, found)
        self.what, self.path, self.position = what, path, position
        self.expected, self.found = expected, found

    def __reduce__(self) -> tuple[Any, ...]:
        return (_corrupt_record_error, self.args)

    def __str__(self) -> str:
        where = f" at position {self.position}" if self.position >= 0 else ""
        where += f" of {self.path}" if self.path else ""
        detail = f": expected {self.expected}, found {self.found}" if self.expected != "" else ""
        return f"corrupt record batch{where}: {self.what}{detail}"

    def at(self, path: str, base_position: int) -> CorruptRecordError:
        """The same error, its position counted from `base_position` in the file `path`."""
        position = base_position + max(self.position, 0)
        return CorruptRecordError(
            self.what, path=path, position=position, expected=self.expected, found=self.found
        )


def _corrupt_record_error(
    what: str, path: str, position: int, expected: Any, found: Any
) -> CorruptRecordError:
    return CorruptRecordError(what, path=path, position=position, expected=expected, found=found)


class RecordTooLargeError(KBatchError):
    """A record whose batch is larger than a limit allows."""

    def __init__(self, what: str, size_in_bytes: int, limit: int, option: str) -> None:
        super().__init__(what, size_in_bytes, limit, option)
        self.what, self.size_in_bytes, self.limit, self.option = what, size_in_bytes, limit, option

    def __str__(self) -> str:
        remedy = (
            f"raise the topic's {self.option} with `kbatch alter-topic` or `alter_topic`, or write "
            "smaller values"
            if self.option in ("max.message.bytes", "segment.bytes")
            else f"raise {self.option}, or write smaller values"
        )
        return f"{self.what} takes {self.size_in_bytes} bytes, more than {self.option}={self.limit}; {remedy}"


class InvalidTimestampError(KBatchError):
    """A record time that Kafka's format does not hold, or a topic does not accept, or a column cannot hold.

    `option` is the topic's limit that it passes, at `now_ms`; empty where there is none. A topic without
    an option is the one that the record was read from.
    """

    def __init__(
        self,
        timestamp_ms: int,
        topic: str = "",
        option: str = "",
        limit_ms: int = -1,
        now_ms: int = -1,
    ) -> None:
        super().__init__(timestamp_ms, topic, option, limit_ms, now_ms)
        self.timestamp_ms, self.topic, self.option = timestamp_ms, topic, option
        self.limit_ms, self.now_ms = limit_ms, now_ms

    def __str__(self) -> str:
        if self.option:
            distance = self.timestamp_ms - self.now_ms
            side = "after" if distance > 0 else "before"
            return (
                f"a record for topic {self.topic!r} has the time {self.timestamp_ms} ms, "
                f"{abs(distance)} ms {side} now ({self.now_ms}), more than {self.option}="
                f"{self.limit_ms}; raise that with `kbatch alter-topic` or `alter_topic`, or write "
                "other times"
            )
        if self.topic:
            return (
                f"a record of topic {self.topic!r} has the time {self.timestamp_ms} ms, which a "
                "timestamp of microseconds in 64 bits does not hold; name the other columns to read "
                'those: .schema("offset bigint, value binary") in Spark, columns=["offset", "value"] '
                "in Python"
            )
        if self.timestamp_ms > 0:
            return (
                f"a record's timestamp is {self.timestamp_ms} ms; accepted: at most "
                f"{(2**63 - 1) // 1000} ms, the latest time that microseconds in 64 bits hold"
            )
        return (
            f"column 'timestamp' holds {self.timestamp_ms} ms, a time before 1970-01-01T00:00:00Z; "
            "a record's time is 0 or later, or -1 ms for none; a null takes the time of writing"
        )


class InvalidRecordError(KBatchError):
    """A batch whose bytes are whole but that a log does not take from a client; says why."""


class UnexpectedAppendOffsetError(KBatchError):
    """What a follower was given does not begin where its log ends."""

    def __init__(self, topic_partition: str, expected: int, found: int) -> None:
        super().__init__(topic_partition, expected, found)
        self.topic_partition, self.expected, self.found = topic_partition, expected, found

    def __str__(self) -> str:
        return (
            f"batches for the copy of {self.topic_partition} begin at offset {self.found}, where its "
            f"log ends at {self.expected}: truncate it to where both agree, and fetch from there"
        )


class OffsetsOutOfOrderError(KBatchError):
    """The offsets of batches that a follower was given leave a gap, or go back."""

    def __init__(self, topic_partition: str, expected: int, found: int) -> None:
        super().__init__(topic_partition, expected, found)
        self.topic_partition, self.expected, self.found = topic_partition, expected, found

    def __str__(self) -> str:
        return (
            f"a batch for the copy of {self.topic_partition} begins at offset {self.found}, where the "
            f"one before it ends at {self.expected}: the leader's log is damaged, or not the one "
            "that was copied so far"
        )


class OutOfOrderSequenceError(KBatchError):
    """A batch of an idempotent producer that does not follow the one before it."""

    def __init__(self, topic_partition: str, producer_id: int, expected: int, found: int) -> None:
        super().__init__(topic_partition, producer_id, expected, found)
        self.topic_partition, self.producer_id = topic_partition, producer_id
        self.expected, self.found = expected, found

    def __str__(self) -> str:
        return (
            f"producer {self.producer_id} sent sequence {self.found} to {self.topic_partition}, "
            f"where {self.expected} is next: a batch before it was lost"
        )


class InvalidProducerEpochError(KBatchError):
    """A batch of an idempotent producer with an epoch that was replaced by a newer one."""

    def __init__(self, topic_partition: str, producer_id: int, current: int, found: int) -> None:
        super().__init__(topic_partition, producer_id, current, found)
        self.topic_partition, self.producer_id = topic_partition, producer_id
        self.current, self.found = current, found

    def __str__(self) -> str:
        return (
            f"producer {self.producer_id} sent epoch {self.found} to {self.topic_partition}, whose "
            f"log knows epoch {self.current}"
        )


class InvalidTxnStateError(KBatchError):
    """A batch outside of transactions, of a producer that has one open."""

    def __init__(self, topic_partition: str, producer_id: int, first_offset: int) -> None:
        super().__init__(topic_partition, producer_id, first_offset)
        self.topic_partition, self.producer_id = topic_partition, producer_id
        self.first_offset = first_offset

    def __str__(self) -> str:
        return (
            f"producer {self.producer_id} sent a batch that is not transactional to "
            f"{self.topic_partition}, where its transaction is open since offset {self.first_offset}"
        )


class TransactionCoordinatorFencedError(KBatchError):
    """A marker of a coordinator that was replaced by a newer one."""

    def __init__(self, topic_partition: str, producer_id: int, current: int, found: int) -> None:
        super().__init__(topic_partition, producer_id, current, found)
        self.topic_partition, self.producer_id = topic_partition, producer_id
        self.current, self.found = current, found

    def __str__(self) -> str:
        return (
            f"a coordinator of epoch {self.found} ended a transaction of producer {self.producer_id} in "
            f"{self.topic_partition}, whose log knows epoch {self.current}"
        )


class ClosedError(KBatchError, ValueError):
    """What was opened is used after it was closed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} was opened and is closed; open it again, or use it before it is closed"


class ProducerClosedError(KBatchError):
    """A producer was closed before the record was handed over."""


class ProducerForkedError(KBatchError):
    """A producer was used in a child of the process that made it."""

    def __init__(self, process_id: int, child_id: int) -> None:
        super().__init__(process_id, child_id)
        self.process_id, self.child_id = process_id, child_id

    def __str__(self) -> str:
        return (
            f"this producer belongs to process {self.process_id}, and process {self.child_id} is a fork "
            "of it, which lacks the thread that sends; make a producer in each process, after the fork"
        )


class CommitError(KBatchError):
    """A commit failed; `outcome` says what that means for the data."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(outcome, reason)
        self.outcome, self.reason = outcome, reason

    def __str__(self) -> str:
        return f"commit failed, {self.outcome}: {self.reason}"


# A file or folder that is not there, or that one may not write: time does not change that. A full disk
# is none of them: as with Kafka somebody may make room, until delivery.timeout.ms.
_LASTING = {
    errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR,
    errno.EPERM, errno.EROFS,
}  # fmt: skip


class RetriableError(KBatchError):
    """Repeating the same request is safe and may succeed."""

    may_pass = True  # whether waiting may help; a producer retries only then


class KafkaStorageError(RetriableError):
    """A log dir, or a file in it, cannot be used."""

    @classmethod
    def of(cls, cause: OSError, what: str = "") -> KafkaStorageError:
        """Return the error that `cause` is to a client, with it as the cause."""
        error = cls(f"{what}: {cause}" if what else str(cause))
        error.__cause__ = cause
        error.may_pass = cause.errno not in _LASTING
        return error


class FencedLeaderEpochError(RetriableError):
    """Who asked knows a leader epoch that was replaced by a newer one."""

    def __init__(self, topic_partition: str, current: int, found: int) -> None:
        super().__init__(topic_partition, current, found)
        self.topic_partition, self.current, self.found = topic_partition, current, found

    def __str__(self) -> str:
        return (
            f"leader epoch {self.found} of {self.topic_partition} is over, it is {self.current} now: "
            "look up the partition's leader again"
        )


class UnknownLeaderEpochError(FencedLeaderEpochError):
    """Who asked knows a newer leader epoch than is known here."""

    def __str__(self) -> str:
        return (
            f"leader epoch {self.found} of {self.topic_partition} is not known here, where it is "
            f"{self.current}: ask again"
        )


class LogDirLockedError(RetriableError):
    """Another program, a Kafka broker most likely, holds a log dir."""


class LockTimeoutError(RetriableError):
    """A lock was not free in time; nothing is written.

    `lock` is what it is of: a partition, or "commit".
    """

    def __init__(self, lock: str, path: str, waited_s: float) -> None:
        super().__init__(lock, path, waited_s)
        self.lock, self.path, self.waited_s = lock, path, waited_s

    def __str__(self) -> str:
        return (
            f"the lock of {self.lock} was not free within {self.waited_s:.1f} s: another process, or "
            "thread, holds it, which writes for long, is stopped, or hangs; nothing is written. "
            f"`lsof {self.path}` shows who has the lock's file open on this machine; with the end of "
            "that process the lock is free"
        )


class NotLeaderOrFollowerError(RetriableError):
    """A partition got another leader before its replicas had what was appended; it may be lost."""


class NotEnoughReplicasError(RetriableError):
    """Fewer replicas are in sync than min.insync.replicas asks for; nothing is written."""

    _what_happened = "nothing is written"

    def __init__(
        self, topic_partition: str, in_sync: tuple[int, ...], min_insync_replicas: int
    ) -> None:
        super().__init__(topic_partition, in_sync, min_insync_replicas)
        self.topic_partition, self.in_sync = topic_partition, in_sync
        self.min_insync_replicas = min_insync_replicas

    def __str__(self) -> str:
        nodes = ", ".join(map(str, self.in_sync))
        return (
            f"{self.topic_partition} has the in-sync replicas {nodes}, and min.insync.replicas is "
            f"{self.min_insync_replicas}: {self._what_happened}; bring its log dirs back "
            "(`kbatch log-dirs PATH` shows them)"
        )


class NotEnoughReplicasAfterAppendError(NotEnoughReplicasError):
    """As the former, but written: to repeat it under new sequence numbers doubles it."""

    _what_happened = "the records are written, and may be lost"


class RequestTimedOutError(RetriableError, TimeoutError):
    """An answer did not come, or a batch was not delivered, in the time that an option allows."""


class BufferExhaustedError(RequestTimedOutError):
    """No memory for a batch became free within max.block.ms."""

    def __init__(self, size_in_bytes: int, max_block_ms: int, total_memory: int) -> None:
        super().__init__(size_in_bytes, max_block_ms, total_memory)
        self.size_in_bytes, self.max_block_ms = size_in_bytes, max_block_ms
        self.total_memory = total_memory

    def __str__(self) -> str:
        return (
            f"no {self.size_in_bytes} bytes of buffer.memory={self.total_memory} became free within "
            f"max.block.ms={self.max_block_ms}: records come faster than they are written; raise one "
            "of the two, or send less at once"
        )
