"""The recipe: everything that defines a run, typed and checked."""
