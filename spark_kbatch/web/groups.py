"""Pages of consumer groups, and of one group: its members, its offsets and its lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from spark_kbatch.errors import GroupIdNotFoundError
from spark_kbatch.web.charts import LINES_MAX, chart
from spark_kbatch.web.history import LAG
from spark_kbatch.web.site import shown_page, site_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from spark_kbatch.model import ConsumerGroup
    from spark_kbatch.web.site import Site

GROUPS_SHOWN = 100  # on one page
PARTITIONS_SHOWN = 500  # on one page, and as many members
_GROUPS_FRESH_S = 5.0  # all groups are read at once


def groups(request: Request) -> Response:
    """Show the groups, a page of them at a time, and the lag of those that are furthest behind."""
    site = site_of(request)
    found = _groups(site)
    behind = sorted(found, key=lambda one: -one.lag)[:LINES_MAX]
    lines = site.samples.series(LAG, *(one.group_id for one in behind))
    return site.page(
        request,
        "groups.html",
        page=shown_page(request, found, GROUPS_SHOWN),
        chart=chart(
            "lag", "Lag of the groups that are furthest behind over time, in offsets", *lines
        ),
    )


def group(request: Request) -> Response:
    """Show one group, whose id is a parameter, as it may have any characters."""
    site, group_id = site_of(request), request.query_params.get("id", "")
    one = next((one for one in _groups(site) if one.group_id == group_id), None)
    if one is None:
        raise GroupIdNotFoundError(group_id, site.cluster.address)
    return site.page(
        request,
        "group.html",
        group=one,
        members=one.members[:PARTITIONS_SHOWN],
        page=shown_page(request, list(one.offsets.items()), PARTITIONS_SHOWN),
        chart=chart("lag", "Lag over time, in offsets", *site.samples.series(LAG, group_id)),
    )


ROUTES = [Route("/groups", groups), Route("/groups/group", group)]


def _groups(site: Site) -> list[ConsumerGroup]:
    return site.recent("groups", site.cluster.groups, fresh_s=_GROUPS_FRESH_S)
