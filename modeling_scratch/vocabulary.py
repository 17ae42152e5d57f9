"""Token ids and vocabularies: ids that do not exist are refused, and vocabularies can be resized."""

import torch
from torch import nn
from transformers.utils.import_utils import is_tracing


def check_ids(name: str, ids: torch.Tensor, vocab_size: int, ignored: int | None = None) -> None:
    """
    Raise ValueError for ids outside [0, vocab_size), other than `ignored`. Only where looking costs nothing: in eager
    mode on the CPU, never waiting for a device and never in a graph.
    """
    if ids.ndim != 2 or ids.is_floating_point():
        raise ValueError(
            f"{name} has shape {tuple(ids.shape)} and {ids.dtype}; it must be integers (batch_size, sequence_length)"
        )
    if ids.device.type != "cpu" or is_tracing(ids):
        return
    if ids.shape[1] == 0:
        raise ValueError(f"{name} has shape {tuple(ids.shape)}: there are no tokens")
    wrong = (ids < 0) | (ids >= vocab_size)
    if ignored is not None:
        wrong &= ids != ignored
    if wrong.any():
        also = "" if ignored is None else f", or {ignored} where they are to be ignored"
        raise ValueError(
            f"{name} holds {ids[wrong][0].item()}; ids must be in [0, {vocab_size}), the vocabulary{also}. Does the "
            "tokenizer belong to this model?"
        )


class ResizableVocabularies:
    """How the models with a decoder resize one vocabulary or two, beside PreTrainedModel."""

    def resize_decoder_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """
        Resize the target's embedding and output projection, not the source's.

        Raises:
            ValueError: source and target share their embedding.
        """
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "resize_decoder_token_embeddings needs an embedding of the target's own, but "
                "share_encoder_decoder_embeddings is True; use resize_token_embeddings"
            )
        embedding = self._resize_target(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.config.decoder_vocab_size = embedding.num_embeddings
        self.tie_weights()
        return embedding

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """
        What `resize_token_embeddings` resizes: the source's embedding, and, where there is one vocabulary
        (`decoder_vocab_size` is None, or the embeddings are shared), the target's with its output projection.
        """
        embedding = self._get_resized_embeddings(
            self.get_input_embeddings(), new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        config = self.config
        if config.share_encoder_decoder_embeddings or config.decoder_vocab_size is None:
            self._resize_target(embedding.num_embeddings, None, mean_resizing)
            if config.decoder_vocab_size is not None:
                config.decoder_vocab_size = embedding.num_embeddings
        return embedding

    def _resize_target(self, new_num_tokens: int, pad_to_multiple_of: int | None, mean_resizing: bool) -> nn.Embedding:
        embedding = self._get_resized_embeddings(
            self.get_decoder().embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        head = self.get_output_embeddings()
        if head is not None:
            rows = embedding.num_embeddings
            head = self._get_resized_lm_head(head, rows, mean_resizing=mean_resizing)
            if head.bias is not None and len(head.bias) != rows:  # a tied weight has grown already, its bias has not
                kept = head.bias.data[:rows]
                head.bias.data = nn.functional.pad(kept, (0, rows - len(kept)))
            self.set_output_embeddings(head)
        return embedding
