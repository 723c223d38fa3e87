"""Registration of `format("kbatch")` with the Spark session of the user's own fixture."""

from __future__ import annotations

from typing import Any

from spark_kbatch import register as register_source


def register(session: Any) -> None:
    """Register `format("kbatch")` with a Spark session, ignoring any other kind of fixture.

    Warns if the session's workers run a Python without this package.
    """
    if hasattr(session, "dataSource"):
        register_source(session)
