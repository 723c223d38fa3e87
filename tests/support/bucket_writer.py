"""A process that commits jobs to a cluster in a bucket: python -m tests.support.bucket_writer URL NAME COUNT."""

from __future__ import annotations

import sys

from tests.support.bucket_jobs import commit_batch


def main(url: str, name: str, count: int) -> None:
    """Commit jobs, one after the other; job n writes NAME-n to each of two partitions."""
    for number in range(count):
        commit_batch(url, [[f"{name}-{number}"]])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
