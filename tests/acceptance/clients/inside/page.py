"""A chat page of Gradio, which asks the server; prints its address and runs until it is stopped."""

from __future__ import annotations

import os
import sys

import gradio

page = gradio.load_chat(os.environ["OPENAI_BASE_URL"], sys.argv[1], os.environ["OPENAI_API_KEY"])
_, address, _ = page.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
print(f"at {address}", flush=True)
page.block_thread()
