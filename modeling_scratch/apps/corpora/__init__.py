"""Corpora: the files that people own, as training pairs with their origins; what is wrong with pairs; cleaning."""
