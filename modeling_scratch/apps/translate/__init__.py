"""Translates lines of text, and shares batches among worker processes."""
