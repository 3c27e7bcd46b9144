"""The pages: the list of runs, a run and its samples, a sweep, and reports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from urllib.parse import quote, urlencode

from adapters.view.chart import chart, words
from adapters.view.markup import Html, join, tag
from kitchen.config.yaml import yaml_value
from kitchen.experiments.ledger import PointStatus, Sweep
from kitchen.experiments.points import points_table
from kitchen.experiments.reports import html as report_html
from kitchen.runs.follow import RunView, log_line, sample_score
from kitchen.runs.history import Point, Rows
from kitchen.runs.reports.content import Report
from kitchen.runs.store import RunSummary
from kitchen.runs.wording import clock, result_of
from kitchen.types import Table

STATES = ("running", "completed", "failed", "interrupted", "killed", "unreadable")
_RUNS_PER_PAGE = 50
_SAMPLES_PER_PAGE = 20
_LOG_LINES = 8
_LAST_SAMPLES = 2
_SHORT = 60  # characters of a value that shares its line with others
_NOTHING = Html("")
_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?( ?%)?")
_MAX_ROWS = 200  # of a table on the page of a run
# panels: title and metrics; every other curve has a separate panel
_PANELS = (("Loss", ("loss", "held_out_loss")), ("Reward", ("reward", "held_out_reward")))
_TEXTS = (("prompt", "Prompt"), ("wanted", "Expected"), ("text", "Model"))
_NOT_VALUES = {"n", "stage", "step", "prompt", "wanted", "text", "scores", "columns", "item"}


@dataclass(frozen=True)
class Query:
    """A request for a list: entries with a text in them, of one kind, and a page of them."""

    text: str = ""
    kind: str = ""  # state of runs, or stage of samples; empty: all
    page: int = 1


def runs(newest_first: Sequence[RunSummary], sweeps: Sequence[str], query: Query) -> Html:
    """Return the list of runs, which can be filtered and chosen for a report."""
    filters = tag(
        "form",
        tag("label", "Name, recipe or reason", tag("input", name="q", value=query.text)),
        tag("label", "State", _select("state", STATES, query.kind)),
        tag("button", "Filter"),
        action="/",
        role="search",
    )
    content: list[Html] = [tag("h1", "Runs"), filters]
    listed = live_runs(newest_first, query)
    is_live = any(run.status == "running" for run in _found(newest_first, query))
    if _found(newest_first, query):
        oldest_first = tag("input", type="hidden", name="by", value="start")
        compare = tag("button", "Compare chosen runs")
        help_text = " with the oldest as the baseline; one run gives its report"
        place = (
            f"/live?{urlencode({'q': query.text, 'state': query.kind, 'page': str(query.page)})}"
        )
        part = tag("div", listed, id="live", data_from=place)
        form = (oldest_first, compare, tag("span", help_text, class_="dim"), part)
        content += [
            *(_controls() if is_live else ()),
            tag("form", *form, action="/report", class_="list"),
        ]
    else:
        content.append(listed)
    if sweeps:
        items = [tag("li", _link(f"/sweeps/{quote(name)}", name)) for name in sweeps]
        content += [tag("h2", "Sweeps"), tag("ul", *items)]
    return _page("Runs", *content, script=is_live)


def live_runs(newest_first: Sequence[RunSummary], query: Query) -> Html:
    """Return the part of the list of runs that changes while some of them are in progress."""
    found = _found(newest_first, query)
    if not found:
        return tag("p", "No run matches." if newest_first else "There are no runs here.")
    shown, pager = _paged(found, query, _RUNS_PER_PAGE, "/", "state")
    head = ("", "run", "state", "recipe", "started, UTC", "took", "result")
    listed = tag("div", _grid(head, [_run_row(run) for run in shown]), class_="wide")
    is_over = all(run.status != "running" for run in found)
    return tag("div", listed, pager, data_over=is_over)


def run(name: str, view: RunView, tables: Rows) -> Html:
    """Return the page of a run, whose first part changes while it is in progress."""
    summary, record = view.summary, view.record
    place = f"/runs/{quote(name)}"
    head = tag("h1", name, " ", _state(summary.status))
    where = tag(
        "p",
        summary.recipe,
        ", started ",
        summary.started[:19].replace("T", " "),
        " UTC",
        class_="dim",
    )
    report = f"/report?{urlencode({'name': name})}"
    links = tag(
        "p",
        _link(f"{place}/samples", "Samples"),
        " ",
        _link(report, "Report"),
    )
    details = [
        *(_table_of(table) for table in _last_tables(tables)),
        _details("Last metrics", ("metric", "value"), _items(summary.metrics)),
        _details("Settings", ("setting", "value"), _items(record["order"]["settings"])),
        _details("Adapters", ("port", "adapter"), _items(record["order"]["adapters"])),
        _details("Facts", ("fact", "value"), _items(record["facts"])),
    ]
    part = tag("div", live(view), id="live", data_from=f"{place}/live", data_reload=True)
    if view.is_over:
        return _page(name, head, where, links, part, *details)
    return _page(name, head, where, links, *_controls(), part, *details, script=True)


def _controls() -> Sequence[Html]:
    """Return what stands above a part that is refreshed."""
    pause = tag("button", "Pause", id="pause", type="button", aria_pressed="false", hidden=True)
    note = tag("p", id="note", class_="dim", role="status")
    hint = tag("noscript", tag("p", "Without JavaScript, load the page again to see what is new."))
    return pause, note, hint


def live(view: RunView) -> Html:
    """Return the part of a run's page that changes: progress, curves, log and last samples."""
    series = view.series
    log = [row for row in view.log if row.get("level") != "debug"][-_LOG_LINES:]
    parts = [*_progress(view), tag("div", *_charts(series), class_="charts")]
    if log:
        parts += [tag("h2", "Log"), tag("pre", "\n".join(map(log_line, log)))]
    if view.samples:
        parts.append(tag("h2", "Last samples"))
        parts += [_sample(row) for row in view.samples[: -_LAST_SAMPLES - 1 : -1]]
    return tag("div", *parts, data_over=view.is_over)


def samples(name: str, rows: Rows, query: Query) -> Html:
    """Return a page of the texts that the model wrote, the newest first."""
    place = f"/runs/{quote(name)}/samples"
    stages = list(dict.fromkeys(str(row.get("stage", "")) for row in rows))
    found = [row for row in reversed(rows) if _has(row, query)]
    shown, pager = _paged(found, query, _SAMPLES_PER_PAGE, place, "stage")
    filters = tag(
        "form",
        tag("label", "Text", tag("input", name="q", value=query.text)),
        tag("label", "Stage", _select("stage", stages, query.kind)),
        tag("button", "Filter"),
        action=place,
        role="search",
    )
    head = [tag("h1", "Samples of ", _link(f"/runs/{quote(name)}", name)), filters]
    empty = [] if shown else [tag("p", "No sample matches.")]
    return _page(f"Samples of {name}", *head, *empty, *map(_sample, shown), pager)


def sweep(plan: Sweep, statuses: Sequence[PointStatus]) -> Html:
    """Return the table of a sweep's points."""
    content = points_table(plan, statuses)
    rows = []
    for status, cells in zip(statuses, content.rows, strict=True):
        first = _link(f"/runs/{quote(status.point.run)}", cells[0])
        others = [_state(cell) if cell == status.state else cell for cell in cells[1:]]
        rows.append(_row((first if status.state != "waiting" else cells[0], *others)))
    failures = [
        tag("p", f"{status.point.run}: {status.reason}", class_="error")
        for status in statuses
        if status.reason
    ]
    report = tag("p", _link(f"/report?{urlencode({'name': plan.name})}", "Report"))
    listed = tag("div", _grid(content.columns, rows), class_="wide")
    recipe = tag("p", plan.recipe, class_="dim")
    return _page(plan.name, tag("h1", "Sweep ", plan.name), recipe, report, listed, *failures)


def report(content: Report, names: Sequence[str]) -> Html:
    """Return a report of runs and sweeps, the first of them the baseline."""
    links = []
    if len(names) > 1:
        others = [("name", name) for name in reversed(names)]
        links = [tag("p", _link(f"/report?{urlencode(others)}", "Reverse the order"))]
    style = tag("style", Html(report_html.STYLE))  # a constant
    body = Html(report_html.body(content))  # whose texts are escaped
    return _page(content.title, *links, body, style=style)


def failure(title: str, reason: str) -> Html:
    """Return the page of an error."""
    return _page(title, tag("h1", title), tag("p", reason, class_="error"))


def _page(title: str, *content: str, style: Html = _NOTHING, script: bool = False) -> Html:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · kitchen"),
        style,
        tag("link", rel="stylesheet", href="/view.css"),
        tag("script", src="/view.js", defer=True) if script else _NOTHING,
    )
    skip = tag("a", "Skip to the content", href="#content", class_="skip")
    header = tag("header", tag("b", "crucible-kitchen"), _link("/", "Runs"))
    main = tag("main", *content, id="content")
    return join(
        Html("<!doctype html>\n"), tag("html", head, tag("body", skip, header, main), lang="en")
    )


def _found(runs: Sequence[RunSummary], query: Query) -> Sequence[RunSummary]:
    return [run for run in runs if _matches(run, query)]


def _matches(run: RunSummary, query: Query) -> bool:
    text = f"{run.id} {run.recipe} {run.reason}".lower()
    return query.text.lower() in text and query.kind in ("", run.status)


def _has(row: Mapping[str, Any], query: Query) -> bool:
    if query.kind not in ("", row.get("stage")):
        return False
    texts = (str(row.get(key, "")).lower() for key, _ in _TEXTS)
    return not query.text or any(query.text.lower() in text for text in texts)


def _run_row(run: RunSummary) -> Html:
    box = tag("input", type="checkbox", name="name", value=run.id, aria_label=f"Choose {run.id}")
    name = _link(f"/runs/{quote(run.id)}", run.id)
    result = run.reason if run.status == "unreadable" else result_of(run.metrics)
    return tag(
        "tr",
        tag("td", box, class_="pick"),
        tag("td", name),
        tag("td", _state(run.status)),
        tag("td", run.recipe.partition(":")[0].removeprefix("recipes."), class_="less"),
        tag("td", run.started[:16].replace("T", " "), class_="less nowrap"),
        tag("td", clock(run.seconds) if run.started else "", class_="less nowrap"),
        tag("td", result),
    )


def _progress(view: RunView) -> Iterator[Html]:
    times = [f"{clock(view.seconds)} {'in all' if view.is_over else 'elapsed'}"]
    if view.left is not None:
        times.append(f"{clock(view.left)} left")
    if len(view.record["attempts"]) > 1:
        times.append(f"attempt {len(view.record['attempts'])}")
    yield tag("p", ", ".join([view.place, *times]))
    if view.steps:
        label = f"{view.step} of {view.steps} steps"
        values = {"value": str(view.step), "max": str(view.steps), "aria_label": label}
        yield tag("progress", **values)
    if view.activity:
        yield tag("p", f"{view.activity} ...")
    if view.summary.reason:
        yield tag("p", view.summary.reason, class_="error")


def _charts(series: Mapping[str, Sequence[Point]]) -> Iterator[Html]:
    together = set(chain.from_iterable(names for _, names in _PANELS))
    panels = [
        *_PANELS,
        *((words(name).capitalize(), (name,)) for name in series if name not in together),
    ]
    for title, names in panels:
        drawn = {name: series[name] for name in names if name in series}
        if drawn:
            yield chart(title, drawn)


def _sample(row: Mapping[str, Any]) -> Html:
    """Return a sample: its known texts, then other long values, and short ones in a line."""
    in_loop = row.get("step", 0) > 0 or row.get("when") == "rollout"
    place = str(row.get("stage", ""))
    if in_loop:
        place += f", step {int(row.get('step', 0)) + 1}"
    score = sample_score(row)
    parts = [tag("h3", f"{place}: {score}" if score else place)]
    for key, title in _TEXTS:
        if row.get(key) is not None:
            parts += [tag("h4", title), tag("pre", _text(row[key]))]
    short = []
    for key, value in row.items():
        text = "" if key in _NOT_VALUES or value is None else _text(value)
        if len(text) > _SHORT:
            parts += [tag("h4", words(key)), tag("pre", text)]
        elif text:
            short.append(f"{words(key)} {text}")
    return tag("article", *parts, tag("p", ", ".join(short), class_="dim"), class_="sample")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(yaml_value(value))


def _last_tables(rows: Rows) -> Sequence[Table]:
    """Return the last table of each title."""
    last = {row["title"]: row for row in rows}
    return [
        Table(title, tuple(map(str, row["columns"])), tuple(map(tuple, row["rows"])))
        for title, row in last.items()
    ]


def _table_of(table: Table) -> Html:
    rows = [tuple(map(str, cells)) for cells in table.rows[:_MAX_ROWS]]
    more = len(table.rows) - len(rows)
    title = f"{table.title} ({more:,} more rows in tables.jsonl)" if more else table.title
    return _details(title, table.columns, rows, is_open=len(rows) <= 20)


def _details(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, is_open: bool = False
) -> Html:
    if not rows:
        return _NOTHING
    content = tag("div", _grid(columns, [_row(cells) for cells in rows]), class_="wide")
    return tag("details", tag("summary", title), content, open=is_open)


def _items(values: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    return [(key, _value(value)) for key, value in values.items()]


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else _text(value)


def _grid(columns: Sequence[str], rows: Sequence[Html]) -> Html:
    names = {"recipe": "less", "started, UTC": "less", "took": "less"}
    head = [tag("th", name, scope="col", class_=names.get(name, False)) for name in columns]
    return tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows))


def _row(cells: Sequence[str]) -> Html:
    return tag("tr", *map(_cell, cells))


def _cell(cell: str) -> Html:
    return tag("td", cell, class_="number" if _NUMBER.fullmatch(cell) else False)


def _state(state: str) -> Html:
    return tag("span", state, class_=f"state {state}")


def _link(href: str, text: str) -> Html:
    return tag("a", text, href=href)


def _select(name: str, values: Sequence[str], chosen: str) -> Html:
    options = [tag("option", "all", value="")]
    options += [tag("option", value, value=value, selected=value == chosen) for value in values]
    return tag("select", *options, name=name)


def _paged(
    found: Sequence[Any], query: Query, size: int, place: str, kind: str
) -> tuple[Sequence[Any], Html]:
    """Return the entries of the page that is asked for, and links to those beside it."""
    pages = max(1, -(-len(found) // size))
    page = min(query.page, pages)
    shown = found[(page - 1) * size : page * size]
    parts = [tag("span", f"page {page:,} of {pages:,}, {len(found):,} in all")]
    for at, label in ((page - 1, "Previous"), (page + 1, "Next")):
        if 1 <= at <= pages:
            values = {"q": query.text, kind: query.kind, "page": str(at)}
            parts.append(_link(f"{place}?{urlencode(values)}", label))
    return shown, tag("nav", *parts, class_="pages", aria_label="Pages")
