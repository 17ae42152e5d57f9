"""Data, from text to batches."""
