"""Ctrl-C works in what the tests start."""

from __future__ import annotations

import signal

# who starts pytest in the background of a script hands it an ignored SIGINT, and it would hand it on
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
