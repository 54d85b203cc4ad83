"""`python -m brimful`: the command line."""

from brimful.cli import app

if __name__ == "__main__":
    app(prog_name="brimful")
