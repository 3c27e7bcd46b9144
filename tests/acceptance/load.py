"""A load test of `kitchen serve`: many concurrent clients.

python -m tests.acceptance.load [--minutes 5] [--sampling 64] [--training 4]

Each client has its own session with a `kitchen serve` of a tiny model. Prints a table; exits with 1
if a response was lost or wrong, or if the memory of the server grew.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.acceptance.server import KEY, serving
from tests.support.tiny_model import tiny_model

MAX_GROWTH = 1.1  # of the server's memory, from the first third of the test to the last
SNAPSHOT_EVERY = 8  # every 8th sampling client samples from weights that it trained


@dataclass(frozen=True)
class Report:
    """The result of one client."""

    kind: str
    done: int
    wrong: int
    slowest: float  # seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--sampling", type=int, default=64)
    parser.add_argument("--training", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = f"path:{tiny_model(Path(folder) / 'tiny', context=512)}"
        with serving(Path(folder), "--model", model) as (url, pid):
            reports, memory = _load(pid, url, model, options)
    return _summarise(reports, memory, options)


def _load(pid: int, url: str, model: str, options: Any) -> tuple[list[Report], list[float]]:
    """Return each client's report, and the server's memory in MB once a second."""
    deadline = time.time() + 60 * options.minutes
    kinds = [_sample] * options.sampling + [_train] * options.training
    memory: list[float] = []
    with ThreadPool(len(kinds)) as pool:
        pending = [
            pool.apply_async(kind, (url, model, number, deadline))
            for number, kind in enumerate(kinds)
        ]
        while time.time() < deadline:
            memory.append(_memory(pid))
            time.sleep(1)  # the interval of the memory samples
        return [report.get(300) for report in pending], memory


def _sample(url: str, model: str, number: int, deadline: float) -> Report:
    """Repeat one request to the model or to a snapshot; the response must not change."""
    from tinker import ServiceClient, types

    done = wrong = 0
    slowest = 0.0
    prompt = types.ModelInput.from_ints([3 + number % 50, 5, 7])
    with ServiceClient(base_url=url, api_key=KEY) as service:
        if number % SNAPSHOT_EVERY:
            sampler = service.create_sampling_client(base_model=model).result()
        else:
            sampler = (
                _trained(service, model, number).save_weights_and_get_sampling_client().result()
            )
        first: list[int] = []
        while time.time() < deadline:
            started = time.perf_counter()
            response = sampler.sample(
                prompt, 1, types.SamplingParams(max_tokens=16, seed=number)
            ).result()
            slowest = max(slowest, time.perf_counter() - started)
            tokens = list(response.sequences[0].tokens)
            first = first or tokens
            done, wrong = done + 1, wrong + (tokens != first)
    return Report("sampling", done, wrong, slowest)


def _train(url: str, model: str, number: int, deadline: float) -> Report:
    """Take steps on the same data; the loss must stay below its first value."""
    from tinker import ServiceClient, types

    done = wrong = 0
    slowest = 0.0
    with ServiceClient(base_url=url, api_key=KEY) as service:
        training, datum = _trained(service, model, number), _datum()
        first = training.forward([datum], "cross_entropy").result().metrics["loss:sum"]
        while time.time() < deadline:
            started = time.perf_counter()
            future = training.forward_backward([datum], "cross_entropy")
            training.optim_step(types.AdamParams(learning_rate=0.001)).result()
            loss = future.result().metrics["loss:sum"]
            slowest = max(slowest, time.perf_counter() - started)
            done, wrong = done + 1, wrong + (not loss <= first)
    return Report("training", done, wrong, slowest)


def _trained(service: Any, model: str, number: int) -> Any:
    """Return a training client that has taken one step."""
    from tinker import types

    training = service.create_lora_training_client(
        model, rank=8, seed=number, train_unembed=False
    ).result()
    training.forward_backward([_datum()], "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=0.001)).result()
    return training


def _datum() -> Any:
    from tinker import types

    return types.Datum(
        model_input=types.ModelInput.from_ints(list(range(3, 35))),
        loss_fn_inputs={"target_tokens": list(range(4, 36)), "weights": [1.0] * 32},
    )


def _memory(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


def _summarise(reports: list[Report], memory: list[float], options: Any) -> int:
    third = max(len(memory) // 3, 1)
    early, late = max(memory[:third]), max(memory[-third:])
    table = Table("clients", "kind", "requests", "wrong", "slowest, s")
    for kind in ("sampling", "training"):
        of_kind = [report for report in reports if report.kind == kind]
        table.add_row(
            str(len(of_kind)),
            kind,
            str(sum(report.done for report in of_kind)),
            str(sum(report.wrong for report in of_kind)),
            f"{max((report.slowest for report in of_kind), default=0):.2f}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"{options.minutes:g} minutes; memory of the server {early:.0f} MB in the first third, "
        f"{late:.0f} MB in the last"
    )
    idle = any(not report.done for report in reports)
    wrong = any(report.wrong for report in reports)
    return int(idle or wrong or late > MAX_GROWTH * early)


if __name__ == "__main__":
    sys.exit(main())
