"""Translating lines of text, and sharing batches among worker processes."""
