"""Symbolic links that somebody else has put into a shared cluster: nothing at their other end is changed or shown."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import ConfigError, KBatchError
from spark_kbatch.files import Files
from tests.support import builders
from tests.support.store import store_of

LOG = "00000000000000000000"
SECRET = b"# private\n" * 500

# Each changes the topic t, or what is kept of it.
COMMANDS: Mapping[str, str] = {
    "produce": "produce {} t --config delivery.timeout.ms=300 --config linger.ms=0 --config request.timeout.ms=200",
    "alter-topic": "alter-topic {} t --config retention.bytes=1",
    "gc": "gc {} --staging-retention-ms 0",
    "delete-records": "delete-records {} t 0:1 --yes",
    "repair": "repair {}",
    "create-partitions": "create-partitions {} t 2",
    "delete-topic": "delete-topic {} t --yes",
}


def run(command: str, path: Path) -> Result:
    words = command.format(path).split()
    return CliRunner().invoke(cli, words, input="of the group\n")


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return what is in a folder: names, and the bytes of files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "cluster"
    assert run("create-topic {} t", path).exit_code == 0
    assert run("produce {} t", path).exit_code == 0
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "shared", symlinks=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the folder of the one who uses the cluster: nothing in it is the cluster's."""
    home = tmp_path / "home"
    home.mkdir()
    return home


def to_a_private_file(_: Path, target: Path) -> None:
    target.write_bytes(SECRET)


def to_nothing(_: Path, target: Path) -> None:
    """Leave the link dangling: whoever creates a file at its other end would create it elsewhere."""


def to_a_private_folder(_: Path, target: Path) -> None:
    target.mkdir()
    for name in ("t.json", "0.json", "t.lock", "notes", f"{LOG}.log", f"{777:020d}.log"):
        (target / name).write_bytes(SECRET)


def to_a_fifo(_: Path, target: Path) -> None:
    os.mkfifo(target)


def to_what_was_there(place: Path, target: Path) -> None:
    """Have the link lead to sound content: so nothing but the link can be what is refused."""
    if place.exists():
        place.rename(target)
    else:
        target.mkdir()


FILES = (
    f"broker-0/t-0/{LOG}.log", f"broker-0/t-0/{LOG}.index", "broker-0/t-0/kbatch.state",
    "broker-0/t-0/leader-epoch-checkpoint", "broker-0/.lock", "locks/t.lock", "locks/metadata",
    "topics/t.json", "spare",
)  # fmt: skip
FOLDERS = ("broker-0/t-0", "staging-0", "topics", "locks", "deleted", "partitions", "partitions/t")
ENDS = (to_a_private_file, to_nothing, to_a_fifo, to_what_was_there)
CASES = [
    *((place, end) for place in FILES for end in ENDS),
    *((place, end) for place in FOLDERS for end in (to_a_private_folder, to_what_was_there)),
]


@pytest.mark.parametrize(
    ("place", "end"), CASES, ids=[f"{place} {end.__name__[3:]}" for place, end in CASES]
)
def test_no_command_changes_anything_at_the_other_end_of_a_link(
    path: Path, home: Path, place: str, end: Callable[[Path, Path], None]
) -> None:
    link, target = path / place, home / "target"
    link.parent.mkdir(exist_ok=True)
    end(link, target)
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    before = contents(home)
    for name, command in COMMANDS.items():
        done = run(command, path)
        assert contents(home) == before, (name, done.output)
        assert not isinstance(done.exception, AssertionError)
    shown = b"".join(found or b"" for found in contents(path).values())
    copies = [one for one in path.rglob("*.damaged") if not one.is_symlink()]
    assert SECRET not in b"".join(one.read_bytes() for one in copies), shown


@pytest.mark.parametrize(
    "place",
    [f"broker-0/t-0/{LOG}.log", "broker-0/t-0/kbatch.state", "broker-0/t-0", "locks/t.lock"],
)
def test_an_append_says_which_link_is_in_its_way(path: Path, home: Path, place: str) -> None:
    (path / place).rename(home / "target")
    (path / place).symlink_to(home / "target")
    done = run(COMMANDS["produce"], path)
    assert done.exit_code == 1
    said = f"{path / place}: a symbolic link, which is not followed here; put the file or folder itself"
    assert said in str(done.exception)


@pytest.mark.parametrize("place", [f"broker-0/t-0/{LOG}.log", "broker-0/t-0"])
def test_records_of_a_private_cluster_are_not_shown_through_a_link(
    path: Path, made: Path, home: Path, place: str
) -> None:
    private = shutil.copytree(made, home / "private")
    found = path / place
    shutil.rmtree(found) if found.is_dir() else found.unlink()
    found.symlink_to(private / place)
    with spark_kbatch.open(str(path)) as cluster, pytest.raises(KBatchError, match="symbolic link"):
        cluster.read("t").read_all()


def a_linked_log_dir(path: Path, private: Path) -> None:
    shutil.rmtree(path / "broker-0")
    (path / "broker-0").symlink_to(private / "broker-0")


def a_log_dir_by_its_name(path: Path, private: Path) -> None:
    stored = json.loads((path / "cluster.json").read_bytes())
    stored["log_dirs"][0]["path"] = str(private / "broker-0")
    (path / "cluster.json").write_text(json.dumps(stored))


@pytest.mark.parametrize("lead", [a_linked_log_dir, a_log_dir_by_its_name])
def test_the_log_dir_of_another_cluster_is_neither_read_nor_written(
    path: Path, home: Path, lead: Callable[[Path, Path], None]
) -> None:
    private = home / "private"
    run("create-topic {} t", private)
    run("produce {} t", private)
    (private / "broker-0" / ".lock").unlink()
    lead(path, private)
    before = contents(home)
    for command in COMMANDS.values():
        run(command, path)
        assert contents(home) == before, command
    with spark_kbatch.open(str(path)) as cluster, pytest.raises(KBatchError, match="directory id"):
        cluster.read("t").read_all()


@pytest.mark.parametrize("node", [0, 1], ids=["of a new cluster", "that is added"])
def test_no_log_dir_of_another_cluster_is_taken_through_a_link(
    path: Path, made: Path, home: Path, tmp_path: Path, node: int
) -> None:
    private = shutil.copytree(made, home / "private")
    before = contents(home)
    shared = path if node else tmp_path / "new"
    (shared / "locks").mkdir(parents=True, exist_ok=True)
    (shared / f"broker-{node}").symlink_to(private / "broker-0")
    done = run("create-topic {} u --replication-factor 2", shared)
    assert isinstance(done.exception, ConfigError)
    assert contents(home) == before


def test_path_and_its_log_dirs_may_be_links(path: Path, tmp_path: Path) -> None:
    (path / "broker-0").rename(tmp_path / "disk")
    (path / "broker-0").symlink_to(tmp_path / "disk")
    (tmp_path / "link").symlink_to(path)
    for name, command in COMMANDS.items():
        done = run(command, tmp_path / "link")
        assert done.exit_code == 0, (name, done.output, done.exception)


@pytest.mark.parametrize("place", ["", "{job}"])
def test_a_job_stages_nothing_through_a_link(tmp_path: Path, home: Path, place: str) -> None:
    cluster = builders.a_cluster(tmp_path)
    staging = store_of(cluster).metadata.cluster_file.log_dir(0).staging
    link = staging / place.format(job=builders.JOB) if place else staging
    if link.exists():
        link.rmdir()
    link.symlink_to(home)
    batch = builders.batch()
    with pytest.raises(OSError, match="symbolic link"):
        builders.staged(cluster, {("events", 0): [batch]})
    assert list(home.iterdir()) == []


def test_a_staged_file_that_became_a_link_is_not_committed(tmp_path: Path, home: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    batch = builders.batch()
    extents = builders.staged(cluster, {("events", 0): [batch]})
    staging = store_of(cluster).metadata.cluster_file.log_dir(0).staging
    (file,) = (one for one in staging.rglob("*") if one.is_file())
    file.rename(home / "batches")
    file.symlink_to(home / "batches")
    with pytest.raises((OSError, KBatchError), match="symbolic link"):
        builders.commit(cluster, extents)
    assert cluster.read("events").read_all().num_rows == 0


@pytest.mark.parametrize("name", ["mirror-0", "mirror-0/topics"])
def test_copies_of_the_topics_are_not_written_through_a_link(
    tmp_path: Path, home: Path, name: str
) -> None:
    disks = [tmp_path / f"disk-{number}" for number in range(2)]
    path = tmp_path / "cluster"
    with spark_kbatch.open(str(path), create=True, log_dirs=list(map(str, disks))) as cluster:
        cluster.create_topic("t")
    (home / "topics").mkdir()
    for known in (home, home / "topics"):
        for file in ("config.json", "t.json", "u.json"):
            (known / file).write_bytes(SECRET)
    before = contents(home)
    shutil.rmtree(disks[0] / name)
    (disks[0] / name).symlink_to(home)
    with Cluster(str(path)) as cluster:
        cluster.create_topic("u")
        cluster.alter_topic("t", {"retention.ms": 1})
        cluster.delete_topic("t")
    Cluster(str(path)).create_topic("v")
    assert contents(home) == before


def full(files: Files) -> Files:
    def create(path: Path) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    files.create = create  # type: ignore[method-assign]
    return files


@pytest.mark.parametrize("how", ["a link", "a second name"])
def test_on_a_full_disk_no_spare_is_taken_that_is_a_file_elsewhere(
    path: Path, home: Path, how: str
) -> None:
    notes, spare = home / "notes", path / "spare"
    notes.write_bytes(SECRET * 20)
    spare.unlink()
    spare.symlink_to(notes) if how == "a link" else spare.hardlink_to(notes)
    with (
        Cluster(str(path), files=full(Files())) as cluster,
        pytest.raises(KBatchError, match="No space left"),
    ):
        cluster.alter_topic("t", {"retention.ms": 1})
    assert notes.read_bytes() == SECRET * 20


def test_on_a_full_disk_the_spare_of_another_user_is_taken(path: Path) -> None:
    # It belongs to whoever changed a topic before.
    with Cluster(str(path), files=full(Files())) as cluster:
        assert cluster.alter_topic("t", {"retention.ms": 1}).config.retention_ms == 1


def test_what_a_reader_names_is_read_through_links(path: Path, tmp_path: Path) -> None:
    log = f"broker-0/t-0/{LOG}.log"
    copy = tmp_path / "copy" / "t-0"
    copy.mkdir(parents=True)
    (copy / f"{LOG}.log").symlink_to(path / log)
    with spark_kbatch.open(str(copy.parent)) as logs:
        assert logs.read("t").read_all().num_rows == 1
    dumped = run(f"dump {copy}/{LOG}.log", path)
    assert dumped.exit_code == 0
    assert "offset" in dumped.output


def test_an_export_is_written_where_its_user_says(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    done: Any = run(f"export {{}} t {tmp_path}/link.jsonl --overwrite", path)
    assert done.exit_code == 0, (done.output, done.exception)
