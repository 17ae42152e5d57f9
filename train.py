"""Train a translator from a recipe, or resume a stopped run: same as `scratch train`."""

from modeling_scratch.__main__ import main

if __name__ == "__main__":
    main("train")
