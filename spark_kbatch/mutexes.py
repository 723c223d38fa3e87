"""Mutexes that a forked child process replaces, so that none stays locked for ever.

A thread that holds a mutex when its process is forked does not exist in the child, where the mutex would
stay locked for ever. So the child replaces all of them. What they guard is changed in single steps of the
interpreter, so that it is consistent at any moment.
"""

from __future__ import annotations

import os
import threading
import weakref

_owners: weakref.WeakKeyDictionary[object, tuple[str, ...]] = weakref.WeakKeyDictionary()


def make(owner: object, *names: str) -> None:
    """Set these attributes of an object to mutexes, and to new ones in each forked child."""
    for name in names:
        setattr(owner, name, threading.Lock())
    _owners[owner] = names


def _replace_all() -> None:
    for owner, names in list(_owners.items()):
        for name in names:
            setattr(owner, name, threading.Lock())


os.register_at_fork(after_in_child=_replace_all)
