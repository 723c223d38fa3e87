"""`kbatch mirror`: copies topics to another cluster."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

import spark_kbatch
from spark_kbatch.cli.output import (
    StopOnceBegun,
    end_as_interrupted,
    json_option,
    progress_bar,
    tell,
    warn,
)
from spark_kbatch.cli.parameters import examples, foreign_end_option, properties_file_option
from spark_kbatch.cli.paths import ANYWHERE, CLIENT_PROPERTIES, ensure_is
from spark_kbatch.errors import CommitError, ObjectStoreError
from spark_kbatch.options.mirror import FAIL_ON_DATA_LOSS, UNIT_BYTES, UNIT_SECONDS
from spark_kbatch.terminal import counted

if TYPE_CHECKING:
    from spark_kbatch import MirrorProgress
    from spark_kbatch.mirroring.copying import OnProgress

_MB = 1_000_000
_AGAIN_S = 5


@click.command(epilog=examples("kbatch mirror broker:9092 my-copy readings clicks --follow"))
@click.argument("source")
@click.argument("target", callback=ensure_is(*ANYWHERE))
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--name", help="Name of the mirror, under which TARGET keeps its progress; by default it is made from the id of SOURCE's cluster. Each of several mirrors into one TARGET needs its own.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Go on with what comes, until SIGINT or SIGTERM.")
@click.option("--unit-bytes", type=click.IntRange(min=1), default=UNIT_BYTES, show_default=True, help="Bytes after which what was copied is committed.")  # fmt: skip
@click.option("--unit-seconds", type=click.FloatRange(min=0, max=30), default=UNIT_SECONDS, show_default=True, help="Seconds after which what was copied is committed.")  # fmt: skip
@click.option("--fail-on-data-loss/--no-fail-on-data-loss", default=FAIL_ON_DATA_LOSS, show_default=True, help="Whether to fail if SOURCE deleted records before they were copied, or to go on without them.")  # fmt: skip
@click.option("--keep-offsets", is_flag=True, help="Keep offsets, and the ids and settings of topics, in a folder or a bucket: streams that read SOURCE go on with TARGET.")  # fmt: skip
@foreign_end_option
@properties_file_option("--source-config", help=CLIENT_PROPERTIES)
@properties_file_option("--target-config", help="The same for TARGET.")
@json_option
def mirror(source: str, target: str, topics: Sequence[str], follow: bool, **options: Any) -> None:
    """Copy TOPICs to another cluster, exactly once.

    SOURCE is the PATH of a cluster or of a broker's logs, the URL of a bucket, or HOST:PORT of a real cluster;
    TARGET is the PATH of a cluster or a bucket's URL, where one is created if there is none, or HOST:PORT. Topics that TARGET does not have are made
    with SOURCE's number of partitions. Offsets are TARGET's own unless --keep-offsets is given; records of aborted transactions are left out.
    Records keep their order, and their times, unless TARGET's topic has message.timestamp.type=LogAppendTime.

    A mirror that was killed goes on where it was: run the same command again.
    """
    stop = StopOnceBegun()  # a mirror looks at it before it copies anything
    names = list(dict.fromkeys(topics))
    with _progress_bar(names) as on_progress:
        run = functools.partial(
            spark_kbatch.mirror,
            source,
            target,
            names,
            follow=follow,
            **options,
            on_progress=on_progress,
            stop=stop,
        )
        done = _followed(run, stop, on_progress) if follow else run()
    row = {"source": source, "target": target, "topics": names, "records": done.records_count}
    row |= done._asdict()
    del row["records_count"]
    tell(row, _summary(done, names, target))
    if stop.is_set() and not follow:
        end_as_interrupted()


def _followed(
    run: Callable[..., MirrorProgress], stop: StopOnceBegun, on_progress: OnProgress
) -> MirrorProgress:
    """Run a mirror; again where it was, after a pause, if a store fails once it has begun.

    Of a run that failed, what it has committed is counted; the next one copies the rest.
    """
    before = committed = spark_kbatch.MirrorProgress(0, 0, 0, 0, 0, 0, ())

    def report(done: MirrorProgress) -> None:
        nonlocal committed
        total = _sum(before, done)
        if total.units > committed.units:
            committed = total
        on_progress(total)

    while True:
        try:
            return _sum(before, run(on_progress=report))
        except (CommitError, ObjectStoreError) as error:
            if not stop.has_begun or stop.wait(_AGAIN_S):
                raise
            warn(f"kbatch: {error}; it goes on where it was")
            before = committed


def _sum(before: MirrorProgress, done: MirrorProgress) -> MirrorProgress:
    total = spark_kbatch.MirrorProgress(*map(operator.add, before, done))
    return total._replace(offsets_left=done.offsets_left)


def _summary(done: MirrorProgress, topics: list[str], target: str) -> str:
    lines = [
        f"Copied {counted(done.records_count, 'record')} of {counted(len(topics), 'topic')}, "
        f"{done.size_in_bytes / _MB:,.1f} MB, to {target} in {counted(done.units, 'commit')}."
    ]
    if done.topics_created:
        lines.append(f"Created {', '.join(done.topics_created)}.")
    if done.batches_encoded:
        batches = done.batches_kept + done.batches_encoded
        lines.append(f"Encoded {done.batches_encoded:,} of {batches:,} batches again.")
    if done.offsets_left:
        lines.append(
            f"{counted(done.offsets_left, 'offset')} {'is' if done.offsets_left == 1 else 'are'} "
            "left to copy."
        )
    return " ".join(lines)


@contextlib.contextmanager
def _progress_bar(topics: list[str]) -> Iterator[OnProgress]:
    with progress_bar(", ".join(topics)) as show:
        most_left = 0

        def update(done: MirrorProgress) -> None:
            nonlocal most_left
            most_left = max(most_left, done.offsets_left)
            copied = f"{done.records_count:,} records, {done.size_in_bytes / _MB:,.1f} MB"
            show(most_left - done.offsets_left, most_left, copied)

        yield update
