"""Defaults of a mirror, in Python and on the command line."""

from __future__ import annotations

from spark_kbatch.options.option import MiB

UNIT_BYTES = 64 * MiB  # copied, after which it is committed
UNIT_SECONDS = 5.0  # after which it is committed
