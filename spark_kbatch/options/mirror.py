"""Options of a mirror: the defaults that Python and the command line share."""

from __future__ import annotations

from spark_kbatch.options.option import MiB

UNIT_BYTES = 64 * MiB  # a unit of what is copied is committed after so many bytes,
UNIT_SECONDS = 5.0  # or after so many seconds
FAIL_ON_DATA_LOSS = True
