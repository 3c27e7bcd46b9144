"""The catalogue of all benchmarks, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from tests.bench.ceilings import ceilings
from tests.bench.core import CORE
from tests.bench.dpo import dpo
from tests.bench.results import BenchmarkFunction, name_for
from tests.bench.rl import rl
from tests.bench.rl_step import rl_step
from tests.bench.sampling import sampling
from tests.bench.sft import sft, sft_memory

BENCHMARKS: Mapping[str, BenchmarkFunction] = MappingProxyType(
    {
        "ceilings": ceilings,
        **{
            f"sft_{kind.lower()}_{dtype}": partial(sft, kind=kind, dtype=dtype)
            for kind in "AB"
            for dtype in ("float32", "bfloat16")
        },
        **{
            name_for(name, dtype): partial(benchmark, dtype=dtype)
            for name, benchmark in (
                ("sft_memory", sft_memory),
                ("dpo", dpo),
                ("rl", rl),
                ("rl_step", rl_step),
            )
            for dtype in ("float32", "bfloat16")
        },
        **{
            f"sampling_{prompts * count}_{dtype}": partial(
                sampling, prompts=prompts, count=count, dtype=dtype
            )
            for prompts, count in ((4, 8), (1, 1))
            for dtype in ("float32", "bfloat16")
        },
        **CORE,
    }
)
DEFAULT_BENCHMARKS = MappingProxyType(
    {  # by device
        "cpu": tuple(
            name
            for name in BENCHMARKS
            if not re.fullmatch("(sft_memory|dpo|rl|rl_step)_bfloat16", name)
        ),
        "cuda": ("ceilings", *(name for name in BENCHMARKS if name.endswith("bfloat16"))),
    }
)
