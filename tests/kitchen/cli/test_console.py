"""What people see of a run, with and without a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable

import pytest
from rich.console import Console

from kitchen.cli.console import ConsoleObserver, clock, table
from kitchen.engine.observers import StageDone, StageStarted
from kitchen.progress import Location, Progress
from kitchen.stage import Stage
from kitchen.types import Metrics, Published, Table
from kitchen.workflow import for_each, sequence

RECIPE = Location(("recipes.mine",))


class Batches(Stage):
    """Four numbers."""

    def run(self) -> Iterable[int]:
        return range(4)


class Report(Stage):
    """Report."""

    def run(self) -> Metrics:
        return Metrics()


def plain() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=100, markup=False, highlight=False), file


def step(number: int, of: int, *published: Published, replayed: bool = False) -> StageDone:
    progress = Progress(number, number / of, 1 / of)
    location = RECIPE.iteration("Batches", progress)
    return StageDone(Report(), progress, 0.01, published, replayed=replayed, location=location)


def test_without_a_terminal_there_is_a_line_per_tenth_of_a_loop() -> None:
    out, file = plain()
    observer = ConsoleObserver(out)
    observer.run_started("mine-1", sequence(Report()))
    for number in range(100):
        observer.stage_done(step(number, 100, Metrics(loss=2.0 - number / 100, tokens=500.0)))
    observer.run_ended(None)
    lines = file.getvalue().splitlines()
    assert lines[0] == "run mine-1"
    assert [line.split()[2] for line in lines[1:]] == [
        f"{n}/100" for n in (1, *range(11, 100, 10), 100)
    ]
    assert "loss 1.9  " in lines[2]
    assert "tokens/s" in lines[2]
    assert "left" in lines[2]
    assert "left" not in lines[-1]
    assert "\x1b" not in file.getvalue()


def test_a_loop_of_unknown_length_has_no_share_and_no_end() -> None:
    out, file = plain()
    observer = ConsoleObserver(out)
    progress = Progress(4, None, 0.0)
    location = RECIPE.iteration("Items", progress)
    observer.stage_done(StageDone(Report(), progress, 0.1, (Metrics(loss=1.0),), location=location))
    observer.run_ended(None)
    assert file.getvalue() == "Items step 5  loss 1\n"


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_step_has_one_line_with_the_metrics_of_all_its_stages(ahead: int) -> None:
    out, file = plain()
    observer = ConsoleObserver(out)
    observer.run_started("mine-1", sequence(for_each(Batches(), ahead=ahead)(Report())))
    for number in range(4):
        observer.stage_done(step(number, 4, Metrics(first=float(number))))
        if number >= ahead:
            observer.stage_done(
                step(number - ahead, 4, Metrics(second=float(number - ahead), tokens=5.0))
            )
    observer.stage_done(StageDone(Report(), Progress(), 0.1, location=RECIPE))
    lines = file.getvalue().splitlines()[1:]
    assert [line.split("  ")[0] for line in lines] == [
        f"Batches step {number}/4" for number in (1, 2, 3, 4)
    ]
    assert [line.split("  ")[1:3] for line in lines][: 4 - ahead] == [
        [f"first {number}", f"second {number}"] for number in range(4 - ahead)
    ]


def test_a_slow_stage_gets_a_line_and_a_quick_one_none() -> None:
    out, file = plain()
    observer = ConsoleObserver(out)
    for seconds in (0.5, 75.0):
        observer.stage_done(StageDone(Report(), Progress(), seconds, location=RECIPE))
    assert file.getvalue() == "Report  1:15\n"


def test_a_table_is_printed_once_and_its_text_is_nobody_s_markup() -> None:
    out, file = plain()
    observer = ConsoleObserver(out)
    shown = Table("Answers", ("asked", "n"), (("[red]a[/red] :smile: \x1b[31m", "12"), ("b", "3")))
    observer.stage_done(step(0, 2, shown))
    observer.stage_done(step(0, 2, shown, replayed=True))
    lines = [line.rstrip() for line in file.getvalue().splitlines() if line]
    odd = "[red]a[/red] :smile: \N{REPLACEMENT CHARACTER}[31m"
    assert lines == [
        "Answers",
        f"{'asked':26}{'n':>4}",
        "─" * 31,
        f"{odd:26}{'12':>4}",
        f"{'b':26}{'3':>4}",
    ]


def test_long_texts_stay_within_the_columns() -> None:
    out, file = plain()
    out.print(table(Table("T", ("a", "b"), (("word " * 40, "x" * 300), ("short", "line\nline")))))
    assert max(map(len, file.getvalue().splitlines())) <= 100
    assert file.getvalue().count("x") == 300


def test_secrets_do_not_show() -> None:
    out, file = plain()
    out.print(table(Table("T", ("where",), (("s3://user:hunter2hunter2@host/x",),))))
    assert "hunter2" not in file.getvalue()


def test_on_a_terminal_a_bar_shows_where_it_stands_and_leaves_nothing_behind() -> None:
    file = io.StringIO()
    out = Console(file=file, width=100, force_terminal=True, markup=False, highlight=False)
    observer = ConsoleObserver(out)
    observer.run_started("mine-1", sequence(Report()))
    observer.stage_started(StageStarted(Report(), Progress()))
    for number in range(3):
        observer.stage_done(step(number, 4, Metrics(loss=1.5)))
    observer.close()
    observer.run_ended(KeyboardInterrupt())
    assert "Batches step 3/4" in file.getvalue()
    assert "loss 1.5" in file.getvalue()
    # the cursor is back
    assert file.getvalue().count("\x1b[?25l") == file.getvalue().count("\x1b[?25h") == 1


@pytest.mark.parametrize(("seconds", "shown"), [(3.21, "3.2 s"), (245, "4:05"), (3845, "1:04:05")])
def test_durations_are_shown_as_on_a_clock(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown
