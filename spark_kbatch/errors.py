"""Every exception that callers of spark_kbatch can get.

KBatchError
  ConfigError (also ValueError)     unknown key, bad value; names the nearest known key
    InvalidTopicError
    TopicAlreadyExistsError
    InvalidPartitionsError          a number of partitions that a topic cannot have
    InvalidReplicationFactorError   more replicas than log dirs or brokers
    InvalidRequiredAcksError
    SchemaError                     path, reason: a schema that is none, or has no form in columns
  UnknownTopicOrPartitionError
  OffsetOutOfRangeError             offset, log_start_offset, log_end_offset
  DataLossError                     what was asked, what is left, why
  CorruptRecordError                path, position, expected, found
    MissingRecordsError (also KafkaStorageError)  offset, next_offset; no segment holds them
  RecordDeserializationError        topic, partition, offset, column, schema id; not what it is read as
  InvalidValueError (also ValueError) row, path; a row of an array that does not fit its schema
  RecordTooLargeError               size_in_bytes, limit
  InvalidTimestampError
    InvalidTimestampTypeError       a producer set the time of the append, which only a log sets
  InvalidRecordError                a batch that a log does not accept from a client
  UnsupportedForMessageFormatError  a topic keeps an older format than a client sends
  UnexpectedAppendOffsetError       a follower was given batches that do not start at its log's end
    OffsetsOutOfOrderError          a follower was given batches that do not follow each other
  ProducerStateError                topic_partition, producer_id
    OutOfOrderSequenceError         expected, found
    InvalidProducerEpochError       current epoch, found
    UnknownProducerIdError
    InvalidTxnStateError            first offset of its open transaction; -1: it has none
    TransactionCoordinatorFencedError  current coordinator epoch, found
  ClosedError (also ValueError)     a cluster or a broker's logs, used after close
  ServerRunningError                path, address and process of the server that runs
  GroupNotEmptyError                group_id, where; its offsets cannot be set while it has members
  GroupOffsetsMovedError            group_id, where, what was moved, by another loop or a reset
  GroupIdNotFoundError              group_id, where
  ProducerClosedError
  ProducerFencedError               transactional id, place, why, outcome; another producer of the name took over
  TransactionAbortedError           a record of a transaction that was aborted before the record was sent
  ProducerForkedError               process that created the producer, forked process that used it
  NotPicklableError (also TypeError)  kind, instead; a cluster or producer cannot go to another process
  ProtocolError                     bytes of a peer that break a rule of Kafka's protocol
  UnsupportedVersionError           api key, version, the versions that are supported
  ApiError                          an error code of Kafka's with no class here; code, name
    RetriableApiError (also RetriableError)
  AuthenticationError               server, reason: it or the client did not prove who it is; retries do not help
    SslAuthenticationError          TLS failed: a certificate, or what the two sides accept
    SaslAuthenticationError         SASL failed: a password, a token, a mechanism
  CommitError                       outcome: nothing is visible / committed / unknown
    OutcomeUnknownError             a commit to a bucket that got no answer; number and id of its entry
  MirrorFencedError                 mirror, target; another process of the same name took the mirror over
  SchemaRegistryError               registry, asked, reason; it refused, or what it answered is no schema
    SchemaNotFoundError             it has no such subject, version or id
    IncompatibleSchemaError         the other versions of a subject do not allow the schema
    SchemaRegistryUnavailableError (also RetriableError)  it was down, slow or busy through all retries
  RefusedEntryError                 a change that the state of a cluster in a bucket does not allow
  CorruptLedgerError                object of a bucket's ledger, reason
  UnsupportedLedgerError            a bucket that another version has written, which this one cannot follow
  ClusterReplacedError              another cluster lies at the place of the one that was open
  BucketForkedError                 process that used a bucket, forked process that uses one too
  ObjectAccessDeniedError           request, object, reason: an object store refuses the credentials
    NoCredentialsError              there are none, so that the store was asked for nothing
  CompiledCodeError                 reason, limit_mib: compiled code cannot be loaded
  RetriableError                    repeating the same request is safe
    ObjectStoreError                request, object, reason: an object store did not answer, or failed
    KafkaStorageError               a log dir or a file in it failed
      FileSystemError (also OSError)  the system refuses: full, read-only, forbidden, gone
      StagedFilesGoneError          a task's staged files were removed before they were committed
    FencedLeaderEpochError          a leader epoch that was replaced by a newer one
      UnknownLeaderEpochError       a leader epoch newer than the one known here
    LogDirLockedError               a broker holds the log dir
    LockTimeoutError                a lock was not free in time; lock, path, waited_s
    DisconnectedError               a connection to a Kafka server was lost, or could not be made
      UnknownHostError              its name cannot be looked up
    NotLeaderOrFollowerError        the leader changed while an answer was awaited
    NotEnoughReplicasError          fewer in sync than min.insync.replicas; nothing is written
      NotEnoughReplicasAfterAppendError  the same, but the records are written
    RequestTimedOutError (also TimeoutError)
      BufferExhaustedError          buffer.memory stayed in use for max.block.ms

The names are Kafka's, `Error` for `Exception`. An error with fields is a dataclass, whose `_text`
is its sentence with the fields in braces; `__str__` is its own where the sentence depends on them. So it
survives pickling out of a Spark worker with its fields, and the sentence carries every number, because
text is all that Spark shows.

Source: Kafka clients/.../common/errors.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from spark_kbatch.model import TIMESTAMP_MS_MAX, TopicPartition

# What errors advise where the package of an extra is missing. The package is on no index: an advice
# that names one would install what somebody else puts there.
INSTALL_EXTRA = "pip install '.[{}]' in a clone of the repository"

_Error = TypeVar("_Error", bound=BaseException)

ADDRESS_SPACE_MIB = 1024  # of a Python worker that writes or reads; most of it are mapped libraries


class KBatchError(Exception):
    """Root of everything that spark_kbatch raises on purpose."""

    _text = ""  # empty where the error is raised with its sentence

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())  # what pickle calls the class with

    def __str__(self) -> str:
        return self._text.format_map(vars(self)) if self._text else super().__str__()


def without_frames(error: _Error) -> _Error:
    """Return an error that is kept, without the frames in which it and its causes were raised.

    What they had in their hands, such as an answer of many megabytes, would stay in memory with it; and
    where they have the error itself, until the garbage collector finds them.
    """
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = one.__context__ = None
        one = one.__cause__
    return error


class ConfigError(KBatchError, ValueError):
    """An option or argument is unknown, missing, or has a value that is not accepted."""


@dataclass(eq=False, repr=False)
class InvalidTopicError(ConfigError):
    """A topic name that Kafka would refuse."""

    topic: str
    reason: str
    other: str = ""  # the topic that has a name like it

    def __str__(self) -> str:
        if self.other:
            return (
                f"topic {self.topic!r} cannot be created beside {self.other!r}: {self.reason}; choose "
                "another name"
            )
        return (
            f"topic name {self.topic!r} {self.reason}; a topic name has 1 to 249 characters of "
            "[a-zA-Z0-9._-] and is neither '.' nor '..'"
        )


@dataclass(eq=False, repr=False)
class TopicAlreadyExistsError(ConfigError):
    """A topic that was to be created exists."""

    topic: str
    differs: str = ""  # how it differs from what was asked for; empty where existing is the error

    def __str__(self) -> str:
        if self.differs:
            return f"topic {self.topic!r} already exists, with {self.differs}; choose another name"
        return (
            f"topic {self.topic!r} already exists; choose another name, or use the existing topic with "
            "exist_ok=True"
        )


class InvalidPartitionsError(ConfigError):
    """A number of partitions that a topic cannot have."""


class InvalidReplicationFactorError(ConfigError):
    """A replication factor above the number of log dirs or brokers."""


@dataclass(eq=False, repr=False)
class InvalidRequiredAcksError(ConfigError):
    """`acks` is not -1, 0 or 1."""

    required_acks: int

    _text = "acks is {required_acks}; accepted: -1 (all in-sync replicas), 0 and 1 (the leader)"


@dataclass(eq=False, repr=False)
class SchemaError(ConfigError):
    """A schema of values that is not one, or a type in it that has no form in columns."""

    path: str  # of the type, such as Order.customer.names[]; empty for the whole
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class UnknownTopicOrPartitionError(KBatchError):
    """A topic or partition that does not exist."""


@dataclass(eq=False, repr=False)
class OffsetOutOfRangeError(KBatchError):
    """A requested offset lies outside the offsets that the log holds."""

    topic_partition: str
    offset: int
    log_start_offset: int
    log_end_offset: int
    option: str = ""  # that asked for the offset, if one did
    why: str = ""  # the offset is gone, where that is known

    def __str__(self) -> str:
        asked = f"option {self.option!r}: " if self.option else ""
        return (
            f"{asked}offset {self.offset} of {self.topic_partition} is out of range: the log holds offsets "
            f"{self.log_start_offset} to {self.log_end_offset} (exclusive)"
            f"{self.why and f'; {self.why}'}"
        )


@dataclass(eq=False, repr=False)
class DataLossError(KBatchError):
    """Requested records are gone or never existed."""

    asked: str
    left: str
    why: str

    _text = "{asked} cannot be read: {why}; available: {left}"


@dataclass(eq=False, repr=False)
class CorruptRecordError(KBatchError):
    """Bytes of a log or batch that violate Kafka's record format."""

    what: str
    path: str = ""  # empty where the bytes were given in a buffer
    position: int = -1  # in the file, or in the buffer
    expected: Any = ""
    found: Any = ""
    topic_partition: str = ""  # whose records cannot be read
    offset: int = -1  # of the first of them; -1 where that is not known
    next_offset: int = -1  # the first after them that can be read, or the end; -1 likewise
    how: str = ""  # to read on from there

    def __str__(self) -> str:
        where = f" at position {self.position}" if self.position >= 0 else ""
        where += f" of {self.path}" if self.path else ""
        detail = f": expected {self.expected}, found {self.found}" if self.expected != "" else ""
        text = f"corrupt record batch{where}: {self.what}{detail}"
        if not self.how:
            return text
        return (
            f"{text}; offsets {self.offset} to {self.next_offset - 1} of {self.topic_partition} are "
            f"damaged; go on with {self.how}"
        )

    def at(self, path: str, base_position: int) -> CorruptRecordError:
        """Return the same error with its position counted from `base_position` in the file `path`."""
        return replace(self, path=path, position=base_position + max(self.position, 0))


def going_on(
    error: _Error,
    topic_partition: TopicPartition,
    how: Callable[[TopicPartition, int], str] = "start={{{0.partition}: {1}}}".format,
) -> _Error:
    """Return an error that says where to go on, if that is known.

    Args:
        error: about records of the partition that cannot be read.
        topic_partition: the partition.
        how: returns what reads on from an offset; by default in the words of Python.
    """
    if not isinstance(error, CorruptRecordError) or error.next_offset < 0:
        return error
    words = how(topic_partition, error.next_offset)
    return replace(error, topic_partition=str(topic_partition), how=words)


@dataclass(eq=False, repr=False)
class RecordDeserializationError(KBatchError):
    """A key or a value that is not what it was to be read as: text, or of a schema."""

    topic: str
    partition: int
    offset: int
    column: str  # key or value
    reason: str
    path: str = ""  # of the field, such as Order.customer.id; empty for the whole
    position: int = (
        -1
    )  # of the byte that is wrong, in the key or value; -1 where no byte is to blame
    schema_id: int = -1  # of the schema that wrote it; -1 where it names none
    remedy: str = ""

    def __str__(self) -> str:
        details = [f"byte {self.position}"] if self.position >= 0 else []
        details += [f"schema id {self.schema_id}"] if self.schema_id >= 0 else []
        at = f"{self.path}: " if self.path else ""
        beside = f" ({', '.join(details)})" if details else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return (
            f"the {self.column} of {self.topic}-{self.partition} at offset {self.offset} cannot be decoded: "
            f"{at}{self.reason}{beside}{remedy}"
        )


@dataclass(eq=False, repr=False)
class InvalidValueError(KBatchError, ValueError):
    """A row of an array that cannot be decoded, or encoded, as its schema asks."""

    row: int
    reason: str
    path: str = ""  # of the field; empty for the whole value
    schema_id: int = -1  # of the schema that wrote it; -1 where none is named
    remedy: str = ""

    def __str__(self) -> str:
        at = f"{self.path}: " if self.path else ""
        by = f" (schema id {self.schema_id})" if self.schema_id >= 0 else ""
        then = f"; {self.remedy}" if self.remedy else ""
        return f"row {self.row}: {at}{self.reason}{by}{then}"


def _created_with(topic: str, option: str) -> str:
    return (
        f"topic {topic!r} does not exist yet: give the write the option {option}, or create the topic first "
        f"with `kbatch create-topic --config {option}=...` or `create_topic`"
    )


@dataclass(eq=False, repr=False)
class RecordTooLargeError(KBatchError):
    """A record, or its batch, is larger than an option allows."""

    what: str
    size_in_bytes: int
    limit: int  # -1 if a broker does not tell
    option: str
    topic: str = ""  # where it is known
    is_new: bool = False  # the topic does not exist yet: a job's commit would create it

    def __str__(self) -> str:
        remedy = (
            _created_with(self.topic, self.option)
            if self.is_new
            else f"raise the topic's {self.option}"
            if self.limit < 0
            else f"raise the topic's {self.option} with `kbatch alter-topic` or `alter_topic`"
            if self.option in ("max.message.bytes", "segment.bytes")
            else f"raise {self.option}"
        )
        limit = f"{self.option}={self.limit}" if self.limit >= 0 else f"its {self.option}"
        return (
            f"{self.what} takes {self.size_in_bytes} bytes, more than {limit}; {remedy}, or write smaller "
            "values"
        )


@dataclass(eq=False, repr=False)
class InvalidTimestampError(KBatchError):
    """A record's time that the format cannot store, a topic does not accept, or a column cannot hold."""

    timestamp_ms: int
    topic: str = ""  # that is written to; without `option`, the one that the record was read from
    option: str = ""  # the topic's limit that the time passes
    limit_ms: int = -1
    now_ms: int = -1
    records: tuple[tuple[int, int], ...] = ()  # of a client's batch: their numbers and times
    is_new: bool = False  # the topic does not exist yet: a job's commit would create it
    where: str = ""  # which record, of those that are read

    def __str__(self) -> str:
        if self.option:
            distance = self.timestamp_ms - self.now_ms
            side = "after" if distance > 0 else "before"
            remedy = "raise that with `kbatch alter-topic` or `alter_topic`"
            if self.is_new:
                remedy = _created_with(self.topic, self.option)
            return (
                f"a record for topic {self.topic!r} has the time {self.timestamp_ms} ms, "
                f"{abs(distance)} ms {side} now ({self.now_ms}), more than {self.option}="
                f"{self.limit_ms}; {remedy}, or write other times"
            )
        if self.topic:
            return (
                f"a record of topic {self.topic!r}{self.where} has the time {self.timestamp_ms} ms, which does not "
                "fit into a 64-bit timestamp in microseconds; read the other columns by name: "
                '.schema("offset bigint, value binary") in Spark, columns=["offset", "value"] '
                "in Python"
            )
        if self.timestamp_ms > 0:
            return (
                f"a record's timestamp is {self.timestamp_ms} ms; accepted: at most {TIMESTAMP_MS_MAX} ms, "
                "the latest time that fits into a 64-bit timestamp in microseconds"
            )
        return (
            f"column 'timestamp' holds {self.timestamp_ms} ms, a time before 1970-01-01T00:00:00Z; "
            "accepted: 0 or later, -1 ms for no time, and null for the time of writing"
        )


@dataclass(eq=False, repr=False)
class InvalidTimestampTypeError(InvalidTimestampError):
    """A producer's batch with the timestamp type LogAppendTime, which only a log's own clock may set."""

    def __str__(self) -> str:
        return (
            f"a batch for topic {self.topic!r} has log append time; accepted: create time, the log's own "
            "clock sets the other"
        )


class InvalidRecordError(KBatchError):
    """A batch with intact bytes that a log does not accept from a client; says why."""


@dataclass(eq=False, repr=False)
class UnsupportedForMessageFormatError(KBatchError):
    """A client sent record batches to a topic that keeps messages of an older format."""

    topic_partition: str
    message_format_version: str

    _text = (
        "{topic_partition} keeps messages in the format of "
        "message.format.version={message_format_version}, and clients send record batches, of a newer one: "
        "use a topic with message.format.version=3.0, or write to this one with Spark or from Python, "
        "which convert records"
    )


@dataclass(eq=False, repr=False)
class UnexpectedAppendOffsetError(KBatchError):
    """A follower was given batches that do not start at the end of its log."""

    topic_partition: str
    expected: int
    found: int

    _text = (
        "batches for the follower of {topic_partition} start at offset {found}, but its log ends at "
        "{expected}: truncate it to where it agrees with the leader, and fetch from there"
    )


class OffsetsOutOfOrderError(UnexpectedAppendOffsetError):
    """A follower was given batches whose offsets leave a gap or go back."""

    _text = (
        "a batch for the follower of {topic_partition} starts at offset {found}, but the batch before it "
        "ends at {expected}: the leader's log is damaged, or is not the one that was copied so far"
    )


@dataclass(eq=False, repr=False)
class ProducerStateError(KBatchError):
    """Base of errors about what one producer has sent to a partition."""

    topic_partition: str
    producer_id: int


@dataclass(eq=False, repr=False)
class OutOfOrderSequenceError(ProducerStateError):
    """A batch of an idempotent producer does not follow the batch before it."""

    expected: int  # -1 if a broker does not tell
    found: int

    def __str__(self) -> str:
        return (
            f"producer {self.producer_id} sent sequence {self.found} to {self.topic_partition}, where "
            f"{self.expected if self.expected >= 0 else 'another one'} is next: a batch before it was lost"
        )


@dataclass(eq=False, repr=False)
class InvalidProducerEpochError(ProducerStateError):
    """A batch of an idempotent producer has an epoch that was replaced by a newer one."""

    current: int  # -1 if a broker does not tell
    found: int

    def __str__(self) -> str:
        return (
            f"producer {self.producer_id} sent epoch {self.found} to {self.topic_partition}, where its "
            f"epoch is {self.current if self.current >= 0 else 'a newer one'}"
        )


class UnknownProducerIdError(ProducerStateError):
    """A broker has forgotten a producer, for instance because all that it wrote was deleted."""

    _text = "producer {producer_id} is no longer known to the leader of {topic_partition}"


@dataclass(eq=False, repr=False)
class InvalidTxnStateError(ProducerStateError):
    """A transactional batch without an open transaction, or a plain batch of a producer within one."""

    first_offset: int = -1  # of the open transaction

    def __str__(self) -> str:
        if self.first_offset < 0:
            return (
                f"producer {self.producer_id} sent a transactional batch to {self.topic_partition}, where "
                "it has no transaction open: the transaction was ended, for example by its time-out, or the "
                "partition was not added to it"
            )
        return (
            f"producer {self.producer_id} sent a batch that is not transactional to "
            f"{self.topic_partition}, where it has had a transaction open since offset {self.first_offset}"
        )


@dataclass(eq=False, repr=False)
class TransactionCoordinatorFencedError(ProducerStateError):
    """A transaction marker comes from a coordinator that was replaced by a newer one."""

    current: int
    found: int

    _text = (
        "a coordinator of epoch {found} ended a transaction of producer {producer_id} in "
        "{topic_partition}, where the coordinator's epoch is {current}"
    )


@dataclass(eq=False, repr=False)
class ClosedError(KBatchError, ValueError):
    """A cluster, or a broker's logs, used after it was closed."""

    path: str

    _text = "{path} is closed; open it again, or use it before closing it"


@dataclass(eq=False, repr=False)
class ServerRunningError(KBatchError):
    """A server was to be started on a cluster that another one serves."""

    path: str
    address: str  # HOST:PORT; empty if the server does not listen yet
    process_id: int

    def __str__(self) -> str:
        at = f"at {self.address}, in process {self.process_id}"
        where = at if self.address else "that has just been started"
        return f"{self.path} is served already by a server {where}; use that one, or stop it first"


@dataclass(eq=False, repr=False)
class GroupNotEmptyError(KBatchError):
    """The offsets of a consumer group were to be set, or the group to be deleted, while it has members."""

    group_id: str
    where: str  # the cluster

    _text = (
        "consumer group {group_id!r} of {where} has members: stop them first; those that died leave after "
        "their session time-out, while the cluster is served"
    )


@dataclass(eq=False, repr=False)
class GroupOffsetsMovedError(KBatchError):
    """The offsets of a consumer group are not where the loop that goes on with it has left them."""

    group_id: str
    where: str  # the cluster
    moved: str  # a partition, where the loop has left it and where it is now

    _text = (
        "consumer group {group_id!r} of {where} was moved while a loop has it ({moved}), by "
        "another loop or by `kbatch groups reset`: let one loop at a time have a group, and follow "
        "again to go on where it stands"
    )


@dataclass(eq=False, repr=False)
class GroupIdNotFoundError(KBatchError):
    """A consumer group does not exist."""

    group_id: str
    where: str  # the cluster

    _text = "consumer group {group_id!r} does not exist in {where}"


class ProducerClosedError(KBatchError):
    """A producer was closed before it could deliver the record."""


class TransactionAbortedError(KBatchError):
    """A transaction was aborted before this record of it was sent."""


@dataclass(eq=False, repr=False)
class ProducerFencedError(KBatchError):
    """A transactional producer that must not write any more: another one of its name has taken over, or its time was up."""

    transactional_id: str
    place: str
    why: str
    outcome: str  # of its transaction

    _text = (
        "producer {transactional_id!r} of {place} must not write any more, as {why}; {outcome}: close it, and run "
        "one producer at a time under a name"
    )


@dataclass(eq=False, repr=False)
class ProducerForkedError(KBatchError):
    """A producer was used in a fork of the process that created it."""

    process_id: int
    child_id: int

    _text = (
        "this producer belongs to process {process_id}; process {child_id} is a fork of it and lacks the "
        "thread that sends; create a producer in each process, after the fork"
    )


@dataclass(eq=False, repr=False)
class NotPicklableError(KBatchError, TypeError):
    """An object that belongs to its process was pickled, such as a cluster in a function for Spark's tasks."""

    kind: str
    instead: str

    _text = (
        "a {kind} cannot be pickled, as Spark does with all that a function for its tasks uses: it belongs "
        "to the process that made it; {instead}"
    )


@dataclass(eq=False, repr=False)
class ProtocolError(KBatchError):
    """Bytes received from a peer that violate Kafka's protocol."""

    message: str  # that the bytes are said to be
    field: str
    position: int  # in the frame, after its size; -1 where no byte is to blame
    expected: Any
    found: Any

    def __str__(self) -> str:
        where = f" at byte {self.position}" if self.position >= 0 else ""
        return (
            f"malformed {self.message}: {self.field}{where}: expected {self.expected}, "
            f"found {self.found}"
        )


@dataclass(eq=False, repr=False)
class UnsupportedVersionError(KBatchError):
    """A Kafka request of a type or version that is not supported."""

    api_key: int
    api_name: str  # empty where it is not known here
    version: int
    supported: tuple[int, int] | None  # first and last version; None where there are none
    correlation_id: int = -1  # of the request

    def __str__(self) -> str:
        if self.supported is None:
            name = f"{self.api_name}, " if self.api_name else ""
            return f"requests with {name}api key {self.api_key}, are not supported"
        first, last = self.supported
        return f"version {self.version} of {self.api_name} is not supported; supported: {first} to {last}"


@dataclass(eq=False, repr=False)
class ApiError(KBatchError):
    """An error code of a Kafka server without an exception class here; `name` is Kafka's."""

    code: int
    name: str
    text: str = ""  # what the server says

    def __str__(self) -> str:
        return (
            f"the Kafka server answered {self.name} ({self.code}){self.text and f': {self.text}'}"
        )


@dataclass(eq=False, repr=False)
class AuthenticationError(KBatchError):
    """A failed authentication between client and server; retrying does not help.

    Holds no secret.
    """

    server: str
    reason: str  # ends with the option to look at

    _text = "authentication with {server} failed: {reason}"


class SslAuthenticationError(AuthenticationError):
    """TLS could not be agreed on, or a certificate was not accepted."""

    _text = "TLS with {server} failed: {reason}"


class SaslAuthenticationError(AuthenticationError):
    """A user, a password, a token or a mechanism was not accepted."""

    _text = "SASL authentication with {server} failed: {reason}"


@dataclass(eq=False, repr=False)
class CommitError(KBatchError):
    """A commit failed; `outcome` says what that means for the data."""

    outcome: str
    reason: str

    _text = "commit failed, {outcome}: {reason}"


@dataclass(eq=False, repr=False)
class OutcomeUnknownError(CommitError):
    """A commit to a bucket whose store gave no answer: the entry may still be created."""

    number: int  # of the entry in the ledger
    entry_id: str

    _text = "commit failed, {outcome}: {reason}; it is entry {number} of the ledger if its id is {entry_id}"


class RefusedEntryError(KBatchError):
    """A change that the state of a cluster in a bucket does not allow; nothing of it is visible."""


@dataclass(eq=False, repr=False)
class CorruptLedgerError(KBatchError):
    """An object of a bucket's ledger or of its checkpoints is damaged, missing, or belongs to another one."""

    name: str  # of the object
    reason: str

    _text = (
        "{name} cannot be trusted: {reason}; nothing is read or written here any more: stop all writers, and "
        "bring the object back from the bucket's versions or from a copy, or see what `kbatch repair` can do"
    )


@dataclass(eq=False, repr=False)
class UnsupportedLedgerError(KBatchError):
    """An object of a bucket has a format that only another version of this package knows."""

    name: str  # of the object
    reason: str

    _text = (
        "{name} was written by another version of spark_kbatch: {reason}; install that version, which can also "
        "mirror the topics to a real cluster"
    )


@dataclass(eq=False, repr=False)
class ClusterReplacedError(KBatchError):
    """The cluster that was open in a bucket is gone: another one lies at its place."""

    expected: str  # its id
    found: str  # the other's id; empty if there is none

    _text = "the cluster {expected} is not here any more, but {found!r}; open the place again"


@dataclass(eq=False, repr=False)
class BucketForkedError(KBatchError):
    """A bucket was used in a fork of a process that had used one."""

    process_id: int
    child_id: int

    _text = (
        "process {process_id} has used a bucket, and process {child_id} is a fork of it, in which the "
        "library for buckets would hang; start processes that use buckets with spawn or as programs of "
        "their own, or fork before the first use"
    )


@dataclass(eq=False, repr=False)
class ObjectAccessDeniedError(KBatchError):
    """An object store does not accept the credentials, or they lack a right."""

    request: str  # such as "get"
    name: str  # of the object
    reason: str

    _text = "the object store refuses to {request} {name}: {reason}"


class NoCredentialsError(ObjectAccessDeniedError):
    """No credentials for an object store were found, so that it was asked for nothing."""

    _text = "no credentials were found to {request} {name} in the object store: {reason}"


@dataclass(eq=False, repr=False)
class MirrorFencedError(KBatchError):
    """Another process has taken a mirror over, so that this one must not write any more."""

    mirror: str
    target: str
    why: str = ""  # else this may have happened

    def __str__(self) -> str:
        return (
            f"mirror {self.mirror!r} into {self.target} was taken over by another process of the same "
            f"name{self.why and f', or {self.why}'}; nothing is lost or doubled: run one at a time, or "
            "give each a name and topics of its own"
        )


@dataclass(eq=False, repr=False)
class SchemaRegistryError(KBatchError):
    """A schema registry refused a request, or its answer cannot be used.

    Holds no secret.
    """

    registry: str  # its URLs, without user and password; or its folder
    asked: str
    reason: str  # what it answered, and what to do

    _text = "schema registry {registry}, asked for {asked}: {reason}"


class SchemaNotFoundError(SchemaRegistryError):
    """A subject, a version of it or a schema id that the registry does not have."""


class IncompatibleSchemaError(SchemaRegistryError):
    """A schema that the other versions of its subject do not allow."""


# Missing or forbidden files and folders: waiting does not help. A full disk is not among them: as in
# Kafka, someone may make room before delivery.timeout.ms.
_PERMANENT = {
    errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR,
    errno.EPERM, errno.EROFS,
}  # fmt: skip


@dataclass(eq=False, repr=False)
class CompiledCodeError(KBatchError):
    """The code that encodes and decodes records cannot be loaded, or compiled, in this process."""

    reason: str
    limit_mib: int | None  # of the process's address space; None if it has none

    def __str__(self) -> str:
        limit = (
            ""
            if self.limit_mib is None
            else (
                f". This process may have {self.limit_mib} MiB of address space (RLIMIT_AS, "
                f"`ulimit -v`), and needs about {ADDRESS_SPACE_MIB}. A Python worker of Spark has "
                "its share of spark.executor.pyspark.memory, which is divided by the cores of an "
                "executor"
            )
        )
        return f"compiled code cannot be loaded ({self.reason}){limit}"


class RetriableError(KBatchError):
    """Base of errors after which repeating the same request is safe and may succeed."""

    is_transient = True  # whether waiting may help; a producer retries only then


@dataclass(eq=False, repr=False)
class RetriableApiError(ApiError, RetriableError):
    """A retriable error code of a Kafka server without an exception class here."""


class SchemaRegistryUnavailableError(SchemaRegistryError, RetriableError):
    """A schema registry could not be reached, or was slow or busy, until the time for retries was over."""


@dataclass(eq=False, repr=False)
class ObjectStoreError(RetriableError):
    """An object store failed, or did not answer in time; a change may have been made."""

    request: str  # such as "get"
    name: str  # of the object
    reason: str

    _text = "the object store did not {request} {name}: {reason}"


class KafkaStorageError(RetriableError):
    """A log dir, or a file in it, cannot be used."""

    @classmethod
    def of(cls, cause: OSError, what: str = "") -> KafkaStorageError:
        """Return a KafkaStorageError for an OSError, chained to it, to report to a client."""
        error = cls(f"{what and f'{what}: '}{FileSystemError.of(cause)}")
        error.__cause__ = cause
        error.is_transient = cause.errno not in _PERMANENT
        return error


class MissingRecordsError(CorruptRecordError, KafkaStorageError):
    """Offsets that no segment of a log holds: one is lost, or was deleted since the reader looked."""


_REMEDIES = {
    errno.ENOSPC: "delete topics or records, which takes no room, or other files",
    errno.EDQUOT: "delete topics or records, which takes no room, or other files",
    errno.EROFS: "mount it so that it can be written",
    errno.EACCES: "run as a user who may, or change the mode of the file or folder",
    errno.EPERM: "run as a user who may, or change the mode of the file or folder",
    errno.ENOENT: "it was deleted, or its disk is not mounted",
    errno.EFBIG: "this process has a limit for the size of files, which `ulimit -f` shows",
    errno.ELOOP: "put the file or folder itself there; PATH and log dirs alone may be links",
}


class FileSystemError(KafkaStorageError, OSError):
    """A file or folder that the system does not let us use; `errno`, `strerror` and `filename` are the OSError's."""

    @classmethod
    def of(cls, cause: OSError, what: str = "") -> FileSystemError:
        """Return the error for an OSError, chained to it; `what` stands in for a path that it lacks."""
        error = cls(cause.errno, cause.strerror or str(cause), cause.filename or what or None)
        error.__cause__ = cause
        error.is_transient = cause.errno not in _PERMANENT
        return error

    def __str__(self) -> str:
        remedy = _REMEDIES.get(self.errno or 0)
        where = f"{self.filename}: " if self.filename else ""
        return f"{where}{self.strerror}{(remedy and f'; {remedy}') or ''}"


# That some records cannot be read: those before them, and other partitions, can be.
UNREADABLE = (CorruptRecordError, CorruptLedgerError, InvalidTimestampError, KafkaStorageError)


class StagedFilesGoneError(KafkaStorageError):
    """Files that a task staged were removed before they were committed."""


@dataclass(eq=False, repr=False)
class FencedLeaderEpochError(RetriableError):
    """A request carries a leader epoch that was replaced by a newer one."""

    topic_partition: str
    current: int
    found: int

    _text = (
        "leader epoch {found} of {topic_partition} was replaced by {current}: look up the partition's "
        "leader again"
    )


class UnknownLeaderEpochError(FencedLeaderEpochError):
    """A request carries a newer leader epoch than the one known here."""

    _text = (
        "leader epoch {found} of {topic_partition} is newer than {current}, the one known here: retry "
        "later"
    )


class LogDirLockedError(RetriableError):
    """Another program, most likely a Kafka broker, holds a log dir."""


@dataclass(eq=False, repr=False)
class LockTimeoutError(RetriableError):
    """A lock on a partition or on metadata was not free in time; nothing is written."""

    lock: str  # a partition, "commit" or "metadata"
    path: str
    waited_s: float

    _text = (
        "the lock of {lock} was not free within {waited_s:.1f} s; nothing is written. Another process or "
        "thread holds it: one that is in a long write, is stopped, or hangs. `lsof {path}` shows which "
        "processes on this machine have the lock's file open; the lock is free once its holder ends"
    )


@dataclass(eq=False, repr=False)
class DisconnectedError(RetriableError):
    """A connection to a Kafka server was lost, or could not be made; a request may have been executed."""

    server: str
    reason: str

    _text = "no connection to {server}: {reason}"


class UnknownHostError(DisconnectedError):
    """The host name of a Kafka server cannot be resolved."""


class NotLeaderOrFollowerError(RetriableError):
    """The partition's leader changed before the replicas had the append, which may be lost."""


@dataclass(eq=False, repr=False)
class NotEnoughReplicasError(RetriableError):
    """Fewer replicas are in sync than min.insync.replicas asks for; nothing is written."""

    topic_partition: str
    in_sync: tuple[int, ...]
    min_insync_replicas: int

    _outcome = "nothing is written"

    def __str__(self) -> str:
        nodes = ", ".join(map(str, self.in_sync))
        return (
            f"{self.topic_partition} has the in-sync replicas {nodes}, and min.insync.replicas is "
            f"{self.min_insync_replicas}: {self._outcome}; bring its log dirs back "
            "(`kbatch log-dirs PATH` shows them)"
        )


class NotEnoughReplicasAfterAppendError(NotEnoughReplicasError):
    """Records were written, but fewer replicas are in sync than min.insync.replicas asks for.

    Retrying with new sequence numbers writes duplicates.
    """

    _outcome = "the records are written, and may be lost"


class RequestTimedOutError(RetriableError, TimeoutError):
    """An answer or a delivery took longer than an option allows."""


@dataclass(eq=False, repr=False)
class BufferExhaustedError(RequestTimedOutError):
    """No memory in the producer's buffer became free for a batch within max.block.ms."""

    size_in_bytes: int
    max_block_ms: int
    total_memory: int
    why: str = ""  # records could not be written meanwhile
    is_in_callback: bool = False

    def __str__(self) -> str:
        wanted = f"no {self.size_in_bytes} bytes of buffer.memory={self.total_memory}"
        if self.is_in_callback:
            return (
                f"{wanted} are free, and a callback, whose thread makes memory free, waits for none: send from "
                "another thread, or raise buffer.memory"
            )
        missing = f"{wanted} became free within max.block.ms={self.max_block_ms}"
        if self.why:
            return f"{missing}; the last attempt to write failed: {self.why}"
        return (
            f"{missing}: records arrive faster than they are written; raise either "
            "option, or send less at once"
        )
