"""`kitchen push`: weights published as an adapter with a model card."""

from __future__ import annotations

import shlex
from dataclasses import replace

from kitchen.artifacts.open import open_weights
from kitchen.artifacts.publish import publish, require_export
from kitchen.cli.console import console
from kitchen.config.adapter_choice import AdapterChoice


def push(
    weights: str,
    repo: str,
    adapters: AdapterChoice,
    *,
    message: str,
    private: bool | None,
    replace_card: bool,
) -> int:
    """Publish weights to a repository; `private` None leaves the visibility to the hub adapter."""
    visibility = () if private is None else (f"hub.private={str(private).lower()}",)
    chosen = replace(adapters, settings=(*adapters.settings, *visibility))
    command = _command(weights, repo, adapters, message, private)
    if replace_card:
        command += " --replace-card"
    with open_weights(weights, chosen) as opened:
        url = publish(
            opened.weights,
            repo,
            require_export(opened.training),
            opened.hub,
            opened.blobs,
            message=message,
            replace_card=replace_card,
            retry_hint=f": to try again: {command}",
        )
    console().print(url, soft_wrap=True)
    return 0


def _command(
    weights: str, repo: str, adapters: AdapterChoice, message: str, private: bool | None
) -> str:
    """Return the command as it was typed."""
    options = [(f"--{port}", name) for port, name in adapters.names.items()]
    options += [("--set", setting) for setting in adapters.settings]
    options += [("--runs", adapters.runs), ("--message", message or None)]
    words = ["kitchen", "push", weights, repo]
    for option, value in options:
        if value is not None:
            words += [option, value]
    if private is not None:
        words.append("--private" if private else "--public")
    return shlex.join(words)
