"""Defaults that the recipe and the command line share."""

SECONDS_TO_ANSWER = 60.0  # that the Hub may leave a push unanswered
