"""Translating many lines: reading and writing them, and sharing the work among processes."""
