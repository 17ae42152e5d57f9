"""Train a translator from a recipe, resume a stopped run, or score a model: same as `scratch train`."""

from modeling_scratch.__main__ import main

if __name__ == "__main__":
    main("train")
