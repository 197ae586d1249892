"""The same as the `fastrun` program, for an interpreter whose programs are not on PATH."""

from fastrun.cli import main

main()
