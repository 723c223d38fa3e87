"""A process goes on from what its machine knows of a ledger, and never believes what is not so."""

from __future__ import annotations

import json
import os
import random
import stat
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch.bucket import job as bucket_job
from spark_kbatch.bucket import ledger as bucket_ledger
from spark_kbatch.bucket import shared_ledger
from spark_kbatch.bucket.ledger import CHECKPOINT_EVERY, KNOWN_MAX, QUIET_MS
from spark_kbatch.bucket.shared_ledger import LedgerCache, store_of
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.bucket.urls import ledger_at, place_in_memory
from spark_kbatch.errors import ClusterReplacedError
from spark_kbatch.ledger.checkpoint_format import pack_heads
from spark_kbatch.ledger.entries import Fence
from spark_kbatch.ledger.state import LedgerState
from spark_kbatch.machine_files import digest_of
from spark_kbatch.options.object_store import parse_store_options
from tests.bucket.test_requests import COLD_OPEN_MAX
from tests.support.bucket_jobs import begun, commit_batch, commit_micro_batch, staged
from tests.support.bucket_ledgers import SetTime
from tests.support.bucket_objects import AllCounted, a_bucket, values
from tests.support.object_servers import KEY, SECRET, moto
from tests.support.store_proxy import StoreProxy

WARM = {"get cluster": 1, "get ledger": 1}


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> SetTime:
    """The clock of all processes."""
    time = SetTime()
    for module, name in (
        (bucket_job, "now_ms"),
        (shared_ledger, "now_ms"),
        (shared_ledger, "monotonic_ms"),
        (bucket_ledger, "now_ms"),
        (bucket_ledger, "monotonic_ms"),
    ):
        monkeypatch.setattr(module, name, lambda: int(time.now_ms))
    return time


@pytest.fixture
def objects() -> AllCounted:
    return AllCounted()


@pytest.fixture
def cache(tmp_path: Path) -> LedgerCache:
    return LedgerCache("a store", folder=tmp_path)


@pytest.fixture
def url(objects: AllCounted, cache: LedgerCache) -> str:
    """A cluster with a topic, at a place that this machine remembers."""
    url = a_bucket(objects, "events")._store.address
    place_in_memory(url, objects, cache)
    return url


def cold(url: str, objects: AllCounted) -> str:
    """Return another URL of the same objects, of which nothing is remembered."""
    other = f"{url}-cold"
    place_in_memory(other, objects)
    return other


def file_of(folder: Path) -> Path:
    (found,) = folder.glob("*/*.json")
    return found


# Requests.


def test_with_what_the_machine_knows_a_process_that_begins_a_job_asks_two_things(
    objects: AllCounted, url: str
) -> None:
    commit_micro_batch(url, 0, ["a"])
    objects.taken()

    begun(url, is_micro_batch=True)

    assert objects.taken() == WARM


@pytest.mark.parametrize("tasks", [1, 8])
def test_the_commit_of_a_micro_batch_costs_two_gets_and_one_create(
    objects: AllCounted, url: str, tasks: int
) -> None:
    """Its process has a job object of its own, as Spark makes it; so has the process before it."""
    commit_micro_batch(url, 0, ["a"])
    job = begun(url, is_micro_batch=True)
    messages = staged(job, *([f"{task}"] for task in range(tasks)), query_id="q")
    objects.taken()

    begun(url, is_micro_batch=True).commit_micro_batch(messages, 1)

    asked = objects.taken()
    assert asked.pop("put data", 0) <= 1  # an index
    assert asked == {**WARM, "create ledger": 1}


def test_the_commit_of_a_batch_job_costs_two_gets_and_one_create(
    objects: AllCounted, url: str, time: SetTime
) -> None:
    commit_batch(url, [["a"]])
    job = begun(url)
    messages = staged(job, ["b"])
    objects.taken()
    time.now_ms += QUIET_MS // 2  # its tasks take long

    job.commit_batch(messages)

    assert objects.taken() == {**WARM, "create ledger": 1}


def test_after_a_minute_the_store_has_to_show_the_last_known_entry(
    objects: AllCounted, url: str, time: SetTime
) -> None:
    commit_batch(url, [["a"]])
    objects.taken()
    time.now_ms += QUIET_MS

    begun(url)

    assert objects.taken() == {"get cluster": 1, "get ledger": 2, "get hint": 1}


def test_a_stream_of_many_micro_batches_reads_no_checkpoint(objects: AllCounted, url: str) -> None:
    commit_micro_batch(url, 0, ["a"])
    objects.taken()
    count = 3 * CHECKPOINT_EVERY

    for number in range(1, count + 1):
        commit_micro_batch(url, number, [f"{number}"])

    asked = objects.taken()
    assert asked["create ledger"] == asked["put data"] == count
    # Two processes a micro-batch; and a checkpoint looks at the one before it, and its entry.
    checkpoints = asked["create checkpoints"]
    assert asked["get cluster"] == 2 * count
    assert asked["get ledger"] <= 2 * count + checkpoints
    assert asked.get("get hint", 0) == 0


def test_a_process_that_was_left_far_behind_opens_the_newest_checkpoint(
    objects: AllCounted, url: str
) -> None:
    commit_batch(url, [["a"]])
    other = cold(url, objects)
    for number in range(4 * CHECKPOINT_EVERY):
        commit_batch(other, [[f"{number}"]])
    objects.taken()

    BucketStore(url).follow()

    assert sum(objects.taken().values()) <= COLD_OPEN_MAX + 2 * CHECKPOINT_EVERY


# What it knows is so.


def test_the_known_state_is_that_of_a_cold_open_after_each_commit(
    objects: AllCounted, url: str
) -> None:
    rng, other = random.Random(1), cold(url, objects)
    for number in range(5 * CHECKPOINT_EVERY):
        where = rng.choice((url, url, other))
        match rng.randrange(12):
            case 0:
                with spark_kbatch.open(where) as cluster:
                    cluster.create_topic(f"topic-{number}", 2)
            case 1:
                with spark_kbatch.open(where) as cluster, cluster.producer() as producer:
                    producer.send("events", f"{number}").result()
            case 2:
                commit_batch(where, [[f"{number}"]], overwrite=True)
            case _:
                commit_batch(where, [[f"{number}"]] * rng.randint(1, 3))

        warm = BucketStore(url)
        with warm.ledger.state() as state:
            known, at = pack_heads(state), (state.number, state.entry_id)
        there = ledger_at(other).state
        assert (known, at) == (pack_heads(there), (there.number, there.entry_id))
    with spark_kbatch.open(url) as one, spark_kbatch.open(other) as two:
        assert [*values(one)] == [*values(two)]


def test_too_many_entries_without_a_checkpoint_are_not_remembered(
    objects: AllCounted, url: str, cache: LedgerCache
) -> None:
    with BucketStore(url).ledger.state() as state:
        cluster_id, number = state.cluster_id, state.number
    ledger = ledger_at(url)
    ledger._checkpoint_every = 10**9
    while ledger.state.number < number + 2 * KNOWN_MAX:
        ledger.commit(next_fence)
    assert ledger.known(0) is None
    BucketStore(url).follow()
    known = cache.get(cluster_id)
    assert known is None or len(known.entries) <= KNOWN_MAX


def next_fence(state: LedgerState) -> Fence:
    return Fence("f", state.fences.get("f", 0) + 1)


# Damage.


@pytest.fixture
def written(objects: AllCounted, url: str) -> tuple[str, list[str]]:
    """The URL and its values, after so many commits that there is a checkpoint and something after it."""
    sent = [f"{number}" for number in range(CHECKPOINT_EVERY + 3)]
    for value in sent:
        commit_batch(url, [[value]])
    return url, sent


def read_and_written_again(url: str, sent: list[str]) -> None:
    """Check that a process sees all, and that what it writes comes after that."""
    with spark_kbatch.open(url) as cluster:
        assert [*values(cluster)] == sent
    commit_batch(url, [["more"]])
    with spark_kbatch.open(f"{url}-cold") as cluster:
        assert [*values(cluster)] == [*sent, "more"]


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_file_is_not_used(
    objects: AllCounted, written: tuple[str, list[str]], tmp_path: Path, seed: int
) -> None:
    (url, sent), rng = written, random.Random(seed)
    cold(url, objects)
    path = file_of(tmp_path)
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    match seed % 3:
        case 0:
            del data[at:]
        case 1:
            data[at] ^= 1 << rng.randrange(8)
        case 2:
            data = bytearray(rng.randbytes(at))
    path.write_bytes(data)

    read_and_written_again(url, sent)


DAMAGES = {
    "an entry is left out": lambda fields: fields[6].pop(0),
    "entries are swapped": lambda fields: fields[6].reverse(),
    "an entry is damaged": lambda fields: fields[6].__setitem__(0, fields[6][0].replace("a", "b")),
    "an entry is text": lambda fields: fields[6].__setitem__(0, "\u20ac"),
    "an entry is a number": lambda fields: fields[6].__setitem__(0, 1),
    "the last entries are missing": lambda fields: fields[6].clear(),
    "the checkpoint is missing": lambda fields: fields.__setitem__(5, None),
    "the checkpoint has another number": lambda fields: fields[5].__setitem__(0, 3),
    "the heads are damaged": lambda fields: fields[5].__setitem__(
        3, fields[5][3].replace("0", "1")
    ),
    "the root is missing": lambda fields: fields[5].pop(),
    "it is of a later format": lambda fields: fields.__setitem__(0, 2),
    "it is from the future": lambda fields: fields.__setitem__(slice(3, 5), [1 << 60, 1 << 60]),
    "its times are text": lambda fields: fields.__setitem__(3, "now"),
    "nothing is there": lambda fields: fields.clear(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_says_what_is_not_so_is_not_believed(
    objects: AllCounted, written: tuple[str, list[str]], tmp_path: Path, damage: str
) -> None:
    url, sent = written
    cold(url, objects)
    path = file_of(tmp_path)
    fields = json.loads(path.read_bytes().partition(b"\n")[2])
    DAMAGES[damage](fields)
    data = json.dumps(fields).encode()
    path.write_bytes(digest_of(data).encode() + b"\n" + data)

    read_and_written_again(url, sent)


def test_a_machine_that_can_remember_nothing_works(
    objects: AllCounted, url: str, tmp_path: Path
) -> None:
    (tmp_path / "no folder").touch()
    place_in_memory(url, objects, LedgerCache("a store", folder=tmp_path / "no folder"))
    commit_batch(url, [["a"]])
    commit_batch(url, [["b"]])
    with spark_kbatch.open(url) as cluster:
        assert [*values(cluster)] == ["a", "b"]


# Other clusters.


def test_a_new_cluster_at_the_place_is_not_taken_for_the_old_one(
    objects: AllCounted, url: str, cache: LedgerCache, time: SetTime
) -> None:
    commit_batch(url, [["old"]])
    job = begun(url)
    messages = staged(job, ["old, too"])

    there = AllCounted()
    a_bucket(there, "events")
    place_in_memory(url, there, cache)

    with spark_kbatch.open(url) as cluster:
        assert [*values(cluster)] == []
    commit_batch(url, [["new"]])
    time.now_ms += 2000
    with pytest.raises(ClusterReplacedError):
        job.commit_batch(messages)
    with spark_kbatch.open(url) as cluster:
        assert [*values(cluster)] == ["new"]


def test_a_place_that_is_empty_again_has_no_cluster(
    objects: AllCounted, url: str, cache: LedgerCache
) -> None:
    commit_batch(url, [["old"]])
    place_in_memory(url, AllCounted(), cache)
    with spark_kbatch.open(url, create=True) as cluster:
        assert cluster.topics() == []


def test_a_bucket_that_was_put_back_to_what_it_was_before_is_believed_and_not_the_file(
    objects: AllCounted, written: tuple[str, list[str]], cache: LedgerCache, time: SetTime
) -> None:
    url, sent = written
    before = AllCounted()
    for one in [*objects.list("")]:
        data = objects.get(one.name)
        assert data is not None
        before.put(one.name, data)
    for value in ("lost", "lost, too"):
        commit_batch(url, [[value]])
    place_in_memory(url, before, cache)
    time.now_ms += QUIET_MS
    cold(url, before)

    read_and_written_again(url, sent)


def test_what_leads_to_another_store_is_remembered_apart(tmp_path: Path) -> None:
    def store(
        url: str = "s3://b/p", variables: dict[str, str] | None = None, **options: str
    ) -> str:
        given = {f"store.{key.replace('_', '.')}": value for key, value in options.items()}
        return store_of(url, parse_store_options(given, url), variables or {})

    stores = [
        store(), store("s3://b/q"), store(endpoint="http://a"), store(endpoint="http://b"),
        store(variables={"AWS_ENDPOINT": "http://a"}), store(variables={"AWS_ENDPOINT_URL": "http://a"}),
        store(variables={"AWS_PROFILE": "other"}),
        store("az://b/p", account_name="a"), store("az://b/p", account_name="b"),
    ]  # fmt: skip
    assert len({*stores}) == len(stores)
    assert store(variables={"HOME": "/a"}) == store(variables={"HOME": "/b"})
    with_password = {"AWS_ENDPOINT_URL": f"http://user:{SECRET}@host"}
    assert SECRET not in store(variables=with_password) != store()
    secrets = {
        "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ACCESS_KEY_ID": KEY, "AWS_SESSION_TOKEN": SECRET,
        "AZURE_STORAGE_SAS_TOKEN": SECRET, "AZURE_STORAGE_CONNECTION_STRING": SECRET,
    }  # fmt: skip
    shown = store(variables=secrets, access_key_id=KEY, secret_access_key=SECRET)
    assert KEY not in shown
    assert SECRET not in shown


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what this machine remembers, alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_files_of_a_real_store_are_the_users_own_and_have_no_secrets(machine: Path) -> None:
    (machine / "moto").mkdir()
    with moto(machine / "moto") as server, StoreProxy(server.address) as proxy:
        options = server.options(proxy.address)
        with spark_kbatch.open(server.url, create=True, store=options) as cluster:
            cluster.create_topic("events")
            with cluster.producer() as producer:
                producer.send("events", "a").result()
        with spark_kbatch.open(server.url, store=options) as cluster:
            assert [*values(cluster)] == ["a"]

    folder = machine / f"spark_kbatch-ledgers-{os.getuid()}"
    path = file_of(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE(one.stat().st_mode) for one in (folder, path.parent)} == {0o700}
    data = path.read_bytes()
    assert proxy.address.encode() in data
    assert KEY.encode() not in data
    assert SECRET.encode() not in data
