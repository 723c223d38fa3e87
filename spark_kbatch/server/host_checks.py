"""Checks of a server's machine: its limit of open files, and whether a cluster is on a network file system.

Appends and commits open files. If connections took all descriptors, these would fail, so some are left
for them.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path, PurePath

from spark_kbatch.files import raise_descriptors_limit

logger = logging.getLogger(__name__)

_MOUNTS = Path("/proc/self/mountinfo")  # on Linux
_NETWORK_FILE_SYSTEMS = {
    "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "orangefs", "prl_fs", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs",
    "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    "fuse.vmhgfs-fuse",
}  # fmt: skip
_TYPE_AFTER = "-"  # the fields of a mount
_ESCAPED = re.compile(r"\\([0-7]{3})")

_FOR_FILES = 256  # descriptors


def warn_of_network(path: Path) -> None:
    """Log a warning if a cluster lies on a file system that other machines may use, too."""
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return
    found = file_system_of(path.resolve(), mounts)
    if found in _NETWORK_FILE_SYSTEMS:
        logger.warning(
            "%s lies on a network file system (%s): run this server and all jobs that write there on one "
            "machine, unless you have tried that locks on it hold between machines",
            path,
            found,
        )


def file_system_of(path: PurePath, mounts: str) -> str:
    """Return the type of the file system that holds a path; empty if that is unknown.

    Args:
        path: absolute, without links.
        mounts: the text of `/proc/self/mountinfo`; of two mounts at one path the later one counts.
    """
    kind, longest = "", 0
    for line in mounts.splitlines():
        fields = line.split(" ")
        if _TYPE_AFTER not in fields[6:-1]:
            continue
        point = PurePath(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        if path.is_relative_to(point) and len(point.parts) >= longest:
            longest = len(point.parts)
            kind = fields[fields.index(_TYPE_AFTER, 6) + 1]
    return kind


def connections_possible(wanted: int) -> int:
    """Return how many of the `wanted` client connections the limit of open files allows.

    Raises the process's limit where it may; logs a warning if that is not enough.
    """
    needed = wanted + _FOR_FILES
    limit = raise_descriptors_limit(needed)
    if limit >= needed:
        return wanted
    possible = min(wanted, max(limit - _FOR_FILES, limit // 2))
    logger.warning(
        "at most %d connections can be open, not the %d of max.connections: this process may open %d "
        "files, and would need %d. Raise its limit, by `ulimit -n %d` or LimitNOFILE of a systemd "
        "service, or lower max.connections",
        possible,
        wanted,
        limit,
        needed,
        needed,
    )
    return possible
