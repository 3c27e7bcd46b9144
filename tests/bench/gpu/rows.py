"""The rows of the table of GPU benchmarks: what is measured, and for how long at most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from adapters.peft.settings import QUANTIZATION_PACKAGES
from tests.bench.agreement import AgreementCheck, losses_and_gradients
from tests.bench.benchmark import Benchmark, run_benchmark
from tests.bench.dpo import DEFAULT_LOSS, KitchenDpo, TrlDpo
from tests.bench.gpu.checks import checks
from tests.bench.gpu.decoding import decoding_1b, sampling_8b
from tests.bench.gpu.probes import probes
from tests.bench.gpu.profiles import profile
from tests.bench.gpu.workspace import NotMeasured, Workspace
from tests.bench.outcome import Target
from tests.bench.results import Result
from tests.bench.rl import KitchenRl, TrlGrpo
from tests.bench.sampling import KitchenSampling, SamplingWorkload, TransformersSampling
from tests.bench.sft import KitchenSft, Packs, Rows, TrlSft
from tests.bench.turns import Setup

Record = Mapping[str, Any]  # JSON


@dataclass(frozen=True)
class Row:
    """A row: its limit in seconds, the seconds it needs, and the function that measures it.

    It is started only if so much time is left. The figures are from docs/appendix/gpu.jsonl, and
    estimates for rows that were never measured.
    """

    limit: float
    needed: float
    run: Callable[[Workspace], Record]


def sft_8b(workspace: Workspace) -> Record:
    setup = workspace.setup("8b")
    return summary(
        _measure(workspace, setup, _sft_packs(workspace, setup, "sft_8b", Target(1.3, 1.8)))
    )


def sft_8b_4bit(workspace: Workspace) -> Record:
    if missing := [name for name in QUANTIZATION_PACKAGES if not find_spec(name)]:
        raise NotMeasured(
            f"4-bit bases need {' and '.join(QUANTIZATION_PACKAGES)}; not installed: "
            f"{', '.join(missing)}"
        )
    setup = replace(workspace.setup("8b"), quantization="4bit")
    benchmark = _sft_packs(workspace, setup, "sft_8b_4bit", Target(1.3, 2.0))
    return summary(_measure(workspace, setup, replace(benchmark, rivals=benchmark.rivals[:1])))


def sft_1b(workspace: Workspace) -> Record:
    setup, data = workspace.setup("1b"), Rows("B")
    rivals = [
        TrlSft(setup, data),
        TrlSft(setup, data, "TRL padding-free", padding_free=True),
        *_with_liger(TrlSft(setup, data, "TRL padding-free, liger", padding_free=True)),
    ]
    benchmark = Benchmark(
        "sft_1b",
        "SFT 1B, 8 rows of 64 to 512 tokens",
        KitchenSft(setup, data),
        tuple(rivals),
        losses_and_gradients(setup.dtype),
        Target(2.5, 4.0),
        gauge=workspace.gauge,
    )
    return summary(_measure(workspace, setup, benchmark))


def dpo_1b(workspace: Workspace) -> Record:
    setup = workspace.setup("1b")
    benchmark = Benchmark(
        "dpo_1b",
        "DPO 1B, 4 pairs, 256 + 2 × 64 tokens",
        KitchenDpo(setup, DEFAULT_LOSS),
        (TrlDpo(setup, DEFAULT_LOSS),),
        losses_and_gradients(setup.dtype),
        Target(2.5, 4.0),
        gauge=workspace.gauge,
    )
    return summary(_measure(workspace, setup, benchmark))


def rl_1b(workspace: Workspace) -> Record:
    setup = workspace.setup("1b")
    tolerance = 1e-3 if setup.dtype == "float32" else 3e-2
    benchmark = Benchmark(
        "rl_1b",
        "RL update 1B, 2 groups of 8, 256 + 64 tokens",
        KitchenRl(setup),
        (TrlGrpo(setup),),
        (*losses_and_gradients(setup.dtype), AgreementCheck("logprob", tolerance)),
        Target(3.0, 6.0),
        gauge=workspace.gauge,
    )
    return summary(_measure(workspace, setup, benchmark))


def sampling_1b(workspace: Workspace) -> Record:
    setup = workspace.setup("1b")
    work = SamplingWorkload(setup, prompts=4, count=8)
    benchmark = Benchmark(
        "sampling_1b",
        "Sampling 1B, 4 × 8 completions, 256 + 64 tokens",
        KitchenSampling(work),
        (
            TransformersSampling(work, "generate() merged", merged=True),
            TransformersSampling(work, "generate() merged, static", merged=True, static=True),
        ),
        (AgreementCheck("scored", 0.1),),
        Target(2.5, 5.0),
    )
    return summary(_measure(workspace, setup, benchmark))


def full_1b(workspace: Workspace) -> Record:
    setup, data = replace(workspace.setup("1b"), full=True), workspace.packs
    # float32 weights under autocast, as TRL's defaults: bfloat16 weights lose small updates
    exact = replace(setup, dtype="float32")
    packed = TrlSft(
        exact,
        data,
        "TRL packed, autocast",
        accumulate=data.count,
        padding_free=True,
        autocast=setup.dtype == "bfloat16",
    )
    benchmark = Benchmark(
        "full_1b",
        f"SFT of all weights 1B, {data.count * data.size:,} tokens a step",
        KitchenSft(setup, data),
        (packed, *_with_liger(packed)),
        losses_and_gradients(setup.dtype),
        Target(1.2, 1.5),
        share=Target(0.35, 0.5),
        gauge=workspace.gauge,
        together=False,
        notes=(_packs_note(data),),
    )
    return summary(_measure(workspace, setup, benchmark))


def summary(result: Result) -> dict[str, Any]:
    """Return the figures of a result, and for each side its rates and its memory."""
    *sides, last = result.records
    return {
        "title": result.title,
        "sound": result.sound,
        "figures": last["figures"],
        "differences": last["differences"],
        "sides": {side["side"]: _side(side) for side in sides},
        "notes": list(result.notes),
    }


def _side(record: Mapping[str, Any]) -> dict[str, Any]:
    steps = record["steps"]
    memory = {key: max(step[key] for step in steps) for key in ("peak_mb", "loaded_mb")}
    kept = ("seconds", "tokens_per_second", "share_of_gemm")
    return {**{key: record[key] for key in kept if key in record}, **memory}


def _measure(workspace: Workspace, setup: Setup, benchmark: Benchmark) -> Result:
    return run_benchmark(benchmark, workspace.options(setup), setup.steps)


def _sft_packs(workspace: Workspace, setup: Setup, name: str, target: Target) -> Benchmark:
    """Compare with TRL on packs; sides of this size run one after the other."""
    data = workspace.packs
    packed = TrlSft(setup, data, "TRL packed", accumulate=data.count, padding_free=True)
    return Benchmark(
        name,
        f"{_bits(setup)} 8B, {data.count * data.size:,} tokens a step, rows of {data.shortest} to "
        f"{data.longest}",
        KitchenSft(setup, data),
        (packed, *_with_liger(packed)),
        # TRL's LoRA weights are bfloat16 if the base is in 4 bits
        losses_and_gradients(setup.dtype if setup.quantization == "none" else "bfloat16"),
        target,
        Target(0.6, at_most=True),
        Target(0.4, 0.55),
        gauge=workspace.gauge,
        together=False,
        notes=(_packs_note(data),),
    )


def _bits(setup: Setup) -> str:
    return "SFT" if setup.quantization == "none" else "4-bit SFT"


def _packs_note(data: Packs) -> str:
    return (
        f"TRL gets the rows packed into {data.count} micro-batches of exactly {data.size} tokens; "
        "a larger one does not fit. The last quarter of each row is trained on. The steps of a "
        "side follow each other, because those of two sides do not fit into 80 GB together."
    )


def _with_liger(side: TrlSft) -> list[TrlSft]:
    """Return the side with liger-kernel, which needs Triton and thus a CUDA device."""
    if side.setup.device == "cpu" or not find_spec("liger_kernel"):
        return []
    name = side.name if side.name.endswith("liger") else f"{side.name}, liger"
    return [replace(side, name=name, liger=True)]


# those of the table of docs/benchmarks.md first, the most valuable ones of them before the others
ROWS: Mapping[str, Row] = MappingProxyType(
    {
        "checks": Row(85, 65, checks),
        "sft_8b": Row(200, 120, sft_8b),
        "sampling_8b": Row(110, 70, sampling_8b),
        "sft_8b_4bit": Row(130, 90, sft_8b_4bit),
        "full_1b": Row(100, 60, full_1b),
        "sft_1b": Row(80, 65, sft_1b),
        "dpo_1b": Row(60, 46, dpo_1b),
        "rl_1b": Row(60, 43, rl_1b),
        "sampling_1b": Row(130, 68, sampling_1b),
        "probes": Row(50, 30, probes),
        "decoding_1b": Row(50, 31, decoding_1b),
        "profile_sampling_1b": Row(40, 25, lambda workspace: profile(workspace, "sampling_1b")),
        "profile_sft_8b": Row(75, 45, lambda workspace: profile(workspace, "sft_8b")),
    }
)
