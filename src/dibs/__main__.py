"""`python -m dibs`: the same as the command `dibs`."""

from dibs.cli.main import main

if __name__ == "__main__":
    main()
