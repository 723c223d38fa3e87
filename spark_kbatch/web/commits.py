"""Pages of the commits of Spark jobs, and of one of them: which query, which micro-batch, rows, when, offsets.

A page of the list looks at a bounded number of commits, or of a bucket's entries, wherever it begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import Response
from starlette.routing import Route

from spark_kbatch.web.charts import Chart, bars
from spark_kbatch.web.site import number_shown, shown_page, site_of, whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from spark_kbatch import Commit
    from spark_kbatch.web.site import Site

COMMITS_SHOWN = 50  # on one page
LOOKED_AT = 256  # numbers, for one page
PARTITIONS_SHOWN = 500  # on one page
_FIRST_FRESH_S = 60.0


class CommitsFound(NamedTuple):
    """Commits on one page."""

    commits: Sequence[Commit]  # newest first
    older: int | None  # the number to go on before; None if there are no older ones


def find_commits(site: Site, before: int | None, topic: str | None) -> CommitsFound:
    """Return the newest commits before a number, or of all, that touched a topic, or any."""
    cluster = site.cluster
    # As that of a bucket is searched for in its ledger, it is not asked for each time.
    first = site.recent("first commit", cluster.first_commit, fresh_s=_FIRST_FRESH_S)
    end = cluster.next_commit()
    end = end if before is None else min(before, end)
    start = max(end - LOOKED_AT, first)
    found: list[Commit] = []
    for commit in cluster.history(topic, start=start, end=end):
        found.append(commit)
        if len(found) == COMMITS_SHOWN:
            start = commit.number
            break
    return CommitsFound(found, start if start > first else None)


def chart_of(commits: Sequence[Commit]) -> Chart | None:
    """Return the timeline of commits, by their records."""
    # Of clocks that differ, times may be in another order than numbers.
    ordered = sorted(commits, key=lambda one: one.time_ms)
    return bars(
        "commits",
        "Records by commit over time",
        "Commit",
        {str(one.number): one.records_count for one in ordered},
        number_shown,
        times_ms=[one.time_ms for one in ordered],
    )


def commits(request: Request) -> Response:
    """Show the commits, newest first, a page of them at a time."""
    site, topic = site_of(request), request.query_params.get("topic") or None
    before = whole_number(request.query_params.get("before", ""))
    found = site.as_of_news(f"commits {before} {topic}", lambda: find_commits(site, before, topic))
    return site.page(
        request,
        "commits.html",
        found=found,
        before=before,
        topic=topic,
        looked_at=LOOKED_AT,
        chart=chart_of(found.commits),
    )


def commit(request: Request) -> Response:
    """Show one commit."""
    site, given = site_of(request), request.path_params["number"]
    number = whole_number(given)
    found = () if number is None else site.cluster.history(start=number, end=number + 1)
    one = next(iter(found), None)
    if one is None:
        sentence = f"There is no commit {given}, or it is no longer kept."
        return site.page(request, "error.html", 404, sentence=sentence)
    page = shown_page(request, sorted(one.ends), PARTITIONS_SHOWN)
    return site.page(request, "commit.html", commit=one, page=page)


ROUTES = [Route("/commits", commits), Route("/commits/{number}", commit)]
