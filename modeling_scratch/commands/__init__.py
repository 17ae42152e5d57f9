"""The commands of `scratch`, one per module."""
