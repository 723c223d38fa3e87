"""Disks that are real file systems: each a tmpfs at a folder of its own, taken away, put back, filled, swapped.

The process and its children are in a mount namespace of their own: see `small_disk`. What has a file of a disk
open when that is taken away can go on with it, as with a disk that is unmounted lazily.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.small_disk import fill

_PATIENCE_S = 5


class MountedDisks:
    """Some disks, each mounted at a folder."""

    def __init__(self, folder: Path, count: int, *, size: str) -> None:
        """Mount new disks at FOLDER/disk-0, FOLDER/disk-1, .."""
        self._aside, self._size = folder / "aside", size
        self.places = [folder / f"disk-{number}" for number in range(count)]
        for place in self.places:
            place.mkdir()
            self.mount_new(place)

    def mount_new(self, place: Path) -> None:
        """Mount an empty disk."""
        _run("mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", place)

    def mount_copy(self, image: Path, place: Path) -> None:
        """Mount a new disk with what a folder has; it is all there at once, for who looks meanwhile."""
        made = self._aside / "made"
        made.mkdir(parents=True, exist_ok=True)
        self.mount_new(made)
        shutil.copytree(image, made, symlinks=True, dirs_exist_ok=True)
        _run("mount", "--move", made, place)

    @contextlib.contextmanager
    def away(self, *numbers: int) -> Iterator[list[Path]]:
        """Take disks away, and bring them back; yield where they are meanwhile."""
        taken = [self._aside / str(number) for number in numbers]
        for number, aside in zip(numbers, taken, strict=True):
            aside.mkdir(parents=True, exist_ok=True)
            _run("mount", "--move", self.places[number], aside)
        try:
            yield taken
        finally:
            for number, aside in zip(numbers, taken, strict=True):
                if aside.is_mount():
                    _run("mount", "--move", aside, self.places[number])

    @contextlib.contextmanager
    def swapped(self, numbers: Sequence[int]) -> Iterator[None]:
        """Mount each of these disks at the place of the next one for a while."""
        self._rotate(numbers)
        try:
            yield
        finally:
            self._rotate(numbers[::-1])

    def _rotate(self, numbers: Sequence[int]) -> None:
        with self.away(*numbers) as taken:
            for aside, number in zip(taken, [*numbers[1:], numbers[0]], strict=True):
                _run("mount", "--move", aside, self.places[number])

    @contextlib.contextmanager
    def full(self, number: int) -> Iterator[None]:
        """Leave no room on a disk."""
        filler = fill(self.places[number])
        try:
            yield
        finally:
            filler.unlink()

    @contextlib.contextmanager
    def read_only(self, number: int) -> Iterator[bool]:
        """Make a disk read-only at a moment when no one writes; yield False if there is none for a while."""
        deadline = time.monotonic() + _PATIENCE_S
        is_so = False
        while not is_so and time.monotonic() < deadline:
            is_so = self._remounted(number, "ro")
        try:
            yield is_so
        finally:
            assert self._remounted(number, "rw")

    def _remounted(self, number: int, mode: str) -> bool:
        words = ["mount", "-o", f"remount,{mode}", str(self.places[number])]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0


def discard(place: Path) -> None:
    """Lose what is mounted at a place."""
    _run("umount", "-l", place)


def _run(*words: str | Path) -> None:
    subprocess.run(list(map(str, words)), check=True)
