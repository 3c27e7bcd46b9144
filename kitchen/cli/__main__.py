"""Entry point of `python -m kitchen.cli`."""

from kitchen.cli import main

main()
