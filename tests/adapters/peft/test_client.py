"""The client, and the parts that it is made of: settings, LoRA targets, tokenizer and workers."""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.fake.blobs import FakeBlobs
from adapters.peft.client import PeftTraining
from adapters.peft.model.hf_attention import attention_forward
from adapters.peft.model.lora import target_paths
from adapters.peft.runtime.cpu import assume_cpu_flags, describe_cpu
from adapters.peft.runtime.lanes import Lanes
from adapters.peft.runtime.threads import default_threads
from adapters.peft.runtime.worker import COMPUTE_LOCK, FairLock, Worker, raise_if_closed, yield_turn
from adapters.peft.settings import Settings
from adapters.tokenizer import load_tokenizer
from kitchen.errors import BackendError, ConfigError, DataError, RunFailed
from kitchen.types import Lora
from stages.chat.prompts import render_prompt
from tests.support.imports import HEAVY, imported_by
from tests.support.polling import wait_until


def test_creating_the_client_imports_no_torch() -> None:
    program = "from adapters.peft.client import PeftTraining; PeftTraining(None, None)"
    assert imported_by(program)[1].isdisjoint(HEAVY)


@pytest.mark.parametrize(
    ("user_environment", "spin_count", "cache_capacity"),
    [
        ({}, "5000", "128"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None, "128"),
        ({"GOMP_SPINCOUNT": "7", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "9"}, "7", "9"),
    ],
)
def test_environment_defaults_respect_the_user(
    user_environment: dict[str, str], spin_count: str | None, cache_capacity: str
) -> None:
    program = (
        "import json, os; from adapters.peft.client import PeftTraining; PeftTraining(None, None); "
        "print(json.dumps(dict(os.environ)))"
    )
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    environment = {
        name: value for name, value in os.environ.items() if name not in names
    } | user_environment
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, env=environment, capture_output=True
    )
    seen_environment = json.loads(ended.stdout)
    assert [seen_environment.get(name) for name in names] == [
        user_environment.get("OMP_WAIT_POLICY", "PASSIVE"),
        spin_count,
        cache_capacity,
    ]


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (None, None),
        ({"hidden_size": 64}, 64),
        ({"text_config": {"hidden_size": 48}, "vision_config": {}}, 48),
        ({"text_config": None}, None),
        ({"hidden_size": "wide"}, None),
    ],
)
def test_hidden_size_is_read_from_the_configuration(
    config: Any, size: int | None, client: Callable[..., PeftTraining], tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert client().hidden_size(f"path:{tmp_path}") == size


def test_hidden_size_of_an_adapter_is_its_base_s(
    client: Callable[..., PeftTraining], tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "tiny"}')
    assert client().hidden_size(f"path:{tmp_path}") == 64
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(
        BackendError, match=r"config\.json is not JSON .*fetch or export the model again"
    ):
        client().hidden_size(f"path:{tmp_path}")


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"dtype": "bfloat"}, "did you mean 'bfloat16'"),
        ({"device": "gpu"}, "device is 'gpu'"),
        ({"quantization": "8bit"}, "did you mean '4bit'"),
        ({"quantization": "4bit", "dtype": "float64"}, "quantization=4bit .* use float32"),
        ({"micro_batch_tokens": -1}, "micro_batch_tokens is -1"),
        ({"sample_batch": 0}, "sample_batch"),
        ({"threads": -1}, "threads"),
        ({"checkpointing": "yes"}, "checkpointing"),
    ],
)
def test_invalid_settings_are_refused(
    setting: dict[str, Any], text: str, client: Callable[..., PeftTraining]
) -> None:
    with pytest.raises(ConfigError, match=text):
        client(**setting)


@pytest.mark.parametrize(
    "lora",
    [
        Lora(rank=0),
        Lora(dropout=1.0),
        Lora(alpha=0.0),
        Lora(train_attn=False, train_mlp=False),
        Lora(dropout=0.1, train_unembed=True),
    ],
)
def test_invalid_lora_settings_are_refused(lora: Lora, client: Callable[..., PeftTraining]) -> None:
    with pytest.raises(ConfigError):
        client().open("tiny", lora)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the hardware has it")
def test_missing_hardware_is_named(client: Callable[..., PeftTraining]) -> None:
    with pytest.raises(BackendError, match=r"training.device=cuda: .*; set training.device=cpu,"):
        client(device="cuda").open("tiny", Lora())


@pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_missing_quantization_names_its_extra(client: Callable[..., PeftTraining]) -> None:
    training = client(quantization="4bit")
    with pytest.raises(BackendError, match=r"bitsandbytes.* 'crucible-kitchen\[4bit\]'"):
        training.find("tiny")
    with pytest.raises(BackendError, match=r"set training\.device=cpu"):
        client(quantization="4bit", device="mps").find("tiny")


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (("bitsandbytes",), "needs bitsandbytes, which is not installed"),
        (("bitsandbytes", "accelerate"), "needs bitsandbytes and accelerate, which are not"),
    ],
)
def test_all_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, missing: Sequence[str], expected: str
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)  # as if it was not installed
    with pytest.raises(BackendError, match=expected):
        Settings(quantization="4bit").check_device()


def test_facts_describe_model_and_machine(opened: Callable[..., Any]) -> None:
    facts = opened(dtype="float64").facts()
    assert facts["model"] == "tiny"
    assert facts["model.sha256"] == "5" * 64
    assert facts["model.dtype"] == "float64"
    assert int(facts["model.parameters"]) > 90_000
    assert facts["machine.device"] == "cpu"
    assert facts["machine.threads"] == facts["machine.devices"] == "1"
    assert facts["machine.processor"].startswith(f"{platform.machine()} ")
    assert facts["machine.torch"] == torch.__version__
    assert "model.weights" not in facts


def test_facts_say_where_packaged_weights_come_from(client: Callable[..., PeftTraining]) -> None:
    session = client().open("packaged:tiny", Lora(rank=1))
    try:
        assert session.facts()["model.weights"] == "Weights of packaged:tiny"
    finally:
        session.close()


@pytest.mark.parametrize(
    ("flags", "extensions"),
    [
        ("GenuineIntel amx_bf16 avx512_bf16 sse2", " GenuineIntel avx512_bf16 amx_bf16"),
        ("AuthenticAMD", " AuthenticAMD"),
        ("bf16 sve", " bf16 sve"),
        ("", ""),
    ],
)
def test_cpu_description_lists_maker_and_extensions(flags: str, extensions: str) -> None:
    machine = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    with assume_cpu_flags(*flags.split()):
        assert describe_cpu() == machine + extensions


def test_target_paths_by_setting(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

    llama = AutoModelForCausalLM.from_pretrained(folder)
    attention = target_paths(llama, Lora(train_mlp=False))
    assert attention[:4] == [f"model.layers.0.self_attn.{side}_proj" for side in "qkvo"]
    assert len(attention) == 8
    assert {path.rpartition(".")[2] for path in target_paths(llama, Lora(train_attn=False))} == {
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    assert target_paths(llama, Lora(train_attn=False, train_mlp=False, train_unembed=True)) == [
        "lm_head"
    ]
    gpt2 = GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=32)
    )
    assert target_paths(gpt2, Lora()) == [
        f"transformer.h.0.{path}"
        for path in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    ]
    with pytest.raises(BackendError, match="no linear layer"):
        target_paths(gpt2.transformer.wte and _Plain(), Lora())


class _Plain(torch.nn.Module):
    def get_output_embeddings(self) -> None:
        return None


def test_gpt2_trains_and_samples(tmp_path: Path, folder: Path, weighted: list[Any]) -> None:
    """GPT-2 keeps its matrices the other way round, has biases and learned positions."""
    import shutil

    from transformers import GPT2Config, GPT2LMHeadModel

    from kitchen.types import Adam

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=300, n_positions=64)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / file, tmp_path)

    class Hub:
        def fetch(self, model: str) -> Path:
            return tmp_path

        def sha256(self, model: str) -> str:
            return "2" * 64

    hub: Any = Hub()
    session = PeftTraining(hub, FakeBlobs(), device="cpu", dtype="float32", threads=1).open(
        "gpt2", Lora(rank=4)
    )
    losses = []
    for _ in range(8):
        losses.append(session.forward_backward(weighted).result().metrics["loss:sum"])
        session.optim_step(Adam(0.02))
    assert losses[-1] < losses[0] - 1
    sampler = session.snapshot().result()
    [drawn] = sampler.sample(weighted[0].tokens, max_tokens=10).result()
    scored = sampler.logprobs(np.concatenate([weighted[0].tokens, drawn.tokens])).result()
    np.testing.assert_allclose(drawn.logprobs, scored[-len(drawn.tokens) :], atol=1e-4)
    session.close()


@pytest.mark.parametrize(("length", "source"), [(12, 12), (1, 9)])
def test_attention_matches_transformers(length: int, source: int) -> None:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(3, heads, size, 16, generator=generator)
        for heads, size in ((6, length), (2, source), (2, source))
    )
    mask = None if length > 1 else torch.rand(3, 1, 1, source, generator=generator) > 0.3
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 3, True  # type: ignore[assignment]
    got, _ = attention_forward(module, query, key, value, mask, scaling=0.3)
    expected, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    torch.testing.assert_close(got, expected)


def test_the_tokenizer_reads_writes_and_renders(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("two eggs, divided")) == "two eggs, divided"
    assert tokenizer.stop_ids == (2,)
    assert tokenizer.end_id == 2
    turn = [{"role": "user", "content": "hi"}]
    prompt, conversation = tokenizer.render(turn, answer=True), tokenizer.render(turn)
    assert (
        tokenizer.decode(prompt, special=True)
        == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt[: len(conversation)].tolist() == conversation.tolist()
    assert prompt.dtype == np.int64


def test_tools_are_passed_to_templates_that_use_them(folder: Path, tmp_path: Path) -> None:
    import shutil

    tool = {
        "type": "function",
        "function": {"name": "count_eggs", "description": "Counts.", "parameters": {}},
    }
    turn, able = [{"role": "user", "content": "hi"}], shutil.copytree(folder, tmp_path / "able")
    template = able / "chat_template.jinja"
    template.write_text(
        "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}" + template.read_text()
    )
    plain, reads = load_tokenizer(folder), load_tokenizer(able)
    assert (plain.tools, reads.tools) == (False, True)
    template.write_text(
        "{% generation %}{{ messages[0]['tools'] }}{% endgeneration %}tools{{ 'tools' }}"
    )
    assert not load_tokenizer(able).tools, "it knows the word, and reads no tools"
    assert "count_eggs" in reads.decode(reads.render(turn, answer=True, tools=[tool]))
    assert np.array_equal(reads.render(turn, answer=True), plain.render(turn, answer=True))
    with pytest.raises(DataError, match="no place for tools"):
        plain.render(turn, tools=[tool])
    assert "count_eggs" in reads.decode(render_prompt(turn, reads, tools=[tool]))
    assert "count_eggs" in plain.decode(render_prompt(turn, plain, tools=[tool]))


def test_template_dates_are_fixed(folder: Path, tmp_path: Path) -> None:
    """The template asks for the date as that of Llama 3 does."""
    import shutil

    dated = shutil.copytree(folder, tmp_path / "dated")
    template = dated / "chat_template.jinja"
    template.write_text(
        "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% "
        "endif %}"
        "Today Date: {{ date_string }}\n" + template.read_text()
    )
    tokenizer = load_tokenizer(dated)
    assert "Today Date: 26 Jul 2024" in tokenizer.decode(
        tokenizer.render([{"role": "user", "content": "hi"}])
    )


def test_without_a_template_chat_is_refused(folder: Path, tmp_path: Path) -> None:
    import shutil

    bare = shutil.copytree(folder, tmp_path / "bare")
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer = load_tokenizer(bare)
    assert not tokenizer.chat
    with pytest.raises(DataError, match="no chat template"):
        tokenizer.render([{"role": "user", "content": "hi"}])
    with pytest.raises(BackendError, match="no tokenizer"):
        load_tokenizer(tmp_path / "nowhere")


def test_a_worker_keeps_order_and_reports_errors() -> None:
    worker, done = Worker("test"), list[int]()
    futures = [worker.submit(lambda number=number: done.append(number)) for number in range(20)]  # type: ignore[misc]
    failing = worker.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failing.result(timeout=60)
    assert done == list(range(20))
    assert all(future.done() for future in futures)
    worker.close()


def test_closing_a_worker_fails_waiting_jobs() -> None:
    worker, go = Worker("test"), threading.Event()
    started = threading.Event()

    def run() -> bool:
        started.set()
        return go.wait(60)

    running, waiting = worker.submit(run), worker.submit(lambda: True)
    assert started.wait(60)
    worker.close()
    go.set()
    assert running.result(timeout=60)
    with pytest.raises(RunFailed, match="before this call had its turn"):
        waiting.result(timeout=60)


def test_a_running_job_stops_when_its_worker_closes() -> None:
    worker, started = Worker("test"), threading.Event()

    def run() -> None:
        started.set()
        while True:
            raise_if_closed()

    running = worker.submit(run)
    assert started.wait(60)
    worker.close()
    with pytest.raises(RunFailed, match="while this call was running"):
        running.result(timeout=60)


def test_an_interrupted_process_exits_cleanly() -> None:
    program = """
import threading
from adapters.peft.runtime import worker
from adapters.peft.runtime.worker import Worker, raise_if_closed
worker.EXIT_TIMEOUT = 600.0
started = threading.Event()
def run():
    started.set()
    while True:
        raise_if_closed()
worker = Worker("test")
worker.submit(run)
started.wait(60)
raise SystemExit(130)
"""
    assert (
        subprocess.run([sys.executable, "-c", program], timeout=300, check=False).returncode == 130
    )


def test_a_forgotten_worker_ends_its_thread() -> None:
    worker = Worker("soon forgotten")
    worker.submit(lambda: None).result(timeout=60)
    del worker
    gc.collect()
    wait_until(lambda: all(t.name != "soon forgotten" for t in threading.enumerate()))


def test_yielding_work_lets_others_run() -> None:
    long, other, started, order = Worker("long"), Worker("other"), threading.Event(), list[str]()

    def work() -> None:
        started.set()
        wait_until(lambda: COMPUTE_LOCK.waiting() > 0)
        order.append("before")
        yield_turn()
        order.append("after")
        yield_turn()  # nobody waits

    running = long.submit(work)
    assert started.wait(60)
    other.submit(lambda: order.append("other")).result(timeout=60)
    running.result(timeout=60)
    assert order == ["before", "other", "after"]
    for worker in (long, other):
        worker.close()


@pytest.mark.parametrize("handed_over", [False, True])
def test_an_interrupted_waiter_blocks_nobody(
    handed_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = FairLock()

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if handed_over:
                turns.__exit__()  # the lock is handed over at this very moment
            raise KeyboardInterrupt

    turns.__enter__()
    # no other way to raise Ctrl-C at this very moment: the lock creates the event inside of itself
    monkeypatch.setattr(threading, "Event", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        turns.__enter__()
    assert not turns.waiting()
    assert turns.locked() is not handed_over


def test_downloads_do_not_hold_the_compute_lock() -> None:
    slow, other, there = Worker("slow"), Worker("other"), threading.Event()
    fetching = slow.submit(lambda: there.wait(60), exclusive=False)
    assert other.submit(lambda: 1).result(timeout=60) == 1
    there.set()
    assert fetching.result(timeout=60)
    for each in (slow, other):
        each.close()


@pytest.mark.parametrize(("threads", "shares"), [(2, [1, 1]), (3, [2, 1]), (5, [3, 2])])
def test_lanes_share_all_threads(threads: int, shares: list[int]) -> None:
    before = default_threads()
    assert Lanes(2, threads).map(lambda *_: torch.get_num_threads(), [0, 1]) == shares
    assert default_threads() == before


def test_a_closed_session_releases_its_weights(opened: Callable[..., Any]) -> None:
    session = opened()
    trainer = weakref.ref(session.submit(lambda trainer: trainer).result())
    session.close()

    def is_released() -> bool:
        gc.collect()
        return trainer() is None

    wait_until(is_released)
    with pytest.raises(RunFailed, match="the session is closed"):
        session.facts()


def test_yielding_without_the_lock_does_nothing() -> None:
    yield_turn()
    worker = Worker("still works")
    assert worker.submit(lambda: 1).result(timeout=60) == 1
    worker.close()


def test_busy_workers_take_turns() -> None:
    workers, order = [Worker(name) for name in "ab"], list[str]()

    def job(name: str) -> None:
        order.append(name)
        wait_until(lambda: COMPUTE_LOCK.waiting() > 0 or len(order) >= 30)

    futures = [
        worker.submit(partial(job, name))
        for name, worker in zip("ab", workers, strict=True)
        for _ in range(20)
    ]
    for future in futures:
        future.result(60)
    assert not {"aa", "bb"} & {one + other for one, other in pairwise(order[:30])}
    for worker in workers:
        worker.close()
