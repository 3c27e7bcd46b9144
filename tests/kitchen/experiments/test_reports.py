"""Reports of runs: their content, and that no text of a run has a meaning in their formats."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from adapters.fake.blobs import FakeBlobs
from kitchen.config.order import Order, order_json
from kitchen.errors import ConfigError
from kitchen.experiments.ledger import Ledger, Sweep, configuration_digest
from kitchen.experiments.ledger import Point as LedgerPoint
from kitchen.experiments.reports.build import build_report
from kitchen.experiments.reports.figures import draw, thinned
from kitchen.experiments.reports.html import render
from kitchen.experiments.reports.latex import files as latex_files
from kitchen.experiments.reports.markdown import files as markdown_files
from kitchen.experiments.reports.notebook import files as notebook_files
from kitchen.experiments.reports.write import find_renderers, write_report
from kitchen.runs.reports.content import (
    Answer,
    Answers,
    Curves,
    DataTable,
    Paragraph,
    Report,
    Section,
)
from kitchen.runs.store import read_run, write_run
from tests.support.evaluated_runs import scored_rows, write_evaluated_run

# texts with a meaning in HTML, LaTeX, Markdown or a terminal
ODD = (
    "[*] </pre><script>alert(1)</script> 100 % _a_ \\b {c} $d$ #e ~f ^g & <i> `h` [x](y) € 中 "
    "\x1b[31m"
)
ODD_REPORT = Report(
    f"title {ODD}",
    ODD,
    [
        Section(
            f"Section {ODD}",
            [
                Paragraph(ODD, strong=True),
                DataTable(ODD, ("name", ODD), [("1.5", ODD), ("", "`|`")]),
                DataTable("folded", ("a",), [(ODD,)], folded=True),
                Answers(ODD, [Answer(ODD, f"```\n{ODD}", {ODD: f"{ODD}\n\n{ODD}"})]),
                Curves(
                    ODD, "100 % $loss_a", {ODD: [(1, 2.0), (2, 1.0)], "_b": [(1, 1.0), (2, 3.0)]}
                ),
            ],
        )
    ],
)


def evaluated(before: Sequence[float], after: Sequence[float]) -> list[dict[str, Any]]:
    """Return the rows of an evaluation before and after training."""
    first = scored_rows(before, when="before", text="wrong", prompt="2+2", wanted="4")
    second = scored_rows(after, when="after", text="4", prompt="2+2", wanted="4")
    return [{**row, "stage": "EvaluateBase", "n": 1} for row in first] + [
        {**row, "stage": "EvaluateWeights", "n": 2} for row in second
    ]


def write_metrics(blobs: FakeBlobs, run: str, rows: Sequence[Mapping[str, Any]]) -> None:
    text = "".join(f"{json.dumps({'n': at, 'stage': 'R', **row})}\n" for at, row in enumerate(rows))
    blobs.write(f"{run}/metrics.jsonl", text.encode())


def section(report: Report, title: str) -> Section:
    [found] = [section for section in report.sections if section.title == title]
    return found


def strong(report: Report) -> list[str]:
    blocks = section(report, "Verdict").blocks
    return [block.text for block in blocks if isinstance(block, Paragraph) and block.strong]


def test_a_run_is_compared_with_its_initial_model() -> None:
    blobs = FakeBlobs()
    write_evaluated_run(blobs, "basil", evaluated([0.0] * 40, [1.0] * 30 + [0.0] * 10))
    steps = [{"step": at, "loss": 3.0 - at, "tokens": 100, "seconds": at / 2} for at in range(3)]
    write_metrics(blobs, "basil", steps)
    report = build_report(blobs, ["basil"])
    [verdict] = strong(report)
    assert verdict.startswith("The trained model is better than the initial model on exact_match")
    assert "+0.750" in verdict
    [loss, speed] = section(report, "Curves").blocks
    assert isinstance(loss, Curves)
    assert loss.series["loss"] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert isinstance(speed, Curves)
    assert speed.series["basil"] == [(2, 200.0), (3, 200.0)]
    [answers] = section(report, "Answers side by side").blocks
    assert isinstance(answers, Answers)
    assert list(answers.answers[0].texts.values()) == ["wrong", "4"]
    assert answers.answers[0].expected == "4"


def test_the_verdict_says_where_the_held_out_loss_was_lowest() -> None:
    blobs = FakeBlobs()
    write_evaluated_run(blobs, "basil", scored_rows([1.0]))
    losses = {1: 3.0, 5: 2.5, 9: 2.75}
    rows = [{"step": step - 1, "held_out_loss": loss} for step, loss in losses.items()]
    write_metrics(blobs, "basil", rows)
    texts = [
        block.text
        for block in section(build_report(blobs, ["basil"]), "Verdict").blocks
        if isinstance(block, Paragraph)
    ]
    assert any("2.75 at step 9, and lowest, 2.5, at step 5" in text for text in texts)


def test_runs_are_compared_with_the_first() -> None:
    blobs = FakeBlobs()
    write_evaluated_run(blobs, "a", scored_rows([0.0] * 30 + [1.0] * 10))
    write_evaluated_run(blobs, "b", scored_rows([1.0] * 40))
    [verdict] = strong(build_report(blobs, ["a", "b"]))
    assert verdict.startswith("b is better than a on exact_match of test: +0.750")
    [verdict] = strong(build_report(blobs, ["b", "a"]))
    assert verdict.startswith("a is worse than b")
    assert "p = " in verdict or "p < " in verdict


def test_equal_runs_have_no_winner() -> None:
    blobs = FakeBlobs()
    for name in "ab":
        write_evaluated_run(blobs, name, scored_rows([0.0, 1.0] * 10))
    assert strong(build_report(blobs, ["a", "b"]))[0].startswith("Cannot tell whether b is better")


@pytest.mark.parametrize(
    "scores, verdict",
    [
        ([0.0] * 30, "Cannot tell whether any of 4 groups is better or worse than run0."),
        (
            [1.0] * 30,
            "Of 4 groups, 4 are better than run0 on at least one measure, and 0 are worse.",
        ),
    ],
)
def test_many_runs_have_one_verdict(scores: Sequence[float], verdict: str) -> None:
    blobs = FakeBlobs()
    names = [f"run{number}" for number in range(5)]
    for name in names:
        after = [0.0] * 30 if name == "run0" else scores
        write_evaluated_run(blobs, name, scored_rows(after))
    report = build_report(blobs, names)
    assert strong(report)[-1] == verdict
    tables = [each for each in section(report, "Verdict").blocks if isinstance(each, DataTable)]
    assert len(tables[-1].rows) == 5, "each against the first, and all at once"


def test_a_run_without_an_evaluation_has_a_reason() -> None:
    blobs = FakeBlobs()
    write_evaluated_run(blobs, "plain", [], status="failed", reason="the disk is full")
    report = build_report(blobs, ["plain"])
    assert strong(report)[0].startswith("No verdict: ")
    assert Paragraph("Not completed: plain (failed).") in section(report, "Verdict").blocks


def test_the_verdict_of_a_comparison_is_shown() -> None:
    blobs = FakeBlobs()
    write_evaluated_run(blobs, "compared", [])
    table = {"title": "Verdict", "columns": ["set", "verdict"], "rows": [["test", "b is better"]]}
    blobs.write("compared/tables.jsonl", f"{json.dumps({'n': 1, **table})}\n".encode())
    [verdict] = section(build_report(blobs, ["compared"]), "Verdict").blocks
    assert verdict == DataTable("Verdict", ("set", "verdict"), (("test", "b is better"),))


def test_a_single_evaluation_asks_for_a_baseline() -> None:
    blobs = FakeBlobs()
    write_evaluated_run(blobs, "graded", scored_rows([1.0, 0.0]))
    table = {
        "n": 1,
        "stage": "E",
        "title": "Test, 95 % intervals",
        "columns": ["n"],
        "rows": [["2"]],
    }
    blobs.write("graded/tables.jsonl", f"{json.dumps(table)}\n".encode())
    [verdict] = strong(build_report(blobs, ["graded"]))
    assert "kitchen report BASELINE graded" in verdict


def test_unknown_and_repeated_names_are_refused() -> None:
    blobs = FakeBlobs()
    write_evaluated_run(blobs, "basil", scored_rows([1.0]))
    with pytest.raises(ConfigError, match="did you mean 'basil'"):
        build_report(blobs, ["basi"])
    with pytest.raises(ConfigError, match="named twice"):
        build_report(blobs, ["basil", "basil"])
    with pytest.raises(ConfigError, match="name a run"):
        build_report(blobs, [])


def write_sweep(blobs: FakeBlobs, states: Sequence[str], text: str = "a=b") -> None:
    """Write the sweep s over a text and two seeds, whose points have these states."""
    points = []
    for at, _ in enumerate(states):
        values = {"seed": at % 2, "text": text if at > 1 else None}
        order = Order("recipes.evaluate:Evaluate", values, dict.fromkeys(values, "default"))
        digest = configuration_digest(order)
        points.append(LedgerPoint(at + 1, digest, f"s-{at + 1}", values, order))
    sweep = Sweep("s", "", {}, [point.digest for point in points], "local", 1, 1, "/")
    Ledger(blobs, "s").create(sweep, points)
    for point, state in zip(points, states, strict=True):
        if state != "waiting":
            rows = scored_rows([0.0, 1.0] * 9, text="x" * 1495 + text, prompt=text, wanted="")
            write_evaluated_run(blobs, point.run, rows, status=state)
            record = {**read_run(blobs, point.run), "order": order_json(point.order)}
            write_run(blobs, point.run, record)
            write_metrics(blobs, point.run, [{"step": 0, "loss": 2.0}, {"step": 1, "loss": 1.0}])


def test_points_that_did_not_complete_are_named() -> None:
    blobs = FakeBlobs()
    write_sweep(blobs, ["completed", "failed", "completed", "waiting"])
    report = build_report(blobs, ["s"])
    left_out = "Left out, because they have not completed: s-2 (failed), s-4 (waiting)."
    assert Paragraph(left_out) in section(report, "Verdict").blocks
    assert strong(report)[0].startswith("Cannot tell whether text a b is better or worse than text")
    with pytest.raises(ConfigError, match="'s-1' is named twice"):
        build_report(blobs, ["s", "s-1"])
    blobs = FakeBlobs()
    write_sweep(blobs, ["failed", "waiting"])
    with pytest.raises(ConfigError, match="no point of s has completed"):
        build_report(blobs, ["s"])
    with pytest.raises(ConfigError, match="did you mean 's-1' or 's'"):
        build_report(blobs, ["s1"])


def test_a_report_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-12345678-abcdefgh"
    blobs = FakeBlobs()
    write_sweep(blobs, ["completed"] * 4, secret)
    report = build_report(blobs, ["s"])
    assert secret in str(report)
    monkeypatch.setenv("SOME_API_KEY", secret)
    assert "sk-12" not in str(build_report(blobs, ["s"]))


def test_odd_values_of_a_record_are_shown() -> None:
    blobs = FakeBlobs()
    rows = scored_rows([1.0] * 3, text={"a": 1}, prompt=[1, {"role": "user"}], wanted=["x"])
    rows[0]["scores"] = ["odd"]
    write_evaluated_run(blobs, "basil", rows)
    metrics = [
        {"step": at, "loss": 1e308, "grad_norm": float("nan"), "tokens": "many", "seconds": at}
        for at in range(1000)
    ]
    write_metrics(blobs, "basil", metrics)
    report = build_report(blobs, ["basil"])
    [answers] = section(report, "Answers side by side").blocks
    assert isinstance(answers, Answers)
    assert answers.answers[0].texts == {"after training": "{'a': 1}"}
    assert "<svg" in render(report)


class Elements(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_texts_are_inert_in_html() -> None:
    elements = Elements(render(ODD_REPORT))
    assert not elements.names & {"script", "i", "img", "link", "iframe"}
    assert not {name for name in elements.attributes if name.startswith("on")}
    shown = ODD.replace("\x1b", r"\x1b")
    assert sum(shown in text for text in elements.texts) >= 10
    assert all(link.startswith("#") for link in elements.links)
    assert "src" not in elements.attributes


def test_a_code_block_in_markdown_is_not_closed_by_its_text() -> None:
    [(name, text), (picture, _)] = markdown_files(ODD_REPORT, "odd")
    assert (name, picture) == ("odd.md", "odd-1.svg")
    lines = text.decode().splitlines()
    fences = [line for line in lines if line.startswith("```")]
    assert "````text" in fences
    assert fences.count("````") == 1
    outside = [line for line in lines if line.startswith(("#", "|", "**"))]
    assert not any("<script>" in line.replace("\\<", "") for line in outside)


def test_latex_has_no_special_characters_of_texts() -> None:
    [(name, text), (picture, data)] = latex_files(ODD_REPORT, "odd")
    assert (name, picture) == ("odd.tex", "odd-1.pdf")
    assert data.startswith(b"%PDF")
    body = text.decode().partition("\\begin{document}")[2].replace("\\allowbreak{}", "")
    assert "100 \\%" in body
    assert "\\_a\\_" in body
    assert "{[}{*}]" in body
    assert "\\textbackslash{}b" in body
    assert "€ 中" in body


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("xelatex") is None, reason="needs xelatex")
def test_latex_compiles(tmp_path: Path) -> None:
    write_report(ODD_REPORT, [latex_files], tmp_path, "odd")
    command = ["xelatex", "-interaction=nonstopmode", "-halt-on-error", "odd.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.slow
def test_a_notebook_runs() -> None:
    [(name, text)] = notebook_files(ODD_REPORT, "odd")
    assert name == "odd.ipynb"
    notebook = nbformat.read(io.StringIO(text.decode()), 4)
    NotebookClient(notebook, timeout=120).execute()
    assert [bool(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"] == [
        False,
        True,
    ]


def test_a_notebook_is_the_same_for_the_same_report() -> None:
    assert notebook_files(ODD_REPORT, "odd") == notebook_files(ODD_REPORT, "odd")


def test_pictures_are_the_same_for_the_same_curves() -> None:
    curves = Curves("Loss", "loss", {"a": [(1, 2.0), (2, 1.0)]})
    assert draw(curves, "svg") == draw(curves, "svg")


def test_long_curves_are_thinned_to_means() -> None:
    points = [(step, float(step % 2)) for step in range(1, 1001)]
    few = thinned(points, 100)
    assert len(few) == 100
    assert few[-1] == (1000, 0.5)
    assert thinned(points[:50], 100) == points[:50]


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'html'"):
        find_renderers(["htm"])
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ConfigError, match="choose another folder"):
        write_report(ODD_REPORT, [markdown_files], blocked, "odd")
    [path] = write_report(ODD_REPORT, [markdown_files], tmp_path / "new", "odd")
    assert path.read_bytes() == markdown_files(ODD_REPORT, "odd")[0][1]
