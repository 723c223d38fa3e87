"""Pages of the commits of Spark jobs, and of one of them: which query, which micro-batch, rows, when, offsets.

A page of the list looks at a bounded number of commits, or of a bucket's entries, wherever it begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from spark_kbatch.store.commits import ALL_COMMITS
from spark_kbatch.web.charts import Chart, chart
from spark_kbatch.web.site import shown_page, site_of, whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from spark_kbatch import Commit
    from spark_kbatch.web.site import Site

LOOKED_AT = 100  # numbers, for one page
PARTITIONS_SHOWN = 500  # on one page
_NUMBERS_FRESH_S = 60.0


def find_commits(
    site: Site, before: int | None, topic: str | None
) -> tuple[list[Commit], int | None]:
    """Return the commits that touched a topic, or any, of the newest numbers before one, or of all.

    Returns:
        The commits, newest first; of all, those of the last minute as well. And the number to go on before; None
        if there are no older ones.
    """

    def find() -> tuple[list[Commit], int | None]:
        # As the first of a bucket is searched for in its ledger, it is not asked for each time.
        kept = site.recent("commits", site.cluster.commit_numbers, fresh_s=_NUMBERS_FRESH_S)
        end = ALL_COMMITS.stop if before is None else before
        start = max(min(end, kept.stop) - LOOKED_AT, kept.start)
        found = site.cluster.history(topic, numbers=range(start, end))
        return [*found], start if start > kept.start else None

    return site.as_of_news(f"commits {before} {topic}", find)


def chart_of(commits: Sequence[Commit]) -> Chart | None:
    """Return the timeline of commits, by their records."""
    # Of clocks that differ, times may be in another order than numbers.
    ordered = sorted(commits, key=lambda one: one.time_ms)
    return chart(
        "commits",
        "Records by commit over time",
        [one.time_ms for one in ordered],
        {"records": [one.records_count for one in ordered]},
        bars=[f"Commit {one.number}" for one in ordered],
    )


def commits(request: Request) -> Response:
    """Show the commits, newest first, a page of them at a time."""
    site, topic = site_of(request), request.query_params.get("topic") or None
    before = whole_number(request.query_params.get("before", ""))
    found, older = find_commits(site, before, topic)
    return site.page(
        request,
        "commits.html",
        commits=found,
        older=older,
        before=before,
        topic=topic,
        looked_at=LOOKED_AT,
        chart=chart_of(found),
    )


def commit(request: Request) -> Response:
    """Show one commit."""
    site, given = site_of(request), request.path_params["number"]
    number = whole_number(given)
    found = () if number is None else site.cluster.history(numbers=range(number, number + 1))
    one = next(iter(found), None)
    if one is None:
        sentence = f"There is no commit {given}, or it is no longer kept."
        return site.page(request, "error.html", 404, sentence=sentence)
    page = shown_page(request, sorted(one.ends), PARTITIONS_SHOWN)
    return site.page(request, "commit.html", commit=one, page=page)


ROUTES = [Route("/commits", commits), Route("/commits/{number}", commit)]
