"""Unchanged clients of the OpenAI API against `kitchen serve`.

python -m tests.acceptance.clients [CHECK...]

A run is trained on the packaged model and evaluated with `kitchen eval`. Then the server offers it
to the OpenAI SDK, LangChain, lm-eval, inspect_ai and a chat page, each in a virtual environment in
build/. Prints each row when it is known, and the table at the end; exits with 1 if a check failed.
Logs are in build/clients/logs.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from functools import partial
from pathlib import Path

from tests.acceptance.clients.checks import CHECKS, Proof
from tests.acceptance.clients.items import MODEL, RUN, evaluated_run
from tests.acceptance.environments import BUILD, environment, install
from tests.acceptance.report import Report
from tests.acceptance.server import serving

LOGS = BUILD / "clients/logs"
CLIENTS = (
    "openai==3.57.0",
    "langchain-openai==1.7.4",
    "lm_eval[api]==0.4.13",
    "inspect_ai==0.3.285",
    "transformers==5.24.0",  # opens the tokenizer for lm-eval
)
PAGE = ("gradio==6.31.0", "openai==3.57.0")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.clients", description=__doc__)
    parser.add_argument(
        "checks", nargs="*", metavar="CHECK", help=f"default: all of {'; '.join(CHECKS)}"
    )
    chosen = parser.parse_args().checks or list(CHECKS)
    if unknown := [name for name in chosen if name not in CHECKS]:
        parser.error(f"unknown check {unknown[0]!r}; choose from {'; '.join(CHECKS)}")
    clients = environment("clients", " ".join(CLIENTS), lambda python: install(python, *CLIENTS))
    page = environment("page", " ".join(PAGE), lambda python: install(python, *PAGE))
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    report = Report("client", "", "seconds", "result")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answers = evaluated_run(folder)
        with serving(folder, "--model", MODEL) as (url, _):
            proof = Proof(folder, LOGS, url, answers, clients, page, MODEL, f"run:{RUN}")
            for check in chosen:
                report.check(check, partial(CHECKS[check], proof))
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
