"""`kitchen ui`: read-only pages over the runs."""

from __future__ import annotations

from kitchen.cli.commands.serve import server_class
from kitchen.cli.console import console
from kitchen.cli.streams import drop_unread_output
from kitchen.config.adapter_choice import DEFAULT_RUNS_FOLDER, AdapterChoice, open_blobs
from kitchen.secrets import printable


def serve_pages(host: str, port: int, adapters: AdapterChoice) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    drop_unread_output()
    server = server_class("view")(open_blobs(adapters))
    where = printable(adapters.runs or DEFAULT_RUNS_FOLDER)
    for address in server.serve(host, port):
        text = f"showing the runs in {where} at {address}; Ctrl-C stops it"
        console().print(text, soft_wrap=True)
    return 0
