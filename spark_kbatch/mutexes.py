"""Mutexes of objects that a forked child goes on with.

A thread that holds a mutex when its process is forked is not there in the child, where the mutex would
stay taken for ever. So the child makes all of them again. What they guard is replaced in single steps
of the interpreter, so that it is whole at each moment.
"""

from __future__ import annotations

import os
import threading
import weakref

_owners: weakref.WeakKeyDictionary[object, tuple[str, ...]] = weakref.WeakKeyDictionary()


def make(owner: object, *names: str) -> None:
    """Give an object mutexes under these names, here and in forked children."""
    for name in names:
        setattr(owner, name, threading.Lock())
    _owners[owner] = names


def _make_again() -> None:
    for owner, names in list(_owners.items()):
        for name in names:
            setattr(owner, name, threading.Lock())


os.register_at_fork(after_in_child=_make_again)
