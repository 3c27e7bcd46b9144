"""Profiles of one step of the local engine: its kernels by device time, and the CPU time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

from tests.bench.gpu.workspace import Workspace
from tests.bench.sampling import KitchenSampling, SamplingWorkload
from tests.bench.sft import KitchenSft
from tests.bench.turns import Side

KERNELS = 25


class ProfiledTurns:
    """The turns of a side that runs in this process; only the last step is profiled."""

    def __init__(self, steps: int) -> None:
        import torch
        from torch._C._profiler import _ExperimentalConfig
        from torch.profiler import ProfilerActivity, profile

        self._torch: Any = torch
        self._left, self.seconds, self._started = steps, 0.0, 0.0
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        # the engine computes in a separate thread
        config = _ExperimentalConfig(profile_all_threads=True)
        self.profiler: Any = profile(activities=activities, experimental_config=config)

    def loaded(self) -> None:
        pass

    def wait(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.profiler.start()
        self._started = perf_counter()

    def stop(self) -> None:
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()
        self.seconds = perf_counter() - self._started
        if self._left == 0:
            self.profiler.stop()

    def report(self, **values: Any) -> None:
        pass


def profile(workspace: Workspace, name: str) -> Mapping[str, Any]:
    """Profile the third step of a row; the table of kernels goes into profile-NAME.txt."""
    setup = replace(workspace.setup("8b" if "8b" in name else "1b"), steps=3)
    sides: Mapping[str, Side] = {
        "sft_8b": KitchenSft(setup, workspace.packs),
        "sampling_1b": KitchenSampling(SamplingWorkload(setup, prompts=4, count=8)),
    }
    turns: Any = ProfiledTurns(setup.steps)
    sides[name].run(turns)
    averages = turns.profiler.key_averages()
    device = [event.self_device_time_total for event in averages if _is_kernel(event)]
    cpu_ms = sum(event.self_cpu_time_total for event in averages) / 1e3
    launches = sum(event.count for event in averages if _is_kernel(event))
    key = "self_cpu_time_total" if workspace.dry else "self_device_time_total"
    table = averages.table(sort_by=key, row_limit=KERNELS, max_name_column_width=90)
    figures = {
        "seconds of the profiled step": turns.seconds,
        "device ms": sum(device) / 1e3,
        "CPU ms of all threads": cpu_ms,
        "kernels": launches,
    }
    lines = [f"{label}: {value:,.3f}" for label, value in figures.items()]
    kernels = sorted(filter(_is_kernel, averages), key=lambda event: -event.self_device_time_total)
    for event in kernels[:KERNELS]:
        ms = event.self_device_time_total / 1e3
        lines.append(f"{ms:10.3f} ms {event.count:7d} × {event.key[:110]}")
    (workspace.out / f"profile-{name}.txt").write_text("\n".join([*lines, "", table]) + "\n")
    return {"title": f"Profile of {name}", "figures": figures}


def _is_kernel(event: Any) -> bool:
    return "CUDA" in str(event.device_type)
