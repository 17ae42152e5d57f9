"""A model's folder onto the Hub: the check, one commit, the card."""
