"""The commands that use weights: `kitchen sample`, `chat`, `eval`, `export` and `push`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Optional

import typer

from kitchen.cli.completion import runs as run_names
from kitchen.cli.options import (
    Blobs,
    Datasets,
    Debug,
    Hub,
    Json,
    Runs,
    Sampling,
    Set,
    Training,
    Trust,
    adapter_choice,
    examples,
    exit_with,
)
from kitchen.cli.setting_completion import settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kitchen.artifacts.open import SamplingParams

app = typer.Typer()

Weights = Annotated[
    str,
    typer.Argument(
        metavar="WEIGHTS",
        autocompletion=run_names,
        help="RUN[@STEP|final|best], or a model: NAME[@REVISION], packaged:NAME or path:DIR, or "
        "openai:MODEL on a server. The weights of a run are opened with the adapters of that run.",
    ),
]
MaxTokens = Annotated[
    int, typer.Option(metavar="N", min=1, help="Maximum number of tokens in an answer.")
]
Temperature = Annotated[
    float, typer.Option(metavar="T", min=0, help="Sampling temperature; 0 is greedy decoding.")
]
TopP = Annotated[
    float,
    typer.Option(
        metavar="P",
        help="Nucleus sampling: keep only the likeliest tokens, up to this total probability.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Random seed of sampling.")]
System = Annotated[str, typer.Option(metavar="TEXT", help="System message.", show_default=False)]
EvaluationData = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--dataset",
        metavar="NAME",
        help="Data set or file to evaluate on; by default the held-out rows of the run.",
        show_default=False,
    ),
]
EvaluationSettings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings of recipes.evaluate, such as rows=100 evaluation.max_tokens=96; values are "
        "YAML.",
        autocompletion=settings,
    ),
]
ReplaceCard = Annotated[
    bool,
    typer.Option(
        "--replace-card",
        help="Replace the model card (README.md) or licence at the hub, even if it was edited "
        "there.",
    ),
]
Private = Annotated[
    Optional[bool],  # noqa: UP045 Typer evaluates it
    typer.Option(
        "--private/--public",
        help="Visibility of a new repository.",
        show_default=False,
    ),
]


@app.command(
    epilog=examples(
        "kitchen sample RUN 'How do I cook a carrot?' --n 3",
        "kitchen sample packaged:smollm2-135m-instruct - --temperature 0 < prompt.txt",
    )
)
def sample(
    weights: Weights,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Prompt, or - to read it from standard input.")
    ],
    n: Annotated[int, typer.Option("--n", metavar="N", min=1, help="Number of completions.")] = 1,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.7,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="Text that ends a completion; repeatable."),
    ] = None,
    system: System = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete the text as it is, without the chat template.")
    ] = False,
    training: Training = None,
    sampling: Sampling = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    trust: Trust = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Sample completions of a prompt."""
    from kitchen.artifacts.completions import CompletionRequest
    from kitchen.cli.commands.sample import sample as sample_weights

    adapters = adapter_choice(
        runs, blobs, training, None, hub, adapter, sampling=sampling, trust=trust
    )
    params = _sampling_params(max_tokens, temperature, top_p, seed, stop or ())
    request = CompletionRequest(prompt, params, count=n, system=system, raw=raw)
    exit_with(lambda: sample_weights(weights, request, adapters, json=json), debug=debug, json=json)


@app.command(
    epilog=examples(
        "kitchen chat RUN", "kitchen chat packaged:smollm2-135m-instruct --system 'Be brief.'"
    )
)
def chat(
    weights: Weights,
    system: System = "",
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.7,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    training: Training = None,
    sampling: Sampling = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Chat with a model or with the weights of a run.

    Type /help in the conversation to see its commands.
    """
    from kitchen.cli.commands.chat import chat as chat_with

    adapters = adapter_choice(
        runs, blobs, training, None, hub, adapter, sampling=sampling, trust=trust
    )
    params = _sampling_params(max_tokens, temperature, top_p, seed)
    exit_with(lambda: chat_with(weights, adapters, params, system), debug=debug)


def _sampling_params(
    max_tokens: int, temperature: float, top_p: float, seed: int, stop: Sequence[str] = ()
) -> SamplingParams:
    from kitchen.artifacts.open import SamplingParams

    return SamplingParams(max_tokens, temperature, top_p, seed, tuple(stop))


@app.command(
    "eval",
    epilog=examples(
        "kitchen eval RUN",
        "kitchen eval RUN --dataset ingredients",
        "kitchen eval packaged:smollm2-135m-instruct --dataset rows.jsonl evaluation.max_tokens=96",
    ),
)
def evaluate(
    weights: Weights,
    settings: EvaluationSettings = None,
    dataset: EvaluationData = None,
    training: Training = None,
    sampling: Sampling = None,
    datasets: Datasets = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    trust: Trust = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Evaluate weights on held-out data.

    The evaluation is a new run of recipes.evaluate with these settings. The weights of a run are
    evaluated on the rows that the run held out, and with its rendering settings, unless you set
    others. Of another data set, all splits except "train" are evaluated, or "train" if it is the
    only one.
    """
    from kitchen.cli.commands.evaluate import evaluate as evaluate_weights
    from kitchen.cli.commands.run import OutputOptions

    adapters = adapter_choice(
        runs, blobs, training, datasets, hub, adapter, sampling=sampling, trust=trust
    )
    output = OutputOptions(json, debug)
    exit_with(
        lambda: evaluate_weights(weights, dataset, settings or (), adapters, output),
        debug=debug,
        json=json,
    )


@app.command(
    epilog=examples(
        "kitchen export RUN my-lora",
        "kitchen export RUN@best my-model --merged",
        "kitchen export RUN my-gguf --gguf q8_0",
    )
)
def export(
    weights: Weights,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to write; it must not exist yet.")
    ],
    merged: Annotated[
        bool,
        typer.Option("--merged", help="Merge the adapter into the model, and write it in float32."),
    ] = False,
    gguf: Annotated[
        Optional[Literal["f32", "f16", "q8_0"]],  # noqa: UP045
        typer.Option(
            "--gguf",
            metavar="f32|f16|q8_0",
            help="Merge the adapter into the model, and write a GGUF file of this type, with a "
            "Modelfile for Ollama.",
        ),
    ] = None,
    training: Training = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Export weights for other programs.

    The folder contains an adapter for peft or, with --merged, a whole model for transformers. After
    train=full, it contains a whole model either way. With --gguf, it contains a whole model for
    llama.cpp and Ollama.
    """
    from kitchen.cli.commands.export import export as export_weights

    adapters = adapter_choice(runs, blobs, training, None, hub, adapter, trust=trust)
    exit_with(
        lambda: export_weights(weights, folder, adapters, merged=merged, gguf=gguf), debug=debug
    )


@app.command(
    epilog=examples("kitchen push RUN OWNER/NAME --private", "kitchen push RUN@best OWNER/NAME")
)
def push(
    weights: Weights,
    repo: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub to publish to.")
    ],
    private: Private = None,
    message: Annotated[
        str, typer.Option(metavar="TEXT", help="Commit message.", show_default=False)
    ] = "",
    replace_card: ReplaceCard = False,
    training: Training = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Publish weights on a hub, as an adapter with a model card.

    A card or licence that somebody edited at the hub is kept.
    """
    from kitchen.cli.commands.push import push as push_weights

    adapters = adapter_choice(runs, blobs, training, None, hub, adapter, trust=trust)
    exit_with(
        lambda: push_weights(
            weights,
            repo,
            adapters,
            message=message,
            private=private,
            replace_card=replace_card,
        ),
        debug=debug,
    )
