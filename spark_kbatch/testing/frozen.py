"""Imports that must come before a test freezes time.

freezegun puts classes of its own in place of `datetime`'s, of another size. A compiled module that
is imported then warns of that, which is an error where warnings are; pandas keeps these classes.
pyarrow imports the two only when it needs them.
"""

from __future__ import annotations

import contextlib
import importlib


def import_what_keeps_times() -> None:
    """Import the compiled modules that a read or write may import, as far as they are installed."""
    for module in ("pyarrow.compute", "pandas"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
