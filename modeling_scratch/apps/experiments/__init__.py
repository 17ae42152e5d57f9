"""Experiments with runs: what one would do, how several compare, and how to improve one."""
