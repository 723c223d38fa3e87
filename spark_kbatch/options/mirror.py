"""Options of a mirror: the defaults that Python and the command line share."""

from __future__ import annotations

# What was copied is committed after so many bytes, or after so many seconds.
UNIT_BYTES = 64 * 1024 * 1024
UNIT_SECONDS = 5.0
FAIL_ON_DATA_LOSS = True
