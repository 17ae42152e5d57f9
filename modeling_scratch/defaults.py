"""Defaults that recipes and commands share."""

SECONDS_TO_ANSWER = 60.0  # how long a push waits for an answer from the Hub
