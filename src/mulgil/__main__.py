"""`python -m mulgil`."""

from mulgil.cli import main

if __name__ == "__main__":
    main()
