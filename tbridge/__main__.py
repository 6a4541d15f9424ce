"""`python -m tbridge`: the command line, where the `tbridge` script is not on the path."""

from tbridge.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
