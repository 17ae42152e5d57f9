"""A run: its folder and what lies in it, and the processes that work on it together. Data, and no training."""
