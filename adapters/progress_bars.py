"""Progress bars of transformers, which a run does not show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bars_disabled() -> Iterator[None]:
    """Disable the progress bars of transformers within a block."""
    import transformers

    library: Any = transformers
    logging = library.utils.logging
    were_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_enabled:
            logging.enable_progress_bar()
