"""The names of the objects of a cluster in a bucket.

    cluster                                 the cluster's id; all else lies in a folder with that name

    ledger/NUMBER                           one entry
    checkpoints/NUMBER                      the root of a checkpoint: the state after that entry
    parts/NUMBER-RANDOM/NAME                what roots name: heads, extents-TOPIC-ID
    parts/NUMBER-RANDOM/NAME.copy           the same once more
    data/HH/NUMBER-JOB/ATTEMPT              all batches of one task attempt
    data/HH/NUMBER-JOB/index-ATTEMPT        where the batches of a large commit are
    segments/TOPIC-ID/PARTITION/NUMBER-ID.log   merged batches of a partition
    agreements/DAY/ACTION                   offsets that the tasks of one action agree on
    hint                                    where to look for the newest checkpoint and entry

A number has 20 digits, so that names sort as numbers do. That of data and segments is the number of the
last entry when the work began that wrote them: it says whether a later entry may still refer to them. HH are
the first two digits of the job's id, which spread the load of a store that splits its names by range.
"""

from __future__ import annotations

import random
import re

CLUSTER = "cluster"
HINT = "hint"
LEDGER, CHECKPOINTS, PARTS, DATA, SEGMENTS, AGREEMENTS = (
    "ledger/",
    "checkpoints/",
    "parts/",
    "data/",
    "segments/",
    "agreements/",
)
COPY = ".copy"  # after the name of a part
DAY_MS = 86_400_000

NUMBER_DIGITS = 20
ID_DIGITS = 32
NUMBER_MAX = 10**NUMBER_DIGITS - 1
RANDOM_ID = re.compile(r"[0-9a-f]{32}")
TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")  # as Kafka's
PART = re.compile(r"parts/[0-9]{20}-[0-9a-f]{32}/(?:heads|extents-[A-Za-z0-9_-]{1,64})")

_NUMBERED = re.compile(r"(?:ledger|checkpoints)/([0-9]{20})")
_STARTED = re.compile(
    r"data/[0-9a-f]{2}/([0-9]{20})-[0-9a-f]{32}/(?:index-)?[0-9a-f]{32}"
    r"|segments/[A-Za-z0-9_-]{1,64}/[0-9]{1,6}/([0-9]{20})-[0-9a-f]{32}\.log"
)


def entry_name(number: int) -> str:
    """Return the name of an entry."""
    return f"{LEDGER}{number:020d}"


def root_name(number: int) -> str:
    """Return the name of the root of the checkpoint after an entry."""
    return f"{CHECKPOINTS}{number:020d}"


def part_name(number: int, random_id: str, what: str) -> str:
    """Return the name of a part that is written for the checkpoint after an entry."""
    return f"{PARTS}{number:020d}-{random_id}/{what}"


def data_name(start_entry: int, job_id: str, attempt_id: str) -> str:
    """Return the name of the batches of a task attempt; `start_entry` is the last entry when its job began."""
    return f"{DATA}{job_id[:2]}/{start_entry:020d}-{job_id}/{attempt_id}"


def index_name(start_entry: int, job_id: str, attempt_id: str) -> str:
    """Return the name of the index of a job's commit."""
    return data_name(start_entry, job_id, f"index-{attempt_id}")


def segment_name(topic_id: str, partition: int, start_entry: int, random_id: str) -> str:
    """Return the name of merged batches; `start_entry` is the last entry when the merge began."""
    return f"{SEGMENTS}{topic_id}/{partition}/{start_entry:020d}-{random_id}.log"


def agreement_name(day: int, action: str) -> str:
    """Return the name of what the tasks of an action agree on; `day` is days since 1970."""
    return f"{AGREEMENTS}{day}/{action}"


def folder_of(name: str) -> str:
    """Return the folder of a name: of data, and of an index, that of its job."""
    return name.rpartition("/")[0]


def number_of(name: str) -> int:
    """Return the number in the name of an entry or a root; -1 if it is not one of theirs."""
    found = _NUMBERED.fullmatch(name)
    return int(found[1]) if found else -1


def start_entry(name: str) -> int:
    """Return the number in the name of data or a segment; -1 if it is not one of theirs."""
    found = _STARTED.fullmatch(name)
    return int(found[1] or found[2]) if found else -1


def random_id(rng: random.Random) -> str:
    """Return a new id, of 32 hex digits."""
    return f"{rng.getrandbits(128):032x}"
