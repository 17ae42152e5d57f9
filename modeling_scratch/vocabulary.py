"""Token ids and vocabularies: ids that do not exist are refused, and vocabularies can be resized."""

import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.import_utils import is_tracing


def check_ids(name: str, ids: torch.Tensor, vocab_size: int, ignored: int | None = None) -> None:
    """
    Raise ValueError for ids outside [0, vocab_size), other than `ignored`. Only where looking costs nothing: in eager
    mode on the CPU, never waiting for a device and never in a graph.
    """
    if ids.device.type != "cpu" or ids.numel() == 0 or is_tracing(ids):
        return
    wrong = (ids < 0) | (ids >= vocab_size)
    if ignored is not None:
        wrong &= ids != ignored
    if wrong.any():
        also = "" if ignored is None else f", or {ignored} where they are to be ignored"
        raise ValueError(
            f"{name} holds {ids[wrong][0].item()}; ids must be in [0, {vocab_size}), the vocabulary{also}. Does the "
            "tokenizer belong to this model?"
        )


def resize_vocabulary(
    model: PreTrainedModel, new_num_tokens: int | None, pad_to_multiple_of: int | None, mean_resizing: bool
) -> nn.Embedding:
    """
    What `resize_token_embeddings` resizes: the source's embedding, and, where there is one vocabulary
    (`decoder_vocab_size` is None, or the embeddings are shared), the target's with its output projection.
    """
    embedding = model._get_resized_embeddings(
        model.get_input_embeddings(), new_num_tokens, pad_to_multiple_of, mean_resizing
    )
    config = model.config
    if config.share_encoder_decoder_embeddings or config.decoder_vocab_size is None:
        _resize_target(model, embedding.num_embeddings, None, mean_resizing)
        if config.decoder_vocab_size is not None:
            config.decoder_vocab_size = embedding.num_embeddings
    return embedding


def resize_target_vocabulary(
    model: PreTrainedModel, new_num_tokens: int, pad_to_multiple_of: int | None, mean_resizing: bool
) -> nn.Embedding:
    """
    What `resize_decoder_token_embeddings` resizes: the target's embedding and output projection, not the source's.

    Raises:
        ValueError: source and target share their embedding.
    """
    if model.config.share_encoder_decoder_embeddings:
        raise ValueError(
            "resize_decoder_token_embeddings needs an embedding of the target's own, but "
            "share_encoder_decoder_embeddings is True; use resize_token_embeddings"
        )
    embedding = _resize_target(model, new_num_tokens, pad_to_multiple_of, mean_resizing)
    model.config.decoder_vocab_size = embedding.num_embeddings
    model.tie_weights()
    return embedding


def _resize_target(
    model: PreTrainedModel, new_num_tokens: int, pad_to_multiple_of: int | None, mean_resizing: bool
) -> nn.Embedding:
    embedding = model._get_resized_embeddings(
        model.get_decoder().embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
    )
    head = model.get_output_embeddings()
    if head is not None:
        rows = embedding.num_embeddings
        head = model._get_resized_lm_head(head, rows, mean_resizing=mean_resizing)
        if head.bias is not None and len(head.bias) != rows:  # a tied weight has grown already, its bias has not
            kept = head.bias.data[:rows]
            head.bias.data = nn.functional.pad(kept, (0, rows - len(kept)))
        model.set_output_embeddings(head)
    return embedding
