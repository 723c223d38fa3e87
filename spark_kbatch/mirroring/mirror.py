"""`spark_kbatch.mirror`: opens the source and the target, at paths or real clusters, and runs a mirror."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from spark_kbatch.errors import ConfigError
from spark_kbatch.mirroring.copying import (
    Mirror,
    MirrorProgress,
    OnProgress,
    Settings,
)
from spark_kbatch.mirroring.into_path import PathTarget
from spark_kbatch.mirroring.target import Target
from spark_kbatch.model import INT_MAX
from spark_kbatch.opening.stores import is_of_real_cluster, open_bucket, open_store
from spark_kbatch.options import arguments
from spark_kbatch.options.paths import StrPath, bucket_scheme
from spark_kbatch.options.remote import parse_client_options

_NAME_MAX = 200


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
    keep_offsets: bool,
    foreign_end: str | None,
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
        keep_offsets=arguments.boolean("keep_offsets", keep_offsets),
    )
    _ensure_takes("source", source, source_config)
    origin = open_store(source, client=source_config, foreign_end=foreign_end)
    for topic in names:
        origin.source.topic(topic)  # before a target is made for nothing
    source_id = origin.cluster_id
    mirror_name = name or f"kbatch-mirror-{source_id or _of_path(origin.address)}"
    settings = settings._replace(mirror=mirror_name, source=origin.address)
    with contextlib.closing(_target(target, target_config, mirror_name)) as into:
        is_copy = origin.catalog is None  # of a broker's logs
        if not is_copy and source_id and source_id == into.cluster_id:
            raise ConfigError(
                f"{origin.address} and {into.name} are one cluster, {source_id}: a mirror keeps the "
                "names of topics, so it needs another one"
            )
        run = Mirror(
            origin.source,
            into,
            settings,
            on_progress or (lambda _progress: None),
            stop=stop,
        )
        return run.run(dict.fromkeys(names))


def _of_path(path: str) -> str:
    """Return a hash of a source's path, to name a mirror whose source has no cluster id."""
    return hashlib.sha256(path.encode()).hexdigest()[:22]


def _ensure_takes(what: str, address: StrPath, config: Mapping[str, Any] | None) -> None:
    if config and not (is_of_real_cluster(address) or bucket_scheme(address)):
        raise ConfigError(
            f"{what}_config is for a real cluster, given as HOST:PORT, or for a bucket's URL; "
            f"{os.fspath(address)!r} is neither"
        )


def _target(address: StrPath, config: Mapping[str, Any] | None, mirror_name: str) -> Target:
    """Return the place at an address as the target of a mirror; it is created if there is none.

    Raises:
        ConfigError: it cannot be one.
    """
    _ensure_takes("target", address, config)
    if is_of_real_cluster(address):
        # The network's modules are loaded only for a real cluster.
        from spark_kbatch.mirroring.into_cluster import ClusterTarget  # noqa: PLC0415

        return ClusterTarget(parse_client_options(address, config or {}), mirror_name)
    if bucket_scheme(address):
        from spark_kbatch.mirroring.into_bucket import BucketTarget  # noqa: PLC0415  only for a bucket

        return BucketTarget(open_bucket(address, client=config, create=True), mirror_name)
    store = open_store(address, create=True)
    if store.server is None:
        raise ConfigError(f"{store.address} cannot be a mirror's target: {store.why_not}")
    return PathTarget(store, mirror_name)
