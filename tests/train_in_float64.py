"""train.py in double precision, for tests that compare runs; not a test itself."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from modeling_scratch.commands import train

torch.set_default_dtype(torch.float64)
train.main([argument for argument in sys.argv[1:] if argument != "--resume"], resume="--resume" in sys.argv)
