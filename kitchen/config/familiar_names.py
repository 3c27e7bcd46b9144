"""Settings of TRL and Axolotl under their own names, with what takes their place here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

GUIDE = "docs/coming-from.md"
_NO_PADDING = "not needed: the local engine always processes sequences without padding"
_BATCH = "batch_size is the number of sequences per optimiser step"
_4BIT = "use --set training.quantization=4bit"
_HELD_OUT = "use reading.held_out, or for dataset a folder with a file per split"
_ROWS = "rename columns with reading.columns.OLD=NEW, or write the rows in another format"
_TEMPLATE = "use rendering.template=FILE"
_OBSERVE = "use the option --observe, such as --observe wandb:project=NAME"
_WARMUP = "not supported; use warmup_steps"
_PRECISION = "use --set training.dtype=bfloat16"
_DEVICES = "use --set training.devices=all, if the model fits on one GPU; else a Tinker server"

FAMILIAR: Mapping[str, str] = MappingProxyType(
    {
        "model_name_or_path": "use model",
        "base_model": "use model",
        "dataset_name": "use dataset",
        "train_dataset": "use dataset",
        "eval_dataset": _HELD_OUT,
        "test_datasets": _HELD_OUT,
        "formatting_func": _ROWS,
        "chat_template": _TEMPLATE,
        "chat_template_path": _TEMPLATE,
        "output_dir": "use the options --name and --runs",
        "datasets": "use dataset, or recipes.chat_sl for several data sets",
        "lora_r": "use lora_rank",
        "use_rslora": "use lora_kind=rslora",
        "use_dora": "use lora_kind=dora",
        "peft_use_rslora": "use lora_kind=rslora",
        "peft_use_dora": "use lora_kind=dora",
        "lora_target_modules": "use lora_layers, in recipes that train in epochs",
        "lora_model_dir": "use model=path:DIR",
        "load_in_4bit": _4BIT,
        "use_bnb_nested_quant": "use --set training.quantization=4bit-double",
        "bnb_4bit_use_double_quant": "use --set training.quantization=4bit-double",
        "adapter": f"LoRA is the default; for QLoRA, {_4BIT}; for all weights, use train=full",
        "per_device_train_batch_size": _BATCH,
        "micro_batch_size": _BATCH,
        "gradient_accumulation_steps": f"automatic: {_BATCH}",
        "gradient_checkpointing": "use --set training.checkpointing=true",
        "bf16": _PRECISION,
        "packing": _NO_PADDING,
        "padding_free": _NO_PADDING,
        "sample_packing": _NO_PADDING,
        "max_length": "use rendering.max_tokens",
        "max_seq_length": "use rendering.max_tokens",
        "sequence_len": "use rendering.max_tokens",
        "excess_length_strategy": "use rendering.overlong",
        "dataset_text_field": "rename the column: reading.columns.NAME=text",
        "completion_only_loss": "use rendering.train_on",
        "assistant_only_loss": "use rendering.train_on",
        "train_on_inputs": "use rendering.train_on",
        "roles_to_train": "use rendering.train_on",
        "num_train_epochs": "use epochs",
        "num_epochs": "use epochs",
        "lr": "use learning_rate",
        "lr_scheduler_type": "use schedule",
        "lr_scheduler": "use schedule",
        "warmup_ratio": _WARMUP,
        "max_grad_norm": "use grad_clip_norm",
        "eval_steps": "use eval_every",
        "eval_strategy": "use eval_every",
        "evals_per_epoch": "use eval_every, in optimiser steps",
        "logging_steps": "not needed: every step is in metrics.jsonl",
        "save_steps": "use save_every",
        "save_total_limit": "use keep",
        "load_best_model_at_end": "not needed: run:ID@best names the best weights",
        "metric_for_best_model": "use best.metric",
        "greater_is_better": "use best.greater_is_better",
        "early_stopping_patience": "use early_stopping.patience",
        "early_stopping_threshold": "use early_stopping.min_delta",
        "resume_from_checkpoint": "use the command kitchen resume RUN",
        "report_to": _OBSERVE,
        "wandb_project": _OBSERVE,
        "ref_model": "use reference",
        "desirable_weight": "use good_weight",
        "undesirable_weight": "use bad_weight",
        "teacher_model_name_or_path": "use teacher",
        "reward_funcs": "use reward",
        "reward_weights": "use reward, with a weight by name as in reward.math=1",
        "num_generations": "use group",
        "mask_truncated_completions": "use mask_truncated",
        "max_completion_length": "use playing.max_tokens",
        "generation_kwargs": "use playing.temperature and playing.stop",
        "epsilon": "use loss=ppo with loss_options.clip_low_threshold and clip_high_threshold",
        "epsilon_high": "use loss=ppo with loss_options.clip_high_threshold",
        "importance_sampling_level": "use loss=gspo for ratios of sequences",
        "loss_type": "use loss",
        "steps_per_generation": "use updates",
        "num_iterations": "not supported: each rollout is trained on once",
        "scale_rewards": "use advantages",
        "use_vllm": "not supported: the local engine or a server samples",
        "val_set_size": "use reading.held_out",
        "deepspeed": _DEVICES,
        "fsdp_config": _DEVICES,
    }
)


def replacement(name: str) -> str:
    """Return what takes the place of a setting of TRL or Axolotl; "" for an unknown name."""
    advice = FAMILIAR.get(name.replace("-", "_"))
    return f"{advice} (see {GUIDE})" if advice else ""
