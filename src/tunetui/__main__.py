"""`python -m tunetui` is the `tunetui` command."""

from tunetui.cli import main

main()
