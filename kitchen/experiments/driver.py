"""The driver of a sweep: it starts the points, restarts killed ones, and stops them on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.machine import free_memory, gib
from kitchen.config.trust import check_trusted_order
from kitchen.errors import ConfigError
from kitchen.experiments.executors import Executor, Job, find_executor
from kitchen.experiments.ledger import Ledger, Point, PointStatus
from kitchen.experiments.search import Proposer
from kitchen.experiments.worker import WorkerOptions, worker_command
from kitchen.runs.lock import InUse, discard_claims, holders, in_use, lease, stop_holders
from kitchen.runs.resumable import newest_save_point

_POLL_SECONDS = 0.2
_MAX_DEATHS = 3  # of a point's process in a row, without a new save point
_DEVICES = "CUDA_VISIBLE_DEVICES"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Listener = Callable[[PointStatus], object]


@dataclass
class _Deaths:
    """Processes of a point that ended without an outcome, since its last save point."""

    save_point: str = ""
    count: int = 0


@dataclass
class Driver:
    """Runs the points of a sweep until all have completed or failed, or it is asked to stop.

    `on_change` receives the status of a point when its process starts or ends, or if it waits for
    memory or for another process; `on_stop` is called when the driver begins to stop.
    """

    ledger: Ledger
    executor: Executor
    jobs: int
    threads: int
    adapters: AdapterChoice
    options: WorkerOptions
    on_change: Listener
    on_stop: Callable[[], object] = bool
    devices: Sequence[str] = ()  # GPUs, of which each point sees one; empty: every point sees all
    proposer: Proposer | None = None  # of the further points of a search
    memory_per_point: int = 0  # bytes of this machine that a point needs; 0: not known
    free_memory: Callable[[], int | None] = free_memory
    stopping: bool = False
    _problem: ConfigError | None = None  # ends the sweep once its points have stopped
    _signals: int = 0  # requests to stop that the running points have received
    _requests: int = 0  # requests to stop
    _queue: list[Point] = field(default_factory=list)
    _running: dict[str, tuple[Point, Job | None]] = field(default_factory=dict)  # by digest
    # claims on the run of a point before its job was started, by digest
    _earlier_claims: dict[str, Collection[str]] = field(default_factory=dict)
    _deaths: dict[str, _Deaths] = field(default_factory=dict)
    _memory: int = 0  # bytes that were free when no job ran, for all points together
    _short_of_memory: str = ""  # digest of the point that waits for memory

    def run(self, *, retry_failed: bool = False) -> Sequence[PointStatus]:
        """Run all points that have not ended; raises InUse if another driver is at work."""
        with lease(self.ledger.blobs, self.ledger.name, take_over=self.options.take_over):
            self._clear_stop_request()
            self._collect(retry_failed)
            while self._queue or self._running or self._has_proposals():
                if not self.stopping and self._stop_requested():
                    self.stop()
                if self.stopping:
                    self._queue.clear()
                    self._stop_jobs()
                self._propose()
                self._start_jobs()
                self._reap()
                if self._running or self._short_of_memory:
                    time.sleep(_POLL_SECONDS)
            if self._problem is not None:
                raise self._problem
            return self.ledger.statuses()

    def stop(self) -> None:
        """Ask all points to save and end; after a second call they end without saving."""
        self.stopping = True
        self._requests += 1

    def _collect(self, retry_failed: bool) -> None:
        """Queue the points to run, and watch those whose processes outlived an earlier driver."""
        for point in self.ledger.points():
            if self.options.take_over:
                discard_claims(self.ledger.blobs, point.run, of_other_hosts=True)
            status = self.ledger.status(point)
            if status.state == "running":
                self._watch(status)
            elif status.state == "failed" and retry_failed:
                self.ledger.fail(point, "")
                self._queue.append(self.ledger.point(point.digest))
            elif status.state in ("waiting", "stopped"):
                self._queue.append(point)
        for point in self._queue:
            check_trusted_order(point.run, point.order, trust=self.options.trust)

    def _has_proposals(self) -> bool:
        """Return whether a search goes on."""
        return not self.stopping and self.proposer is not None and not self.proposer.is_complete()

    def _propose(self) -> None:
        """Queue the next point of a search, if nothing else is left for a free job.

        After an error, the running points save and end first.
        """
        if self._queue or len(self._running) >= self.jobs or not self._has_proposals():
            return
        assert self.proposer is not None
        try:
            point = self.proposer.propose()
        except ConfigError as error:
            self._problem = error
            self.stop()
            return
        if point is not None and point.failure:
            self.on_change(self.ledger.status(point))
        elif point is not None:
            self._queue.append(point)

    def _watch(self, status: PointStatus) -> None:
        """Wait for a point whose process is not a job of this driver, or not any more."""
        self._running[status.point.digest] = (status.point, None)
        by = ", ".join(holders(self.ledger.blobs, status.point.run).values())
        self.on_change(replace(status, reason=by))

    def _start_jobs(self) -> None:
        while self._queue and len(self._running) < self.jobs and self._has_memory():
            point = self._queue.pop(0)
            command = worker_command(self.ledger.name, point, self.adapters, self.options)
            environment = dict.fromkeys(_THREADS, str(self.threads))
            if device := self._free_device():
                environment[_DEVICES] = device
                self.ledger.write_device(point, device)
            self._earlier_claims[point.digest] = holders(self.ledger.blobs, point.run).keys()
            try:
                job = self.executor.start(command, environment)
            except OSError as error:
                program = error.filename or command[0]
                raise ConfigError(
                    f"the executor cannot start {program}: {error.strerror}"
                ) from error
            self._running[point.digest] = (point, job)
            self.on_change(PointStatus(point, "running"))

    def _has_memory(self) -> bool:
        """Return whether the next point fits beside the running ones, which may still grow."""
        self._short_of_memory, earlier = "", self._short_of_memory
        free = self.free_memory() if self.memory_per_point else None
        if free is None:
            return True
        if not self._running or not self._memory:  # or points of an earlier driver run
            self._memory = free
        needed = (len(self._running) + 1) * self.memory_per_point
        if needed <= self._memory and self.memory_per_point <= free:
            return True
        point = self._queue[0]
        self._short_of_memory = point.digest
        if earlier != point.digest:
            reason = (
                f"waiting for memory: with this point, {gib(needed)} are needed; "
                f"{gib(self._memory)} were free at the start, and {gib(free)} are free now"
            )
            self.on_change(PointStatus(point, "waiting", reason))
        return False

    def _free_device(self) -> str:
        """Return the device with the fewest running points; "" if the sweep names none."""
        if not self.devices:
            return ""
        of_points = self.ledger.devices()
        used = [of_points[digest] for digest in self._running if digest in of_points]
        return min(self.devices, key=used.count)

    def _reap(self) -> None:
        """Handle the processes that have ended."""
        for digest, (point, job) in list(self._running.items()):
            if job is not None:
                code = job.exit_code()
                if code is None:
                    continue
                if self.executor.confirms_death and code != InUse.exit_code:
                    earlier = self._earlier_claims[digest]
                    discard_claims(self.ledger.blobs, point.run, keep=earlier)
            status = self.ledger.status(self.ledger.point(digest))  # it may have recorded a failure
            if status.state == "running":  # of an earlier driver, or on another host
                if job is not None:
                    self._watch(status)
                continue
            del self._running[digest]
            if status.state in ("completed", "failed") or self.stopping:
                self.on_change(status)
                self._check(status)
            elif job is None:
                self._queue.append(point)
            else:
                self._restart(point, status, job.exit_code() or 0)

    def _check(self, status: PointStatus) -> None:
        """Stop a search whose metric a completed point does not have."""
        if self.proposer is None or self._problem is not None:
            return
        try:
            self.proposer.check(status)
        except ConfigError as error:
            self._problem = error
            self.stop()

    def _restart(self, point: Point, status: PointStatus, exit_code: int) -> None:
        """Queue a point whose process was killed, unless that happens again and again."""
        deaths = self._deaths.setdefault(point.digest, _Deaths())
        newest = newest_save_point(self.ledger.blobs, point.run)
        deaths.count = deaths.count + 1 if newest == deaths.save_point else 1
        deaths.save_point = newest
        if deaths.count >= _MAX_DEATHS:
            command = " ".join(worker_command(self.ledger.name, point, self.adapters, self.options))
            ended = (
                f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended ({exit_code})"
            )
            self.ledger.fail(
                point,
                f"its process {ended} {_MAX_DEATHS} times in a row before a new save point; to see "
                f"why, run {command}",
            )
            self.on_change(self.ledger.status(self.ledger.point(point.digest)))
            return
        self._queue.insert(0, point)
        self.on_change(status)

    def _stop_jobs(self) -> None:
        if not self._signals:
            self.on_stop()
        while self._signals < self._requests:
            self._signals += 1
            for digest, (point, job) in list(self._running.items()):
                if job is not None:
                    job.stop()
                elif not stop_holders(self.ledger.blobs, point.run):
                    del self._running[digest]  # on another host, and out of reach

    def _stop_requested(self) -> bool:
        return self.ledger.blobs.read(_stop_blob(self.ledger.name)) is not None

    def _clear_stop_request(self) -> None:
        self.ledger.blobs.delete(_stop_blob(self.ledger.name))


def driver_of(
    ledger: Ledger,
    adapters: AdapterChoice,
    options: WorkerOptions,
    on_change: Listener,
    on_stop: Callable[[], object] = bool,
) -> Driver:
    """Return the driver of a sweep, as its plan says; raises ConfigError or BackendError."""
    sweep = ledger.sweep()
    executor = find_executor(sweep.executor)
    executor.prepare()
    return Driver(
        ledger,
        executor,
        sweep.jobs,
        sweep.threads,
        adapters,
        options,
        on_change,
        on_stop,
        sweep.devices,
        Proposer(ledger, sweep.search, options.trust) if sweep.search else None,
        sweep.memory_per_point,
    )


def request_stop(ledger: Ledger) -> bool:
    """Ask the driver of a sweep to stop, on any host; return whether there is one.

    Without a driver, the points that still run on this host are asked.
    """
    if in_use(ledger.blobs, ledger.name):
        ledger.blobs.write(_stop_blob(ledger.name), b"{}")
        return True
    for point in ledger.points():
        stop_holders(ledger.blobs, point.run)
    return False


def _stop_blob(sweep: str) -> str:
    return f"{sweep}/stop.json"
