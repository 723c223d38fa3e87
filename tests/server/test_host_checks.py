"""A server looks at its machine: the limit of file descriptors, and the file system of its folder."""

from __future__ import annotations

import resource
from pathlib import Path, PurePath

import pytest

from spark_kbatch import Cluster
from spark_kbatch.catalog import folder_clock
from spark_kbatch.server import listener
from tests.support.raw_clients import RawClient

MOUNTS = r"""
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:40 / /mnt rw - tmpfs tmpfs rw
31 30 0:41 /exports /mnt/shared\040disk rw,noatime shared:7 master:1 - nfs4 nas:/exports rw,vers=4.2
32 22 0:42 / /home rw - fuse.sshfs me@far: rw
33 22 0:43 / /home rw - ext4 /dev/sdb rw
34 22 0:44 / /- rw - 9p host rw
a line that breaks off
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        pytest.param("/srv/kbatch", "ext4", id="the root"),
        pytest.param("/mnt", "tmpfs", id="a mount itself"),
        pytest.param("/mnt/shared disk/kbatch", "nfs4", id="a mount in a mount, with a space"),
        pytest.param("/mnt/shared disks", "tmpfs", id="the start of another name"),
        pytest.param("/home/me", "ext4", id="a mount over another"),
        pytest.param("/-/kbatch", "9p", id="a dash as a name"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_nearest_mount(path: str, kind: str) -> None:
    assert folder_clock.file_system_of(PurePath(path), MOUNTS) == kind


def test_without_mounts_no_file_system_is_known() -> None:
    assert folder_clock.file_system_of(PurePath("/srv"), "") == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs", "ext4", "overlay", "tmpfs"])  # fmt: skip
def test_a_server_warns_that_its_folder_is_on_a_network_file_system(
    cluster: Cluster,
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 259:1 / / rw shared:1 - {kind} a-device rw\n")
    monkeypatch.setattr(folder_clock, "_MOUNTS", mounts)
    with cluster.serve():
        pass

    is_network = kind not in ("ext4", "overlay", "tmpfs")
    assert (f"{cluster.path} lies on a network file system ({kind})" in caplog.text) == is_network


def test_a_system_that_does_not_list_mounts_is_served_without_a_warning(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(folder_clock, "_MOUNTS", tmp_path / "nothing")
    with cluster.serve():
        pass

    assert "file system" not in caplog.text


def test_a_server_raises_the_limit_of_file_descriptors_as_far_as_it_needs(
    cluster: Cluster,
) -> None:
    before, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    if highest < 1000:
        pytest.skip(f"this process may open only {highest} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, highest))
    try:
        with cluster.serve(max_connections=600):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (856, highest)
        with cluster.serve(max_connections=10):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (856, highest)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, highest))


class Limits:
    """The limits of a process that may not raise the higher one."""

    def __init__(self, limit: int, highest: int, *, may_set: bool = True) -> None:
        self.now, self._may_set = (limit, highest), may_set

    def get(self, kind: int) -> tuple[int, int]:
        assert kind == resource.RLIMIT_NOFILE
        return self.now

    def set(self, kind: int, wanted: tuple[int, int]) -> None:
        assert kind == resource.RLIMIT_NOFILE
        assert wanted[1] == self.now[1]
        if not self._may_set:
            raise ValueError("current limit exceeds maximum limit")
        self.now = wanted


UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "possible", "after"),
    [
        pytest.param(Limits(5000, 5000), 2000, 5000, id="enough"),
        pytest.param(Limits(1024, 524_288), 2000, 2256, id="may be raised enough"),
        pytest.param(Limits(1024, UNLIMITED), 2000, 2256, id="may be raised at will"),
        pytest.param(Limits(UNLIMITED, UNLIMITED), 2000, UNLIMITED, id="none"),
        pytest.param(Limits(1024, 1500), 1244, 1500, id="may be raised a little"),
        pytest.param(Limits(1024, 1024), 768, 1024, id="may not be raised"),
        pytest.param(Limits(256, UNLIMITED, may_set=False), 128, 256, id="cannot be raised"),
    ],
)
def test_as_many_connections_are_accepted_as_there_are_file_descriptors_for(
    limits: Limits,
    possible: int,
    after: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)

    assert listener._connections_possible(2000) == possible
    assert limits.now[0] == after
    said = f"at most {possible} connections can be open, not the 2000 of max.connections"
    assert (said in caplog.text) == (possible < 2000)


def test_connections_for_which_there_are_no_descriptors_are_closed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(4, 4)
    with monkeypatch.context() as patched:
        patched.setattr(resource, "getrlimit", limits.get)
        patched.setattr(resource, "setrlimit", limits.set)
        server = cluster.serve()
    with server, RawClient(server), RawClient(server), RawClient(server) as third:
        assert third.is_closed_by_server()
