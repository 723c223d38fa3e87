"""Steps of the wall clock: nothing expires by one that has just been made, in any process here.

The wall clock minus the one that counts from the machine's start is constant, unless someone sets
the clock. So that number is kept in a file of the machine (`machine_files`), beside the boot that
it is of, and a process that begins, such as a `kbatch gc` of cron, compares its own with it. After
another start there is nothing to compare.

The file is read once in a process, where something may expire, and written when the number has
changed. A test that freezes time sees a step too, but what is kept is the system's own time.
"""

from __future__ import annotations

import logging

from spark_kbatch.clock import latest_ms, now_ms, since_boot_ms
from spark_kbatch.log.state import boot_id
from spark_kbatch.machine_files import MachineFiles

logger = logging.getLogger(__name__)

_BACK_MS, _FORWARD_MS, _HELD_MS = 60_000, 3_600_000, 600_000  # of steps


class _Steps:
    """The steps that this process has seen; a race of two threads only holds more back."""

    def __init__(self) -> None:
        self._files: MachineFiles | None = None  # until something may expire
        self._ahead_ms = self._kept_ms = self._held_ms = self._until_ms = 0

    def expiring_ms(self, time_ms: int) -> int:
        """Return the time by which things may expire, given the time of day.

        A step forward of over an hour does not count for ten minutes, and is logged, as is a step
        back: nothing expires by it, and there is time to set the clock right.
        """
        elapsed_ms = since_boot_ms()
        ahead_ms, systems_ms = now_ms() - elapsed_ms, latest_ms() - elapsed_ms
        if (files := self._files) is None:
            files, self._ahead_ms = MachineFiles("spark_kbatch-clock", ""), ahead_ms
            match files.get(""):
                case [str(boot), int(kept), int(held), int(until)] if boot == boot_id().hex():
                    self._ahead_ms = self._kept_ms = kept
                    self._held_ms, self._until_ms = held, until
            self._files = files
        step_ms, self._ahead_ms = ahead_ms - self._ahead_ms, ahead_ms
        if not -_BACK_MS < step_ms < _FORWARD_MS:
            logger.warning(
                "the clock was set by %d s: for now nothing expires by it", step_ms // 1000
            )
            self._held_ms = max(self._held_ms + step_ms, 0)
            self._until_ms = elapsed_ms + _HELD_MS
        if abs(systems_ms - self._kept_ms) > _BACK_MS // 2:  # seldom
            self._kept_ms = systems_ms
            files.put("", [boot_id().hex(), systems_ms, self._held_ms, self._until_ms])
        return time_ms - (self._held_ms if elapsed_ms < self._until_ms else 0)


expiring_ms = _Steps().expiring_ms
