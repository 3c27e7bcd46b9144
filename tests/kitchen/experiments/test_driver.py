"""The driver of a sweep, with an executor whose processes do what a test asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import pytest

from adapters.fake.blobs import FakeBlobs
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.order import Order
from kitchen.config.trust import NotTrusted
from kitchen.errors import ConfigError
from kitchen.experiments.driver import Driver, request_stop
from kitchen.experiments.executors import find_executor
from kitchen.experiments.ledger import Ledger, Point, PointStatus, Sweep, configuration_digest
from kitchen.experiments.sweep import device_ids, memory_size
from kitchen.experiments.worker import WorkerOptions
from kitchen.runs.lock import InUse, lease
from tests.support.sweeps import Scripted, record

STORE = AdapterChoice({"blobs": None})


def order(rate: float) -> Order:
    return Order("recipes.sl_basic:SlBasic", {"learning_rate": rate}, adapters={"training": "fake"})


def ledger(count: int = 3) -> Ledger:
    """Return the ledger of a new sweep of this many points."""
    made = Ledger(FakeBlobs(), "lr")
    orders = [order(0.1 * number) for number in range(1, count + 1)]
    points = [
        Point(at, configuration_digest(each), f"lr-{at}", {"learning_rate": at}, each)
        for at, each in enumerate(orders, 1)
    ]
    digests = [point.digest for point in points]
    axes = {"learning_rate": list(range(1, count + 1))}
    made.create(Sweep("lr", "recipes.sl_basic", axes, digests, "local", 1, 1, "/"), points)
    return made


def drive(
    of: Ledger, behave: Callable[[Point], int | None], *, jobs: int = 1, retry: bool = False
) -> tuple[Scripted, Sequence[PointStatus]]:
    executor = Scripted(of, behave)
    driver = Driver(of, executor, jobs, 2, STORE, WorkerOptions(), lambda status: None)
    return executor, driver.run(retry_failed=retry)


def test_every_point_runs_once() -> None:
    of = ledger()

    def complete(point: Point) -> int:
        record(of, point, "completed")
        return 0

    executor, statuses = drive(of, complete)
    assert executor.started == [1, 2, 3]
    assert {status.state for status in statuses} == {"completed"}
    again, _ = drive(of, complete)
    assert again.started == []


def test_a_failed_point_stays_failed_until_retried() -> None:
    of = ledger()
    works = {1, 3}

    def second_fails(point: Point) -> int:
        state = "completed" if point.number in works else "failed"
        record(of, point, state, "the loss is not finite")
        return 0 if point.number in works else 1

    _, statuses = drive(of, second_fails)
    assert [status.state for status in statuses] == ["completed", "failed", "completed"]
    assert statuses[1].reason == "the loss is not finite"
    assert drive(of, second_fails)[0].started == []
    works.add(2)
    executor, statuses = drive(of, second_fails, retry=True)
    assert executor.started == [2]
    assert {status.state for status in statuses} == {"completed"}


def test_a_killed_point_is_restarted() -> None:
    of = ledger(1)
    attempts: list[int] = []

    def fifth_time_lucky(point: Point) -> int:
        attempts.append(point.number)
        of.blobs.write(f"{point.run}/save/{len(attempts)}.json", b"{}")
        of.blobs.delete(f"{point.run}/save/{len(attempts) - 1}.json")  # old ones are deleted
        record(of, point, "completed" if len(attempts) == 5 else "running")
        return 0 if len(attempts) == 5 else -9

    _, statuses = drive(of, fifth_time_lucky)
    assert [status.state for status in statuses] == ["completed"]
    assert len(attempts) == 5


def test_a_process_that_always_dies_is_given_up() -> None:
    of = ledger(1)
    executor, [status] = drive(of, lambda point: -11)
    assert executor.started == [1, 1, 1]
    assert status.state == "failed"
    assert "killed by signal 11 3 times in a row" in status.reason
    assert "kitchen.experiments.worker lr" in status.reason


def test_a_failure_before_the_run_is_not_repeated() -> None:
    of = ledger(1)

    def cannot_start(point: Point) -> int:
        of.fail(point, "there is no file rows.jsonl")
        return 2

    executor, [status] = drive(of, cannot_start)
    assert executor.started == [1]
    assert (status.state, status.reason) == ("failed", "there is no file rows.jsonl")


def test_code_of_a_ledger_needs_trust() -> None:
    untrusted = Order("never_imported:Mine", {}, adapters={"training": "fake"})
    of = Ledger(FakeBlobs(), "lr")
    point = Point(1, configuration_digest(untrusted), "lr-1", {}, untrusted)
    of.create(Sweep("lr", "never_imported:Mine", {}, [point.digest], "local", 1, 1, "/"), [point])
    with pytest.raises(NotTrusted, match="--trust"):
        drive(of, lambda point: 0)
    assert of.statuses()[0].state == "waiting"


def test_a_request_stops_the_points_once() -> None:
    of = ledger()

    def stop_at_first(point: Point) -> None:
        assert request_stop(of)

    executor, statuses = drive(of, stop_at_first, jobs=2)
    assert executor.started == [1, 2]
    assert [job.stopped for job in executor.jobs] == [1, 1]
    assert {status.state for status in statuses} == {"waiting"}


def claim_from_elsewhere(of: Ledger, point: Point) -> str:
    """Write a claim on the run of a point, as a process on another host would."""
    name = f"{point.run}/lease/claim.json"
    of.blobs.write(name, b'{"host": "elsewhere", "pid": 1, "born": "1"}')
    return name


def test_the_claim_of_a_dead_job_is_dropped() -> None:
    of = ledger(1)

    def second_time_lucky(point: Point) -> int:
        first = of.status(point).state == "waiting"
        record(of, point, "running" if first else "completed")
        if first:
            claim_from_elsewhere(of, point)
        return -9 if first else 0

    executor, [status] = drive(of, second_time_lucky)
    assert executor.started == [1, 1]
    assert status.state == "completed"


@pytest.mark.parametrize("take_over", [True, False])
def test_claims_of_other_hosts_can_be_taken_over(take_over: bool) -> None:
    of = ledger(1)
    claim = claim_from_elsewhere(of, of.points()[0])
    changes: list[tuple[str, str]] = []

    def complete(point: Point) -> int:
        record(of, point, "completed")
        return 0

    def stop_waiting(status: PointStatus) -> None:
        changes.append((status.state, status.reason))
        if status.reason:
            driver.stop()

    executor = Scripted(of, complete)
    options = WorkerOptions(take_over=take_over)
    driver = Driver(of, executor, 1, 2, STORE, options, stop_waiting)
    [status] = driver.run()
    if take_over:
        assert changes == [("running", ""), ("completed", "")]
        assert of.blobs.read(claim) is None
    else:
        assert changes == [("running", "process 1 on elsewhere")]
        assert status.state == "running"


def test_points_share_the_devices() -> None:
    of = ledger(5)

    def complete_the_second(point: Point) -> int | None:
        if point.number in (1, 3):  # still running
            return None
        record(of, point, "completed")
        return 0

    executor = Scripted(of, complete_the_second)
    driver = Driver(of, executor, 3, 2, STORE, WorkerOptions(), lambda status: None)
    driver.devices = ("0", "1", "2")
    driver.on_change = lambda status: driver.stop() if len(executor.started) == 5 else None
    driver.run()
    assert executor.started == [1, 2, 3, 4, 5]
    # the devices of points 2 and 4 are free again
    assert executor.devices == ["0", "1", "2", "1", "1"]
    assert drive(ledger(1), lambda point: -11)[0].devices == ["all"] * 3


def test_points_wait_for_memory() -> None:
    of = ledger(4)
    free = iter([10, 6, 6, 3, 9, 9, 9, 9, 9, 9])
    waits: list[int] = []

    def behave(point: Point) -> int | None:
        if point.number == 1:  # it runs until another one waits
            return None
        record(of, point, "completed")
        return 0

    executor = Scripted(of, behave)

    def on_change(status: PointStatus) -> None:
        if status.state == "waiting":
            waits.append(status.point.number)
            record(of, of.points()[0], "completed")
            executor.jobs[0].code = 0

    driver = Driver(of, executor, 4, 2, STORE, WorkerOptions(), on_change)
    driver.memory_per_point, driver.free_memory = 4, lambda: next(free)
    driver.run()
    # 10 bytes have room for two points, of which the first runs on; 3 bytes for none
    assert executor.started == [1, 2, 3, 4]
    assert waits == [3]


def test_points_start_beside_those_of_a_killed_driver() -> None:
    of = ledger(2)
    first, second = of.points()

    def behave(point: Point) -> int:
        record(of, point, "completed")
        record(of, first, "completed")
        process.close()
        return 0

    executor = Scripted(of, behave)
    driver = Driver(of, executor, 2, 2, STORE, WorkerOptions(), never_waits)
    driver.memory_per_point, driver.free_memory = 4, lambda: 9
    with ExitStack() as process:  # of the first point, which outlived its driver
        process.enter_context(lease(of.blobs, first.run))
        driver.run()
    assert executor.started == [second.number]


def never_waits(status: PointStatus) -> None:
    assert status.state != "waiting"


@pytest.mark.parametrize("text", ["4", "lots", "-1GiB"])
def test_wrong_sizes_of_memory_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 4GiB"):
        memory_size(text)


def test_devices_are_named_once() -> None:
    assert device_ids("0, GPU-7f") == ["0", "GPU-7f"]
    assert device_ids("") == []
    for text in ("0,0", "0,"):
        with pytest.raises(ConfigError, match="name each GPU once"):
            device_ids(text)


def test_two_drivers_are_refused() -> None:
    of = ledger()
    with lease(of.blobs, "lr"), pytest.raises(InUse):
        drive(of, lambda point: 0)


def test_a_sweep_is_not_overwritten() -> None:
    of = ledger()
    with pytest.raises(ConfigError, match="kitchen sweep resume lr"):
        of.create(of.sweep(), of.points())


def test_the_run_of_a_point_has_its_settings() -> None:
    of = ledger()
    first, second, _ = of.points()
    record(of, Point(1, "", first.run, {}, second.order), "completed")
    with pytest.raises(ConfigError, match="has other settings than point 1"):
        of.statuses()


def test_a_damaged_record_fails_its_point_alone() -> None:
    of = ledger()

    def complete(point: Point) -> int:
        record(of, point, "completed")
        if point.number == 2:
            data = of.blobs.read(f"{point.run}/run.json") or b""
            of.blobs.write(f"{point.run}/run.json", data.replace(b"0.5", b"0.6"))
        return 0

    executor, statuses = drive(of, complete)
    assert executor.started == [1, 2, 3]
    assert [status.state for status in statuses] == ["completed", "failed", "completed"]
    assert "run.json is damaged" in statuses[1].reason


def test_a_damaged_ledger_is_named() -> None:
    of = ledger()
    name = f"lr/points/{of.points()[0].digest}.json"
    data = of.blobs.read(name) or b""
    of.blobs.write(name, data.replace(b"0.1", b"0.2"))
    with pytest.raises(ConfigError, match="is damaged"):
        of.points()
    with pytest.raises(ConfigError, match="there is no sweep 'lt'; there are: lr"):
        Ledger(of.blobs, "lt").sweep()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("loca", "did you mean 'local'"),
        ("command: srun", "has no {command}"),
        ("command: no-such-program {command}", "there is no program no-such-program"),
        ("command: 'srun {command}", "No closing quotation"),
    ],
)
def test_wrong_executors_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        find_executor(text)
