"""`python -m freezethaw`: the command line."""

from freezethaw.cli import main

if __name__ == "__main__":
    main()
