"""TRL's trainers with the settings of all benchmarks.

They have the same weights, the same AdamW and the same order of data, and step on request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from adapters.local.hub import LocalHub
from adapters.peft.model.base_model import keep_weights_as_stored
from tests.bench.kitchen_side import ADAM, START
from tests.bench.turns import Setup, Turns, Values


def base_model(setup: Setup) -> Any:
    """Load the base model and run it once, since weights are read from disk lazily."""
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    library: Any = AutoModelForCausalLM
    dtype, options = getattr(torch, setup.dtype), dict[str, Any]()
    if setup.quantization == "4bit":
        quantize: Any = BitsAndBytesConfig
        options["quantization_config"] = quantize(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
        )
    if setup.device != "cpu":  # without a copy in the memory of the CPU
        options["device_map"] = {"": setup.device}
    model = library.from_pretrained(LocalHub().fetch(setup.model), dtype=dtype, **options)
    if setup.quantization == "4bit":
        keep_weights_as_stored(model)  # in a dry run: else it could not be trained on a CPU
    with torch.no_grad():
        model(input_ids=torch.arange(4, device=setup.device)[None])
    return model


def fast_tokenizer(setup: Setup) -> Any:
    from transformers import AutoTokenizer

    library: Any = AutoTokenizer
    return library.from_pretrained(LocalHub().fetch(setup.model))


def settings(setup: Setup, batch: int, accumulate: int = 1) -> dict[str, Any]:
    """Return options for any TRL config, without evaluation, saving and reports.

    In bfloat16, the weights have that type and autocast is off.
    """
    return {
        "output_dir": str(setup.folder / "trl"),
        "use_cpu": setup.device == "cpu",
        "seed": setup.seed,
        "max_steps": setup.steps,
        "per_device_train_batch_size": batch // accumulate,
        "gradient_accumulation_steps": accumulate,
        "gradient_checkpointing": False,
        "bf16": False,
        "learning_rate": ADAM.learning_rate,
        "adam_beta1": ADAM.beta1,
        "adam_beta2": ADAM.beta2,
        "adam_epsilon": ADAM.eps,
        "weight_decay": ADAM.weight_decay,
        "max_grad_norm": ADAM.grad_clip_norm,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch_fused",
        "train_sampling_strategy": "sequential",
        "eval_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_strategy": "steps",
        "logging_steps": 1,  # outside the measured time
        "dataloader_pin_memory": False,
    }


def lora_config(setup: Setup) -> Any:
    """Return the configuration of the start weights; None if all weights are trained."""
    if setup.full:
        return None
    from peft import PeftConfig

    config = PeftConfig.from_pretrained(str(setup.folder / START))
    config.inference_mode = False
    return config


def train(trainer: Any, setup: Setup, turns: Turns, reported: Callable[[], Values] = dict) -> None:
    """Run `trainer.train()`, one step per turn; `reported` adds values to each report."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file
    from transformers import PrinterCallback

    if not setup.full:
        set_peft_model_state_dict(
            trainer.model, load_file(setup.folder / START / "adapter_model.safetensors")
        )
    trainer.remove_callback(PrinterCallback)
    turns.loaded()
    trainer.add_callback(_stepper(turns, reported))
    trainer.train()


def _stepper(turns: Turns, reported: Callable[[], Values]) -> Any:
    from transformers import TrainerCallback

    class Stepper(TrainerCallback):
        """A callback that waits for this side's turn before every step."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            turns.wait()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            turns.stop()

        def on_log(
            self,
            args: Any,
            state: Any,
            control: Any,
            logs: Mapping[str, float] | None = None,
            **kwargs: Any,
        ) -> None:
            if logs and "loss" in logs:  # the last entry is a summary without it
                turns.report(loss=logs["loss"], grad_norm=logs["grad_norm"], **reported())

    return Stepper()
