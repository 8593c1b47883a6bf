"""`python -m autotune`."""

from autotune.cli.app import main

main()
