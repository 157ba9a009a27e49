"""`python -m nereid` is the command `nereid`."""

from nereid.cli import main

if __name__ == "__main__":
    main()
