"""The user's own Spark session, which learns of `format("kbatch")`."""

from __future__ import annotations

from typing import Any

from spark_kbatch import register as register_source


def register(session: Any) -> None:
    """Register the format, unless the fixture is something other than a session that has formats.

    Warns if the session's workers run a Python without this package.
    """
    if hasattr(session, "dataSource"):
        register_source(session)
