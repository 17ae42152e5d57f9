"""A run, as the functions of training hand it around: what it works with, and how far it is. Data, no logic."""

from dataclasses import dataclass

import torch
from accelerate import Accelerator
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.streaming import GlobalBatches
from ..recipe.schema import Recipe
from .folder import RunFolder
from .log import RunLog
from .processes import StopRequest
from .progress import Progress

Tokenizers = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]


@dataclass
class RunData:
    """The data of a run."""

    pairs: dict[str, Dataset]  # text, by split; without the training pairs if these are streamed
    tokenizers: Tokenizers  # of source and target; one object if they share a vocabulary
    batches: GlobalBatches  # of the training pairs
    validation: Dataset  # the validation pairs, tokenized


@dataclass
class Run:
    """A run, on each of its processes."""

    recipe: Recipe
    accelerator: Accelerator
    stop: StopRequest
    folder: RunFolder
    data: RunData
    model: PreTrainedModel  # to evaluate and to store
    wrapped: nn.Module  # the same model as Accelerate has wrapped or sharded it, to train
    optimizer: torch.optim.Optimizer
    progress: Progress
    total: int  # updates in the whole run, unless patience ends it earlier
    log: RunLog
