"""Figures: training curves, attention maps, positional encodings, the architecture."""
