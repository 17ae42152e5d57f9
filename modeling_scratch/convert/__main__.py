"""`python -m modeling_scratch.convert`: as `scratch convert`."""

from modeling_scratch.commands.convert import app

if __name__ == "__main__":
    app()
