"""The opening of a place of topics by a program: what `spark_kbatch.open` does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from spark_kbatch.errors import ConfigError
from spark_kbatch.opening.cluster import Cluster
from spark_kbatch.opening.readers import connect, open_for_reading
from spark_kbatch.opening.stores import is_of_real_cluster, open_store
from spark_kbatch.options import arguments
from spark_kbatch.options.paths import StrPath, bucket_scheme, is_in_memory
from spark_kbatch.options.remote import is_address
from spark_kbatch.options.write import parse_foreign_end


def open_place(
    path: StrPath,
    *,
    create: bool,
    log_dirs: str | Sequence[StrPath],
    without_nodes: Collection[int] | None,
    foreign_end: str | None,
    store: Mapping[str, str] | None,
) -> Cluster:
    """Open the cluster, or a real broker's logs, at `path`; or connect to a real cluster.

    Raises:
        ConfigError: nothing is there, or the arguments do not go together; says what to do.
    """
    parse_foreign_end("foreign_end", foreign_end)
    arguments.boolean("create", create)
    if store is not None:
        store = arguments.options("store", store, "store.endpoint")
    if is_in_memory(path) or bucket_scheme(path):
        if log_dirs != () or without_nodes is not None or foreign_end is not None:
            raise ConfigError(
                f"{path} takes no log_dirs, without_nodes or foreign_end: it has no files"
            )
        return Cluster.over(open_store(path, create=create, client=store, implied=False))
    if store is not None:
        raise ConfigError(f"store has options of a bucket's store, and {path!r} is no bucket's URL")
    if create:
        if isinstance(path, str) and is_address(path):
            raise ConfigError(
                f"path is {path!r}, which looks like the address of a real cluster, which is reached by "
                f"spark_kbatch.connect({path!r}); a folder of this name is './{path}'"
            )
        return Cluster(path, create=True, log_dirs=log_dirs, without_nodes=without_nodes)
    if without_nodes is not None:
        raise ConfigError(
            "without_nodes says what to give up in a restore; it goes with create=True"
        )
    if log_dirs != ():
        raise ConfigError(
            f"log_dirs is {arguments.shown(log_dirs)}, which says where a new cluster keeps its logs; it "
            "goes with create=True"
        )
    if is_of_real_cluster(path):
        if foreign_end is not None:
            raise ConfigError("foreign_end is for a broker's log dir, not for a real cluster")
        return connect(str(path), None, {})
    return open_for_reading(path, foreign_end=foreign_end)
