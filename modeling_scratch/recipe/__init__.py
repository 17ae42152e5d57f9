"""The typed recipe: all that one run needs."""
