"""Progress of work within a stage."""

from __future__ import annotations

import asyncio

from kitchen.backend.work import (
    Work,
    counted,
    gather_counted,
    listening_to_work,
    report_work,
    reporting,
)


def test_reports_reach_the_listeners_of_the_block_from_threads() -> None:
    seen: list[Work] = []

    async def answers() -> list[int]:
        await asyncio.to_thread(report_work, activity="Loading tiny")
        return await gather_counted([asyncio.sleep(0, n) for n in range(3)], "answers", each=2)

    report_work(1, 2, unit="nobody")
    with listening_to_work(seen.append):
        assert asyncio.run(answers()) == [0, 1, 2]
        with reporting("Reading"):
            pass
    report_work(1, 2, unit="nobody")
    counts = [Work(done, 6, "answers") for done in (0, 2, 4, 6)]
    reading = [Work(activity="Reading"), Work(1, 1, activity="Reading")]
    assert seen == [Work(activity="Loading tiny"), *counts, *reading]
    assert [work.count() for work in seen[:2]] == ["", "0/6 answers"]


def test_counting_items_yields_them_and_reports_no_short_loop() -> None:
    seen: list[Work] = []
    with listening_to_work(seen.append):
        assert list(counted("abc", "rows")) == ["a", "b", "c"]
    assert not seen
