"""Places whose records, groups, queries and users' names try to become more than text in a page or a terminal."""

from __future__ import annotations

import contextlib
import getpass
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa

from spark_kbatch import Cluster
from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import Content, Entry, Fence, TopicAlteration, encode
from spark_kbatch.opening.stores import begin_job, open_for_reading, store_of
from spark_kbatch.options.write import parse_write_options
from tests.conftest import REPOSITORY
from tests.support.bucket_objects import a_bucket

LONGEST = "a" * 249  # of a topic's name
KINDS = ("a folder", "a bucket", "a broker's logs", "a server")

# Each would set `window.hit`, or send something elsewhere, if a page took it for more than text.
TEXTS = (
    "<script>window.hit = 1</script>",
    "<img src=x onerror=\"window.hit = 1\"><svg onload='window.hit = 1'>",
    "\"><script>window.hit = 1</script> ' onmouseover='window.hit = 1' autofocus onfocus='window.hit = 1",
    "javascript:window.hit=1",
    "</td></table></pre></title></style><script>window.hit = 1</script><!-- ",
    "{{ 7 * 191 }} {% include 'base.html' %} ${window.hit=1}",
    '<link rel="stylesheet" href="http://127.0.0.1:9/elsewhere.css"><base href="http://127.0.0.1:9/">',
    '<meta http-equiv="refresh" content="0;url=http://127.0.0.1:9/"><iframe src="http://127.0.0.1:9/"></iframe>',
    "&lt;script&gt;&amp;&#60;",
    "from \x1b[31mred\x1b[0m\x00\x07\x08\r\n\t\x85\u2028 to the next line",
    "user\u202egnp.exe \u2066hidden\u2069 \u200b\ufeff\u00ad",
    "e" + "\u0301" * 500,
    "\ud7ff\ue000\uffff \U0010ffff \U0001f600",
    "%3Cscript%3Ewindow.hit=1%3C/script%3E%00%0d%0aX-Header:%201",
    "one word without end " + "w" * 3000,
)  # fmt: skip
# Of topics, as only an entry of somebody else's can have them.
NAMES = (*TEXTS, "a/b", "../events", "..", "", "n" * 250, "/events?token=x#y")
GROUP_LENGTH_MAX = 255  # in a bucket
MiB = 1 << 20
DEEP = '{"a":[' * 2500 + "0" + "]}" * 2500
DEEP_OPEN = "[" * 5000  # JSON that never ends
BYTES = (
    b"\xff\xfe\x00\x80 not UTF-8 \xc0\xaf<script>window.hit = 1</script>",
    b"\xed\xa0\x80",
    b"",
    None,
)


@contextlib.contextmanager
def hostile_place(kind: str, folder: Path) -> Iterator[Cluster]:
    """Make a place of one of KINDS, and open it as `kbatch ui` does.

    Args:
        kind: one of KINDS.
        folder: an empty one; the place's own address has tags too, where it may.
    """
    if kind == "a broker's logs":
        with tarfile.open(REPOSITORY / "notebooks/kafka-logs.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        with open_for_reading(str(folder / "kafka-logs")) as cluster:
            yield cluster
    elif kind == "a bucket":
        with a_bucket() as cluster:
            _fill(cluster)
            topic_id = cluster.topic("odd-settings").topic_id
            for number, text in enumerate(reversed(TEXTS)):
                write_entry(cluster, Fence(text, number), by=text)
                write_entry(cluster, TopicAlteration(topic_id, {text: text}))
            yield cluster
    else:
        path = folder / "<script>window.hit = 1<\\script> & 'a' \"folder\""
        with Cluster(str(path), create=True) as cluster:
            _fill(cluster)
        with contextlib.ExitStack() as stack:
            if kind == "a server":
                yield stack.enter_context(_served(path))
            else:
                yield stack.enter_context(open_for_reading(str(path)))


@contextlib.contextmanager
def _served(path: Path) -> Iterator[Cluster]:
    import spark_kbatch  # noqa: PLC0415

    with (
        Cluster(str(path)) as cluster,
        cluster.serve() as server,
        spark_kbatch.connect(server.bootstrap_servers) as remote,
    ):
        yield remote


def write_entry(cluster: Cluster, content: Content, *, by: str = "") -> None:
    """Write an entry of a bucket's ledger as someone else may, without any check of what it says."""
    ledger = store_of(cluster).ledger
    assert isinstance(ledger, SharedLedger)
    with ledger.state() as state:
        entry = Entry(state.number + 1, names.random_id(ledger.rng), state.entry_id, state.time_ms, content, by)  # fmt: skip
    ledger.objects.create(names.entry_name(entry.number), encode(entry))


def _fill(cluster: Cluster) -> None:
    cluster.create_topic("hostile", 3)
    cluster.create_topic(LONGEST, 2)
    any_time = {"message.timestamp.after.max.ms": (1 << 63) - 1}
    cluster.create_topic("-._", 1, config=any_time)  # as odd as a short name may be
    cluster.create_topic("empty", 1)
    cluster.create_topic("odd-settings", 1)
    cluster.create_topic("deep", 1)
    cluster.create_topic("large", 1, config={"max.message.bytes": 8 * MiB})
    with cluster.producer({"max.request.size": 8 * MiB, "buffer.memory": 64 * MiB}) as producer:
        for text in TEXTS:
            data = text.encode("utf-8", "surrogatepass")
            producer.send("hostile", data, key=data, headers=[(text, data), ("", None)])
            producer.send(LONGEST, json.dumps({text: [text, {"deeper": text}]}))
        for odd in BYTES:
            producer.send("hostile", odd, key=odd, headers=[("bytes", odd)])
        for timestamp in (0, 253402300799999):  # years 1970 and 9999
            producer.send("-._", b"at the end of time", timestamp=timestamp)
        producer.send("deep", DEEP, key=DEEP)
        producer.send("deep", DEEP_OPEN)
        producer.send("large", b"<b>" * MiB, key=b"k" * MiB)
        producer.send("large", b"\x00" * MiB, key=b"\xff" * MiB)
        producer.send("large", b"of many headers", headers=[("", None)] * MiB)
    for number, text in enumerate(TEXTS):
        cluster.alter_group_offsets(
            text[:GROUP_LENGTH_MAX], {("hostile", 0): number, (LONGEST, 1): 0}
        )
        _commit(cluster, number, text)


def _commit(cluster: Cluster, number: int, text: str) -> None:
    """Commit a micro-batch of a query of this name, by a user of this name."""
    options = parse_write_options({"path": cluster.address, "topic": "hostile"})
    rows = pa.record_batch({"value": [text.encode("utf-8", "surrogatepass")], "partition": [1]})
    with mock.patch.object(getpass, "getuser", return_value=text):
        job = begin_job(options, is_micro_batch=True)
        staged = [job.stage(iter([rows]), application_id=text, query_id=text)]
        job.commit_micro_batch(staged, number)
