"""The file by which a task tells that it sees the driver's PATH."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from spark_kbatch.commit.staging import Probe
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Files


def test_probe_that_the_driver_left_is_seen(tmp_path: Path) -> None:
    Probe.leave(Files(), tmp_path / "job").ensure_seen(Files())


@pytest.mark.parametrize("found", ["nothing", "another driver's", "no access"])
def test_probe_that_is_not_seen_says_that_the_folder_is_not_shared(
    tmp_path: Path, found: str
) -> None:
    probe, files = Probe.leave(Files(), tmp_path / "job"), Files()
    path = tmp_path / "job" / Probe.NAME
    if found == "nothing":
        path.unlink()
    elif found == "another driver's":
        Probe.leave(Files(), tmp_path / "job")
    else:
        files = Unreadable()
    with pytest.raises(KafkaStorageError) as error:
        probe.ensure_seen(files)

    assert f"this executor does not see {path}, which the driver made" in str(error.value)


class Unreadable(Files):
    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
