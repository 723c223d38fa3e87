"""What every implementation of `Objects` gives, in memory, on disk and below a folder's name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kbatch.bucket import real_objects
from spark_kbatch.bucket.objects import CreateAnswer, Folder, MemoryObjects, Objects
from spark_kbatch.bucket.real_objects import RealObjects
from spark_kbatch.errors import INSTALL_EXTRA, BucketForkedError, ConfigError, ObjectStoreError
from tests.conftest import REPOSITORY
from tests.support.dripping import PARTS, Dripping
from tests.support.faults import run_child

Make = Callable[[Path], Objects]

KINDS: dict[str, Make] = {
    "memory": lambda _: MemoryObjects(),
    "folder": lambda _: Folder(MemoryObjects(), "prefix/"),
    "library": lambda _: RealObjects("memory:///"),
    "disk": lambda path: RealObjects(path.as_uri()),
}


@pytest.fixture(params=KINDS)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return KINDS[request.param](tmp_path)


def test_an_object_is_there_once_it_was_put(objects: Objects) -> None:
    assert objects.get("ledger/1") is None
    assert objects.get_range("ledger/1", 0, 1) is None

    objects.put("ledger/1", b"first")
    objects.put("ledger/1", b"second")

    assert objects.get("ledger/1") == b"second"
    assert objects.get_range("ledger/1", 1, 3) == b"eco"


def test_a_copy_takes_the_place_of_what_was_there(objects: Objects) -> None:
    assert not objects.copy("a/1", "b/2")
    assert objects.get("b/2") is None

    objects.put("a/1", b"first")
    objects.put("b/2", b"other")

    assert objects.copy("a/1", "b/2")
    assert (objects.get("a/1"), objects.get("b/2")) == (b"first", b"first")


def test_several_objects_are_returned_in_the_order_asked_for(objects: Objects) -> None:
    objects.put("a/1", b"one")
    objects.put("a/3", b"three")

    assert objects.get_many(["a/3", "a/2", "a/1"]) == [b"three", None, b"one"]
    assert objects.get_many([]) == []


def test_of_two_creates_one_succeeds(objects: Objects) -> None:
    assert objects.create("ledger/1", b"mine") is CreateAnswer.CREATED
    assert objects.create("ledger/1", b"theirs") is CreateAnswer.EXISTS
    assert objects.get("ledger/1") == b"mine"


def test_a_list_shows_a_folder_in_the_order_of_names(objects: Objects) -> None:
    for name in ("ledger/2", "ledger/10", "ledger/1", "ledgers/1", "hint"):
        objects.put(name, b"12345"[: len(name) - 5])

    found = [*objects.list("ledger/")]

    assert [one.name for one in found] == ["ledger/1", "ledger/10", "ledger/2"]
    assert [one.size_in_bytes for one in found] == [3, 4, 3]
    assert all(one.modified_ms > 1_700_000_000_000 for one in found)
    assert [one.name for one in objects.list("ledger/", "ledger/10")] == ["ledger/2"]
    assert [*objects.list("nothing/")] == []


def test_deleted_objects_are_gone_and_deleting_them_again_is_no_error(objects: Objects) -> None:
    for name in ("a/1", "a/2", "a/3"):
        objects.put(name, b"x")

    objects.delete(["a/0", "a/1", "a/2"])
    objects.delete(["a/1"])
    objects.delete([])

    assert [one.name for one in objects.list("a/")] == ["a/3"]


def test_an_upload_is_seen_once_it_is_finished(objects: Objects) -> None:
    upload = objects.upload("data/1")
    buffer = bytearray(b"one")
    upload.write(buffer)
    buffer[:] = b"..."
    upload.write(b" two")
    assert objects.get("data/1") is None

    upload.finish()

    assert objects.get("data/1") == b"one two"


def test_an_abandoned_upload_is_not_seen(objects: Objects) -> None:
    upload = objects.upload("data/1")
    upload.write(b"one")
    upload.abandon()

    assert objects.get("data/1") is None


def test_an_answer_that_is_too_short_is_an_error_to_retry(tmp_path: Path) -> None:
    objects = RealObjects(tmp_path.as_uri())
    objects.put("data", b"12345")

    with pytest.raises(ObjectStoreError, match="2 bytes came of 10") as raised:
        objects.get_range("data", 3, 10)

    assert raised.value.is_transient


def test_a_create_that_fails_is_unknown(tmp_path: Path) -> None:
    objects = RealObjects(tmp_path.as_uri())
    objects.put("file", b"")

    # No object can lie below a file.
    assert objects.create("file/entry", b"") is CreateAnswer.UNKNOWN


def test_an_endpoint_where_nothing_listens_gives_no_answer() -> None:
    config = {
        "aws_endpoint": "http://127.0.0.1:1", "aws_region": "any",
        "aws_access_key_id": "someone", "aws_secret_access_key": "a-secret",
    }  # fmt: skip

    objects = RealObjects("s3://bucket/prefix", config, {"allow_http": True})

    assert objects.create("ledger/1", b"") is CreateAnswer.UNKNOWN
    assert "a-secret" not in repr(vars(objects))


def test_a_setting_that_the_library_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="s3://bucket"):
        RealObjects("s3://bucket", {"no_such_setting": "1"})


def test_a_url_of_no_store_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="nowhere:///"):
        RealObjects("nowhere:///x")


def test_a_fork_of_a_process_that_used_the_library_is_told_so(tmp_path: Path) -> None:
    objects = RealObjects(tmp_path.as_uri())
    objects.put("one", b"")
    raised = []

    def use_it() -> None:
        for use in (lambda: objects.get("one"), lambda: RealObjects("memory:///")):
            try:
                use()
            except BucketForkedError as error:
                raised.append(error)
        os._exit(0 if len(raised) == 2 and str(raised[0].child_id) in str(raised[0]) else 1)

    _, status = os.waitpid(run_child(use_it), 0)

    assert status == 0


def test_a_fork_of_a_process_that_did_not_use_the_library_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_objects, "_process_id", None)

    _, status = os.waitpid(run_child(lambda: real_objects._remember_use()), 0)

    assert status == 0


def test_objects_do_not_go_to_another_process(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="open the URL there"):
        RealObjects(tmp_path.as_uri()).__reduce__()


WITHOUT_LIBRARY = """
import sys
sys.modules["obstore"] = None
import spark_kbatch
from spark_kbatch.bucket.real_objects import RealObjects
RealObjects("s3://bucket")
"""


def test_without_the_library_the_error_names_the_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARY],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip

    last_line = done.stderr.splitlines()[-1]
    assert last_line.endswith(INSTALL_EXTRA.format("bucket"))


def in_drops(server: Dripping) -> RealObjects:
    """Objects in a store that answers so, whose library gives up a request after half a second."""
    keys = {"access_key_id": "a", "secret_access_key": "b"}
    settings = {"endpoint": server.url, "region": "us-east-1", **keys}
    return RealObjects("s3://bucket/", settings, {"allow_http": True, "timeout": "500ms"})


@pytest.mark.parametrize(
    "part", [one for one in PARTS if one not in ("body", "chunks", "trailers")]
)
def test_an_answer_of_a_store_that_begins_in_drops_is_not_waited_for(part: str) -> None:
    with Dripping(part) as server:
        objects = in_drops(server)
        started_s = time.monotonic()
        answer = objects.create("a", b"")
        assert time.monotonic() - started_s < 3
    if not part.startswith("body"):  # which no one needs
        assert answer is CreateAnswer.UNKNOWN
    assert server.asked == 1


@pytest.mark.slow
@pytest.mark.parametrize("part", ["body", "chunks", "trailers"])
def test_an_answer_of_a_store_that_ends_in_drops_is_not_waited_for(part: str) -> None:
    with Dripping(part) as server:
        objects = in_drops(server)
        started_s = time.monotonic()
        with pytest.raises(ObjectStoreError):
            objects.get("a")
        assert time.monotonic() - started_s < 60
