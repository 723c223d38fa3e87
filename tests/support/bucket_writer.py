"""A process that commits jobs to a cluster in a bucket: python -m tests.support.bucket_writer URL NAME COUNT.

COUNT is a number, or a time such as 60s. It prints how many jobs it has committed.
"""

from __future__ import annotations

import sys
import time

from tests.support.bucket_jobs import commit_batch


def main(url: str, name: str, count: str) -> None:
    """Commit jobs, one after the other; job n writes NAME-n."""
    seconds, numbers = float("inf"), float("inf")
    if count.endswith("s"):
        seconds = float(count[:-1])
    else:
        numbers = float(count)
    began, number = time.monotonic(), 0
    while number < numbers and time.monotonic() - began < seconds:
        commit_batch(url, [[f"{name}-{number}"]])
        number += 1
    print(number)


if __name__ == "__main__":
    main(*sys.argv[1:])
