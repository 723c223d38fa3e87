"""`spark_kbatch.mirror`: opens the source and the target, at paths or real clusters, and runs a mirror."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kbatch.cluster.folder_store import FolderStore
from spark_kbatch.cluster.foreign_store import ForeignStore
from spark_kbatch.errors import ConfigError, KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import read_meta_properties
from spark_kbatch.mirroring.copying import (
    Mirror,
    MirrorProgress,
    OnProgress,
    Settings,
)
from spark_kbatch.mirroring.into_path import PathTarget
from spark_kbatch.mirroring.target import Target
from spark_kbatch.model import INT_MAX
from spark_kbatch.opening.readers import open_reader
from spark_kbatch.options import arguments
from spark_kbatch.options.paths import StrPath, absolute_path
from spark_kbatch.options.remote import is_address, parse_cluster_options
from spark_kbatch.store.source import Source

if TYPE_CHECKING:
    from spark_kbatch.options.remote import ClusterOptions

_NAME_MAX = 200


class _OpenedSource(NamedTuple):
    """The opened source of a mirror, with its name and cluster id."""

    source: Source
    name: str  # PATH or the bootstrap servers
    cluster_id: str  # empty if it has none
    is_live: bool  # not a copy of a broker's logs


def mirror(
    source: StrPath,
    target: StrPath,
    topics: str | Iterable[str],
    *,
    name: str | None,
    follow: bool,
    unit_bytes: int,
    unit_seconds: float,
    fail_on_data_loss: bool,
    foreign_end: str,
    source_config: Mapping[str, Any] | None,
    target_config: Mapping[str, Any] | None,
    on_progress: OnProgress | None,
    stop: threading.Event | None,
) -> MirrorProgress:
    """Copy topics from a source to a target, exactly once, as `spark_kbatch.mirror` describes."""
    names = arguments.topic_names("topics", topics)
    if not names:
        arguments.refuse("topics", topics, "topic names")
    if name is not None and not 0 < len(arguments.text("name", name)) <= _NAME_MAX:
        arguments.refuse("name", name, f"1 to {_NAME_MAX} characters")
    settings = Settings(
        mirror=name or "",
        source="",
        follow=arguments.boolean("follow", follow),
        unit_bytes=arguments.whole_number("unit_bytes", unit_bytes, 1, INT_MAX),
        unit_ms=int(arguments.seconds("unit_seconds", unit_seconds) * 1000),
        fail_on_data_loss=arguments.boolean("fail_on_data_loss", fail_on_data_loss),
    )
    origin = _open_source(source, source_config, foreign_end)
    mirror_name = name or f"kbatch-mirror-{origin.cluster_id or _of_path(origin.name)}"
    settings = settings._replace(mirror=mirror_name, source=origin.name)
    with _opened_target(target, target_config, mirror_name) as opened:
        if origin.is_live and origin.cluster_id and origin.cluster_id == opened.cluster_id:
            raise ConfigError(
                f"{origin.name} and {opened.name} are one cluster, {origin.cluster_id}: a mirror keeps the "
                "names of topics, so it needs another one"
            )
        run = Mirror(
            origin.source,
            opened,
            settings,
            on_progress or (lambda _progress: None),
            stop=stop,
        )
        return run.run(dict.fromkeys(names))


def _of_path(path: str) -> str:
    """Return a hash of a source's path, to name a mirror whose source has no cluster id."""
    return hashlib.sha256(path.encode()).hexdigest()[:22]


def _cluster_options(
    what: str, location: StrPath, config: Mapping[str, Any] | None
) -> ClusterOptions | None:
    """Return the client options if a mirror's source or target is a real cluster; None for a path."""
    if isinstance(location, str) and is_address(location):
        return parse_cluster_options({**(config or {}), "bootstrap.servers": location}, alone=True)
    if config:
        raise ConfigError(
            f"{what}_config is for a real cluster, given as HOST:PORT; {os.fspath(location)!r} is a path"
        )
    return None


def _open_source(
    location: StrPath, config: Mapping[str, Any] | None, foreign_end: str
) -> _OpenedSource:
    options = _cluster_options("source", location, config)
    if options is not None:
        from spark_kbatch.remote.client import leased  # noqa: PLC0415  loads the network
        from spark_kbatch.remote.source import RemoteSource  # noqa: PLC0415

        with leased(options) as client:
            cluster_id = client.metadata([]).cluster_id
        return _OpenedSource(RemoteSource(options), str(options), cluster_id, is_live=True)
    source = open_reader(location, foreign_end=foreign_end).source
    path = absolute_path(location)
    if isinstance(source, FolderStore):
        cluster_id = source.metadata.cluster_file.cluster_id()
        return _OpenedSource(source, str(path), cluster_id, is_live=True)
    assert isinstance(source, ForeignStore)
    return _OpenedSource(source, str(path), _cluster_id_of_logs(path), is_live=False)


def _cluster_id_of_logs(path: Path) -> str:
    """Return the cluster id in the meta.properties of a broker's log dir; empty if it has none."""
    with contextlib.suppress(OSError, KafkaStorageError):
        return read_meta_properties(Files(), path).cluster_id or ""
    return ""


@contextlib.contextmanager
def _opened_target(
    location: StrPath, config: Mapping[str, Any] | None, mirror_name: str
) -> Iterator[Target]:
    options = _cluster_options("target", location, config)
    target: Target
    if options is None:
        target = PathTarget(FolderStore(location, create=True, implied=True), mirror_name)
    else:
        from spark_kbatch.mirroring.into_cluster import ClusterTarget  # noqa: PLC0415  the network

        target = ClusterTarget(options, mirror_name)
    try:
        yield target
    finally:
        target.close()
