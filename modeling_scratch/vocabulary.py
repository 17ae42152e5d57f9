"""Resizing vocabularies: one that source and target share, or one for each."""

import torch
from torch import nn


class ResizableVocabularies:
    """What encoder-decoder models add to PreTrainedModel's `resize_token_embeddings`, which knows of one vocabulary."""

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args, **kwargs) -> nn.Embedding:
        """
        Resize the source's embedding; and, where there is one vocabulary (`decoder_vocab_size` is None, or the
        embeddings are shared), the target's with its output projection. Arguments and result as PreTrainedModel's.
        """
        config = self.config
        if config.share_encoder_decoder_embeddings:
            embedding = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
            if config.decoder_vocab_size is not None:
                config.decoder_vocab_size = embedding.num_embeddings
            self._fit_head(embedding.num_embeddings)
            return embedding
        embedding = self.get_encoder().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        config.vocab_size = embedding.num_embeddings
        if config.decoder_vocab_size is None:
            self.resize_decoder_token_embeddings(config.vocab_size, *args, **kwargs)
            config.decoder_vocab_size = None
        return embedding

    def resize_decoder_token_embeddings(self, new_num_tokens: int, *args, **kwargs) -> nn.Embedding:
        """
        Resize the target's embedding and output projection, not the source's.

        Raises:
            ValueError: source and target share their embedding.
        """
        config = self.config
        if config.share_encoder_decoder_embeddings:
            raise ValueError(
                "resize_decoder_token_embeddings needs an embedding of the target's own, but "
                "share_encoder_decoder_embeddings is True; use resize_token_embeddings"
            )
        source_size = config.vocab_size
        embedding = self.get_decoder().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        config.vocab_size, config.decoder_vocab_size = source_size, embedding.num_embeddings
        self._fit_head(embedding.num_embeddings)
        return embedding

    def _fit_head(self, rows: int) -> None:
        """Give the output projection so many rows: the new ones are the mean of the old, with a bias of zero."""
        head = self.get_output_embeddings()
        if head is None:
            return
        kept, head.out_features = min(rows, head.weight.shape[0]), rows
        if head.weight.shape[0] != rows:
            mean = head.weight.data.mean(dim=0, keepdim=True).expand(rows - kept, -1)
            head.weight = nn.Parameter(torch.cat([head.weight.data[:kept], mean]))
        if head.bias is not None and head.bias.shape[0] != rows:
            kept = head.bias.data[:rows]
            head.bias = nn.Parameter(nn.functional.pad(kept, (0, rows - len(kept))))
        self.tie_weights()
