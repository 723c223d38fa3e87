"""The time of day for a cluster's folder: this machine's, or its file server's where they differ.

Several machines may use a folder on a network disk, which gives its files times of its own. What is
written and what expires there goes by the server's clock if this machine's is over a minute off:
else one machine whose clock is ahead deletes what the others have just written. So a file is made
now and then, for its time. A disk of this machine has this machine's clock.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from pathlib import Path, PurePath

from spark_kbatch.clock import monotonic_ms, now_ms
from spark_kbatch.files import Files

logger = logging.getLogger(__name__)

ASKED_EVERY_MS = 600_000
_MOUNTS = Path("/proc/self/mountinfo")  # on Linux
_NETWORK_FILE_SYSTEMS = {
    "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "orangefs", "prl_fs", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs",
    "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    "fuse.vmhgfs-fuse",
}  # fmt: skip
_BEFORE_TYPE = " - "  # after the fields of a mount
_ESCAPED = re.compile(r"\\([0-7]{3})")


class FolderClock:
    """The clock of one cluster's folder. Thread-safe."""

    def __init__(self, files: Files, folder: Path) -> None:
        """Take a folder in which files can be made, which is asked at the first call."""
        self._files, self._folder = files, folder
        # Two threads may ask at once, for the same.
        self._asked_ms, self._ahead_ms = -ASKED_EVERY_MS, 0

    def now_ms(self) -> int:
        """Return the time of day, in ms since 1970."""
        elapsed_ms = monotonic_ms()
        if elapsed_ms - self._asked_ms >= ASKED_EVERY_MS:
            self._asked_ms = elapsed_ms
            self._ahead_ms = self._measured() if network_file_system(self._folder) else 0
        return now_ms() - self._ahead_ms

    def _measured(self) -> int:
        """Return by how much this machine's clock is ahead of the disk's; 0 for about the same."""
        probe = self._folder / f"clock-{os.urandom(8).hex()}"
        with suppress(OSError):  # a read-only process goes by its own
            self._files.write(probe, 0, b"")
            ahead_ms = now_ms() - self._files.modified_ms(probe)
            self._files.remove(probe)
            if abs(ahead_ms) > 60_000:
                logger.warning(
                    "this machine's clock is %d s ahead of the disk's of %s, which is believed",
                    ahead_ms // 1000,
                    self._folder.parent,
                )
                return ahead_ms
        return 0


def network_file_system(path: Path) -> str:
    """Return the type of a path's file system if other machines may use it; else an empty text."""
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return ""
    # Most machines have none at all, and to see that takes a tenth of the time.
    kinds = {line.partition(_BEFORE_TYPE)[2].partition(" ")[0] for line in mounts.splitlines()}
    if kinds.isdisjoint(_NETWORK_FILE_SYSTEMS):
        return ""
    found = file_system_of(path.resolve(), mounts)
    return found if found in _NETWORK_FILE_SYSTEMS else ""


def file_system_of(path: PurePath, mounts: str) -> str:
    """Return the type of the file system that holds a path; empty if that is unknown.

    Args:
        path: absolute, without links.
        mounts: the text of `/proc/self/mountinfo`; of two mounts at one path the later one counts.
    """
    kind, longest = "", 0
    for line in mounts.splitlines():
        mount, _, rest = line.partition(_BEFORE_TYPE)
        if not rest:
            continue
        point = PurePath(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), mount.split(" ")[4]))
        if path.is_relative_to(point) and len(point.parts) >= longest:
            longest = len(point.parts)
            kind = rest.partition(" ")[0]
    return kind
