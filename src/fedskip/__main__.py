"""`python -m fedskip`: the command line, where its script is not on the path."""

from fedskip.cli import main

if __name__ == "__main__":
    main()
