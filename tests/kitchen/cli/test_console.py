"""Console output of a run, with and without a terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

import pytest
from rich.console import Console

from kitchen.backend.work import Work
from kitchen.cli.console import ConsoleObserver, print_wrapped, table
from kitchen.engine.observers import StageDone, StageStarted
from kitchen.progress import Location, Progress
from kitchen.stage import Stage
from kitchen.types import Metrics, Published, Samples, Table
from kitchen.workflow import for_each, sequence

RECIPE = Location(("recipes.mine",))


class Batches(Stage):
    """A loop of four steps."""

    def run(self) -> Iterable[int]:
        return range(4)


class Passes(Stage):
    """A loop of two passes over the data."""

    def run(self) -> Iterable[str]:
        return ["first", "second"]


class StoppedBatches(Stage):
    """A loop of at most four steps."""

    ends_early = True

    def run(self) -> Iterable[int]:
        return range(4)


class EvaluateBase(Stage):
    """A stage outside loops."""

    def run(self) -> None:
        return None


class Report(Stage):
    """A stage that publishes metrics."""

    def run(self) -> Metrics:
        return Metrics()


def plain_console() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=100, markup=False, highlight=False), file


def step(number: int, of: int, *published: Published, replayed: bool = False) -> StageDone:
    progress = Progress(number, number / of, 1 / of)
    location = RECIPE.iteration("Batches", progress)
    return StageDone(Report(), progress, 0.01, published, replayed=replayed, location=location)


def test_plain_output_has_a_line_per_tenth_of_a_loop() -> None:
    out, file = plain_console()
    observer = ConsoleObserver(out)
    observer.run_started("mine-1", sequence(Report()))
    for number in range(100):
        observer.stage_done(step(number, 100, Metrics(loss=2.0 - number / 100, tokens=500.0)))
    observer.run_ended(None)
    lines = file.getvalue().splitlines()
    assert lines[0] == "run mine-1"
    assert [line.split()[1] for line in lines[1:]] == [
        f"{n}/100" for n in (1, *range(11, 100, 10), 100)
    ]
    assert "loss 1.9  " in lines[2]
    assert "tokens/s" in lines[2]
    assert "left" in lines[2]
    assert "left" not in lines[-1]
    assert "\x1b" not in file.getvalue()


def test_loop_of_unknown_length_shows_no_total() -> None:
    out, file = plain_console()
    observer = ConsoleObserver(out)
    progress = Progress(4, None, 0.0)
    location = RECIPE.iteration("Items", progress)
    observer.stage_done(StageDone(Report(), progress, 0.1, (Metrics(loss=1.0),), location=location))
    observer.run_ended(None)
    assert file.getvalue() == "step 5  loss 1\n"


@pytest.mark.parametrize("ahead", [0, 1])
def test_step_has_one_line_with_metrics_of_all_stages(ahead: int) -> None:
    out, file = plain_console()
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
        f"step {number}/4" for number in (1, 2, 3, 4)
    ]
    assert [line.split("  ")[1:3] for line in lines][: 4 - ahead] == [
        [f"first {number}", f"second {number}"] for number in range(4 - ahead)
    ]


def test_only_slow_stages_outside_loops_get_a_line() -> None:
    out, file = plain_console()
    observer = ConsoleObserver(out)
    for seconds in (0.5, 75.0):
        observer.stage_done(StageDone(Report(), Progress(), seconds, location=RECIPE))
    assert file.getvalue() == "Report  1:15\n"


def test_table_is_printed_once_and_without_markup() -> None:
    out, file = plain_console()
    observer = ConsoleObserver(out)
    shown = Table("Answers", ("prompt", "n"), (("[red]a[/red] :smile: \x1b[31m", "12"), ("b", "3")))
    observer.stage_done(step(0, 2, shown))
    observer.stage_done(step(0, 2, shown, replayed=True))
    lines = [line.rstrip() for line in file.getvalue().splitlines() if line]
    odd = "[red]a[/red] :smile: \\x1b[31m"
    assert lines == [
        "Answers",
        f"{'prompt':29}{'n':>4}",
        "─" * 34,
        f"{odd:29}{'12':>4}",
        f"{'b':29}{'3':>4}",
    ]


def test_long_cells_are_wrapped() -> None:
    out, file = plain_console()
    out.print(table(Table("T", ("a", "b"), (("word " * 40, "x" * 300), ("short", "line\nline")))))
    assert max(map(len, file.getvalue().splitlines())) <= 100
    assert file.getvalue().count("x") == 300


def test_tables_show_no_secrets() -> None:
    out, file = plain_console()
    out.print(table(Table("T", ("where",), (("s3://user:hunter2hunter2@host/x",),))))
    assert "hunter2" not in file.getvalue()


def test_bar_on_a_terminal_is_removed_at_the_end() -> None:
    file = io.StringIO()
    out = Console(file=file, width=100, force_terminal=True, markup=False, highlight=False)
    observer = ConsoleObserver(out)
    observer.run_started("mine-1", sequence(Report()))
    observer.stage_started(StageStarted(Report(), Progress()))
    for number in range(3):
        observer.stage_done(step(number, 4, Metrics(loss=1.5)))
    observer.close()
    observer.run_ended(KeyboardInterrupt())
    assert "step 3/4" in file.getvalue()
    assert "loss 1.5" in file.getvalue()
    # the cursor is hidden once and shown again once
    assert file.getvalue().count("\x1b[?25l") == file.getvalue().count("\x1b[?25h") == 1


@pytest.mark.parametrize(("first", "shown"), [(0, ""), (7, "resumed at step 8/10\n")])
def test_a_resumed_run_says_where(first: int, shown: str) -> None:
    out, file = plain_console()
    observer = ConsoleObserver(out)
    for number in range(first, 9):
        location = step(number, 10).location
        observer.stage_started(StageStarted(Report(), Progress(number), location))
    assert file.getvalue() == shown


def test_a_wide_bar_has_the_time_elapsed_and_left() -> None:
    file = io.StringIO()
    out = Console(file=file, width=130, force_terminal=True, markup=False, highlight=False)
    observer = ConsoleObserver(out)
    observer.run_started("mine-1", sequence(Report()))
    for number in range(3):
        observer.stage_done(step(number, 4, Metrics(loss=1.5, tokens=100.0)))
    observer.close()
    assert " elapsed " in file.getvalue()
    assert " left" in file.getvalue()


def test_lines_of_a_narrow_terminal_break_at_spaces() -> None:
    file = io.StringIO()
    out = Console(file=file, width=50, force_terminal=True, markup=False, highlight=False)
    observer = ConsoleObserver(out, ("loss", "held_out_loss"))
    for number in range(2):
        observer.stage_done(step(number, 4, Metrics(loss=1.25, held_out_loss=2.5, tokens=1e6)))
    observer.run_ended(None)
    assert "step 2/4  loss 1.25  held out loss 2.5" in file.getvalue()
    assert "tokens/s" not in file.getvalue()  # there is no room for it
    print_wrapped(out, "run:a-name@best " * 10)
    assert max(map(len, file.getvalue().splitlines())) <= 50
    assert file.getvalue().count("run:a-name@best") == 10
    plain, elsewhere = plain_console()
    print_wrapped(plain, "word " * 40)
    assert elsewhere.getvalue().count("\n") == 1


def test_headline_metrics_come_first_and_stay_on_the_line() -> None:
    out, file = plain_console()
    observer = ConsoleObserver(out, ("reward", "held_out_loss"))
    mean = {"rewards/mine:short": 0.25}
    observer.stage_done(step(0, 100, Metrics({"other": 1.0, **mean, "reward": 0.5})))
    observer.stage_done(step(1, 100, Metrics(held_out_loss=2.5)))
    observer.stage_done(step(20, 100, Metrics(other=3.0, reward=0.75)))
    observer.run_ended(None)
    assert [line.split("  ")[:3] for line in file.getvalue().splitlines()] == [
        ["step 1/100", "reward 0.5", "rewards/mine:short 0.25"],
        ["step 2/100", "reward 0.5", "held out loss 2.5"],
        ["step 21/100", "reward 0.75", "held out loss 2.5"],
    ]


def test_a_batch_without_steps_shows_no_loss_of_another() -> None:
    out, file = plain_console()
    observer = ConsoleObserver(out, ("reward", "loss"))
    for number, losses in enumerate(((1.5,), ())):
        batch = Progress(number, number / 2, 0.5)
        location = RECIPE.iteration("Batches", batch)
        reward = (Metrics(reward=0.5),)
        observer.stage_done(StageDone(Report(), batch, 0.1, reward, location=location))
        for loss in losses:
            inner = location.iteration("Passes", batch)
            observer.stage_done(
                StageDone(Report(), batch, 0.1, (Metrics(loss=loss),), location=inner)
            )
    observer.run_ended(None)
    lines = [line for line in file.getvalue().splitlines() if "reward" in line]
    assert [line.split("  ")[1:] for line in lines[-2:]] == [
        ["reward 0.5", "loss 1.5"],
        ["reward 0.5"],
    ]


def test_a_step_shows_its_pass_over_the_data() -> None:
    out, file = plain_console()
    observer = ConsoleObserver(out)
    observer.run_started("mine-1", sequence(for_each(Passes())(for_each(Batches())(Report()))))
    inner = Progress(4, 0.5, 0.125)
    location = RECIPE.iteration("Passes", Progress(1, 0.5, 0.5)).iteration("Batches", inner)
    observer.stage_done(StageDone(Report(), inner, 0.1, (Metrics(loss=1.0),), location=location))
    observer.run_ended(None)
    assert file.getvalue().splitlines()[1] == "pass 2/2, step 5/8  loss 1"


def test_the_length_of_a_loop_that_may_end_early_is_a_maximum() -> None:
    out, file = plain_console()
    observer = ConsoleObserver(out)
    observer.run_started("mine-1", sequence(for_each(StoppedBatches())(Report())))
    progress = Progress(1, 0.25, 0.25)
    selecting = Metrics(accuracy=0.5)
    selecting.selects_by = "accuracy"
    location = RECIPE.iteration("StoppedBatches", progress)
    published = Metrics(loss=1.0, other=2.0), selecting
    observer.stage_done(StageDone(Report(), progress, 0.1, published, location=location))
    observer.run_ended(None)
    assert file.getvalue().splitlines()[1] == "step 2/4 at most  loss 1  accuracy 0.5  other 2"


def test_metrics_of_stages_outside_loops_are_printed() -> None:
    out, file = plain_console()
    observer = ConsoleObserver(out)
    observer.stage_done(StageDone(Report(), Progress(), 0.1, (Metrics(rows=1600.0),)))
    shown = Table("T", ("a",), (("b",),))
    observer.stage_done(StageDone(Report(), Progress(), 0.1, (Metrics(rows=7.0), shown)))
    assert file.getvalue().splitlines()[0] == "Report  rows 1,600"
    assert "7" not in file.getvalue()


def test_a_rollout_is_shown_with_its_reward() -> None:
    out, file = plain_console()
    observer = ConsoleObserver(out)
    rollout = Samples(({"when": "rollout", "text": "a\n\x1b[31m" + "b" * 200, "reward": 0.5},))
    observer.stage_done(step(0, 2, Metrics(reward=0.5), rollout))
    observer.run_ended(None)
    [_, line] = file.getvalue().splitlines()
    assert line.startswith("  rollout, reward 0.5: a \\x1b[31mbbb")
    assert line.endswith("b...")


def test_work_is_shown_in_the_bar_with_its_stage_and_count() -> None:
    file = io.StringIO()
    out = Console(file=file, width=80, force_terminal=True, highlight=False)
    observer = ConsoleObserver(out)
    observer.run_started("mine-1", sequence(EvaluateBase()))
    observer.stage_started(StageStarted(EvaluateBase(), Progress()))
    observer.work_reported(Work(activity="Loading tiny (reading 90 MB)"))
    observer.work_reported(Work(0, 460, "answers"))
    observer.work_reported(Work(120, 460, "answers"))
    observer.close()
    assert "Evaluating the base model, 120/460 answers" in file.getvalue()
    assert " left" in file.getvalue()


def test_plain_output_announces_a_wait_once_and_no_short_work() -> None:
    out, file = plain_console()
    observer = ConsoleObserver(out)
    observer.stage_started(StageStarted(EvaluateBase(), Progress()))
    for done in (0, 1):
        observer.work_reported(Work(done, done or None, activity="Downloading a/b (90 MB)"))
    for done in range(460):
        observer.work_reported(Work(done, 460, "answers"))
    observer.work_reported(Work(activity="Downloading a/b (90 MB)"))
    assert file.getvalue() == "Downloading a/b (90 MB)\n"


def test_work_in_a_loop_is_shown_beside_its_step() -> None:
    file = io.StringIO()
    out = Console(file=file, width=100, force_terminal=True, highlight=False)
    observer = ConsoleObserver(out)
    observer.run_started("mine-1", sequence(for_each(Batches())(Report())))
    progress = Progress(0, 0.0, 0.25)
    location = RECIPE.iteration("Batches", progress)
    observer.stage_started(StageStarted(Report(), progress, location))
    observer.work_reported(Work(12, 64, "answers"))
    many = Metrics({f"a_long_name_{number}": 0.123 for number in range(9)})
    observer.stage_done(step(0, 4, many))
    observer.work_reported(Work(12, 64, "answers"))
    observer.close()
    assert re.search(r"step 1/4 .*12/64 answers", file.getvalue())
    assert all(len(line) <= 100 for line in file.getvalue().splitlines() if "\x1b" not in line)
