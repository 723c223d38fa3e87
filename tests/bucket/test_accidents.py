"""One object of a bucket that is a month old is lost or damaged: docs/bucket-accidents.md has a table of what happens.

Of each kind of object the oldest, the newest and one in the middle are tried: removed, halved, emptied, and with a
flipped bit. `tests.support.month_bucket` says what the bucket has, and what the cells mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import spark_kbatch
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.errors import CorruptLedgerError, CorruptRecordError
from spark_kbatch.ledger import names
from tests.bucket.test_recovery import done, kbatch, send
from tests.conftest import REPOSITORY
from tests.support import draws
from tests.support.bucket_objects import AgingObjects, a_url, values
from tests.support.month_bucket import (
    CLUSTER_ID,
    DAMAGES,
    KINDS,
    QUIET,
    Accidents,
    flipped,
)

PAGE = (REPOSITORY / "docs" / "bucket-accidents.md").read_text(encoding="utf-8")
(BODY,) = re.findall(r"<!-- accidents -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in BODY.splitlines()[2:]]
TABLE = {kind: [{*cell.split(" or ")} for cell in cells] for kind, *cells in ROWS}
SEALED = KINDS[:10]  # kinds of small objects


@pytest.fixture(scope="module")
def accidents() -> Accidents:
    return Accidents()


def test_the_table_has_each_kind_of_object_and_the_bucket_has_some_of_it(
    accidents: Accidents,
) -> None:
    assert [*TABLE] == [*KINDS]
    assert all(accidents.by_kind.values())
    assert "the cluster" not in {one for cells in TABLE.values() for one in cells[-1]}


@pytest.mark.parametrize(("number", "kind"), [*enumerate(KINDS)])
def test_an_object_that_is_lost_or_damaged_takes_what_the_table_says(
    accidents: Accidents, number: int, kind: str
) -> None:
    damage = [*DAMAGES.values()][number % len(DAMAGES)]
    name = accidents.chosen(kind)[-1]

    found = accidents.outcome(name, damage(accidents.content(name)))

    assert all(one in cell for one, cell in zip(found, TABLE[kind], strict=True)), found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_table_says_all_that_happens(accidents: Accidents, kind: str) -> None:
    found = [
        accidents.outcome(name, damage(accidents.content(name)))
        for name in accidents.chosen(kind)
        for damage in DAMAGES.values()
    ]

    assert [{*column} for column in zip(*found, strict=True)] == TABLE[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEALED)
def test_any_byte_of_a_small_object_may_be_wrong(accidents: Accidents, kind: str) -> None:
    """A sum is over all of them: every fifth is tried, or each if five times as much is drawn."""
    name = min(accidents.by_kind[kind], key=lambda one: len(accidents.content(one)))
    data, stride = accidents.content(name), max(1, 5 // draws.many(1))
    for at in range(0, len(data), stride):
        used, kept = accidents.used(name, flipped(data, at))
        assert used in TABLE[kind][0]
        assert used == "stop" or kept == accidents.all


def damaged_too(accidents: Accidents, kind: str) -> tuple[AgingObjects, str]:
    """Return the objects, one of a kind lost and one of young data flipped; and its name."""
    objects = accidents.copied(accidents.chosen(kind)[0], None)
    name = accidents.chosen(KINDS[11])[0]
    objects.put(name, flipped(accidents.content(name), len(accidents.content(name)) - 1))
    return objects, name.removeprefix(f"{CLUSTER_ID}/")


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_verify_tells_whatever_stops_readers(
    accidents: Accidents, damage: Callable[[bytes], bytes | None]
) -> None:
    name = accidents.chosen(KINDS[4])[0]
    objects = accidents.copied(name, damage(accidents.content(name)))
    with pytest.raises(CorruptLedgerError):
        BucketStore(a_url(objects))

    verified = kbatch("verify", a_url(objects))

    assert verified.exit_code == 1
    assert name.removeprefix(f"{CLUSTER_ID}/") in verified.stdout


@pytest.mark.parametrize("kind", [KINDS[0], *KINDS[4:6]])
def test_a_bad_batch_is_told_beside_what_is_lost_of_the_ledger(
    accidents: Accidents, kind: str
) -> None:
    objects, batch = damaged_too(accidents, kind)
    lost = accidents.chosen(kind)[0].removeprefix(f"{CLUSTER_ID}/")

    verified = kbatch("verify", a_url(objects))

    assert verified.exit_code == 1
    assert f"{lost} is missing" in verified.stdout or f"{lost}: it is missing" in verified.stdout
    assert batch in verified.stdout
    assert "1 partition with faults" in verified.stdout

    stopped = kbatch("gc", a_url(objects))
    assert isinstance(stopped.exception, CorruptLedgerError)
    assert f"{lost} is missing" in stopped.stderr or f"{lost}: it is missing" in stopped.stderr
    assert f"{batch}: CRC-32C" in stopped.stderr


def test_a_part_and_its_copy_that_are_lost_take_the_records_that_they_told_of(
    accidents: Accidents,
) -> None:
    """And none of another topic, nor what their own topic gets later."""
    objects = lost_part(accidents)
    url = a_url(objects)
    others = {one for one in accidents.all if one[0] != QUIET}

    result = kbatch("repair", url)
    assert result.exit_code == 1
    assert f"extents-{QUIET}: it is missing; it is left as it is" in result.stdout
    assert "streamed-0: ok" in result.stdout
    assert accidents.kept(objects) == others

    result = kbatch("gc", url)
    assert result.exit_code == 1
    assert f"extents-{QUIET}: it is missing" in result.stderr
    assert accidents.kept(objects) == others

    shown = done("recover", url, "--yes")
    assert "can be read, with holes, up to entry" in shown
    assert f"{QUIET}-0: offsets 0 to 14 are lost." in shown
    assert accidents.kept(objects) == others
    with spark_kbatch.open(url) as cluster:
        send(cluster, "new", topic=QUIET)
        with pytest.raises(CorruptRecordError, match="the object is missing"):
            cluster.read(QUIET).read_all()
        assert [*values(cluster, QUIET, start={0: 15, 1: 15})] == ["new"]
        cluster.delete_records({(QUIET, 0): 15, (QUIET, 1): 15})
        assert [*values(cluster, QUIET)] == ["new"]
    assert "checked: none with faults" in done("verify", url)


def lost_part(accidents: Accidents) -> AgingObjects:
    """Return the objects without all that checkpoints have of a topic, and without the copies."""
    objects = accidents.copied()
    lost = [one.name for one in objects.list(f"{CLUSTER_ID}/{names.PARTS}") if QUIET in one.name]
    objects.delete(lost)
    assert any(name.endswith(names.COPY) for name in lost)
    return objects
