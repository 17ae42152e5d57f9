# /// script
# requires-python = ">=3.11.5"
# dependencies = ["modeling-scratch[train]"]
#
# [tool.uv.sources]
# modeling-scratch = { git = "https://github.com/user/modeling_scratch" }
# ///
"""
Train in an environment that uv makes for this file (PEP 723). Arguments are those of `scratch train`:

    uv run docs/jobs/train.py
    hf jobs uv run --secrets HF_TOKEN docs/jobs/train.py hub.repository=user/name

Until the package is on an index, it comes from a git repository: put the address of yours above.
"""

from modeling_scratch.__main__ import main

if __name__ == "__main__":
    main("train")
