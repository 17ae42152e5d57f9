"""Sharing a model folder on the Hub: its check, its card, and the push in one commit."""
