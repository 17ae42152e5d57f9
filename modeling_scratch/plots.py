"""`python -m modeling_scratch.plots`: as `scratch figures`."""

from modeling_scratch.commands.figures import app

if __name__ == "__main__":
    app()
