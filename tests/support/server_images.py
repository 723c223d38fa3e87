"""The image of examples/server, built, and the folder of its file system, in which processes are started.

The base image is on no registry of packages, so Debian with its own Python stands in for it: `debootstrap` fetches
it once, into the folder `build`. All of this needs root, and Debian's packages buildah and debootstrap.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import server_files
from tests.support.distributions import build_wheel
from tests.support.kafka import MissingToolError
from tests.support.object_servers import FETCHED
from tests.support.waiting import until

_BASE = FETCHED / "python-3.13"
_PACKAGES = "python3-venv,python3-pip,ca-certificates,systemd"
_CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")  # that pip trusts on this machine

# In name spaces of its own: all but the volume and what the kernel provides is read-only.
_READ_ONLY = """
mount --make-rprivate /
mount --bind "$1" "$1"
mount --bind "$1$2" "$1$2"
mount -o remount,bind,ro "$1"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
exec chroot --userspec "$3" "$1" "${@:4}"
"""


class Image(NamedTuple):
    """An image that is unpacked."""

    root: Path
    config: dict[str, Any]

    def within(self) -> list[str | Path]:
        """Return the command that runs another one as a container of the image would, on this network."""
        (volume,) = self.config["Volumes"]
        return ["unshare", "--mount", "bash", "-ec", _READ_ONLY, "bash", self.root, volume, self.config["User"]]  # fmt: skip


@contextlib.contextmanager
def built(folder: Path) -> Iterator[Image]:
    """Build the image from the working tree; its files are removed at the end.

    Raises:
        MissingToolError: a program is missing, or the user is not root.
    """
    if os.getuid() != 0:
        raise MissingToolError("an image is built by root")
    stored = folder / "containers"

    def buildah(*words: str | Path) -> str:
        roots = ["--root", stored / "root", "--runroot", stored / "run", "--storage-driver", "vfs"]
        return _run("buildah", *roots, *words)

    try:
        base = buildah("from", "scratch").strip()
        buildah("copy", "--quiet", base, _python(), "/")
        name = server_files.instruction("FROM")
        buildah("commit", "--quiet", "--rm", base, name)
        wheel = build_wheel(folder / "dist")
        buildah(
            "bud", "--isolation", "chroot", "--network", "host", "--pull-never", "--format", "docker",
            "--tag", "kbatch", "--file", server_files.IMAGE, wheel.parent,
        )  # fmt: skip
        container = buildah("from", "--pull-never", "kbatch").strip()
        found = json.loads(buildah("inspect", "--type", "image", "kbatch"))
        yield Image(Path(buildah("mount", container).strip()), found["Docker"]["config"])
    finally:
        shutil.rmtree(stored, ignore_errors=True)


def _python() -> Path:
    """Return the root of a Debian whose `python` and `pip` are in /usr/local, as in Python's own image."""
    if not _BASE.exists():
        made = _BASE.with_suffix(".part")
        shutil.rmtree(made, ignore_errors=True)
        made.parent.mkdir(parents=True, exist_ok=True)
        _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "trixie", made)
        shutil.copy(Path("/") / _CERTIFICATES, made / _CERTIFICATES)
        _run("chroot", made, "python3", "-m", "venv", "/usr/local")
        made.rename(_BASE)
    return _BASE


def _run(program: str, *words: str | Path) -> str:
    if shutil.which(program) is None:
        raise MissingToolError(f"{program} is not on PATH: apt-get install buildah debootstrap")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingToolError(f"{program} {words} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


class Booted:
    """A machine's systemd as the first process of name spaces of its own, in the root of an image."""

    # Nothing of this machine can be changed from there: its devices, settings and name stay its own.
    _BOOT = """
    mount --make-rprivate /
    mount --bind "$1" "$1"
    cd "$1"
    mount -t proc proc proc
    mount --bind proc/sys proc/sys
    mount -o remount,bind,ro proc/sys
    mount -t sysfs -o ro sys sys
    mount -t cgroup2 none sys/fs/cgroup
    for folder in dev run tmp; do mount -t tmpfs tmpfs $folder; done
    for device in null zero full random urandom tty; do
        touch dev/$device
        mount --bind /dev/$device dev/$device
    done
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    ip link set lo up
    mkdir -p old
    pivot_root . old
    umount -l /old
    mount --make-rshared /  # by which a unit gets its credentials
    exec env -i container=test PATH=/usr/bin:/usr/sbin /lib/systemd/systemd --unit="$2"
    """

    def __init__(self, root: Path, unit: str, log: Path) -> None:
        """Boot, into one unit and what that needs."""
        apart = "unshare --pid --fork --kill-child --mount --net --uts --ipc --cgroup".split()
        with log.open("w") as out:
            self._unshare = subprocess.Popen(
                [*apart, "bash", "-ec", self._BOOT, "bash", root, unit], stdout=out, stderr=out,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._first = ""  # the id of its first process
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")

        def has_first() -> bool:
            self._first = children.read_text().strip()
            return bool(self._first)

        until(has_first, "its first process is there")

    def run(
        self, *words: str | Path, spaces: Sequence[str] = ("--all",)
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in its name spaces, by default in all of them."""
        command = ["nsenter", "--target", self._first, *spaces, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def close(self) -> None:
        """End all of its processes."""
        self._unshare.kill()
        self._unshare.wait()
