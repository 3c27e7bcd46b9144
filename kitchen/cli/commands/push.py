"""`kitchen push`."""

from __future__ import annotations

import shlex
from dataclasses import replace

from kitchen.artifacts.open import open_weights
from kitchen.artifacts.publish import publish, require_export
from kitchen.cli.console import console
from kitchen.config.request import AdapterChoice


def push(
    typed: str, repo: str, adapter_choice: AdapterChoice, *, message: str, private: bool | None
) -> int:
    """Publish weights as an adapter with a model card; `private` None leaves that to the hub's own
    setting.
    """
    flag = () if private is None else (f"hub.private={str(private).lower()}",)
    with open_weights(
        typed, replace(adapter_choice, settings=(*adapter_choice.settings, *flag))
    ) as opened:
        url = publish(
            opened.weights,
            repo,
            require_export(opened.training),
            opened.hub,
            opened.blobs,
            message=message,
            retry_hint=f": to try again: {_command(typed, repo, adapter_choice, message, private)}",
        )
    console().print(url, soft_wrap=True)
    return 0


def _command(
    typed: str, repo: str, adapter_choice: AdapterChoice, message: str, private: bool | None
) -> str:
    """As it was typed."""
    options = [("--" + port, name) for port, name in adapter_choice.names.items()]
    options += [("--set", text) for text in adapter_choice.settings]
    options += [("--runs", adapter_choice.runs), ("--message", message or None)]
    words = [word for option, value in options if value is not None for word in (option, value)]
    flag = [] if private is None else ["--private" if private else "--public"]
    return shlex.join(["kitchen", "push", typed, repo, *words, *flag])
