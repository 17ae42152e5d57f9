"""Models of other codebases with random weights, biases and norms included: Marian, and PyTorch's tutorial."""

import math

import torch
from torch import nn
from transformers import MarianConfig, MarianMTModel

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration

OPUS = {  # like OPUS-MT's checkpoints, but small
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "activation_function": "swish",
    "scale_embedding": True,
    "eos_token_id": 0,
    "pad_token_id": 60,
    "decoder_start_token_id": 60,
}
SHAPES = {
    "opus": {},
    "two vocabularies": {
        "decoder_vocab_size": 53,
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "encoder_layers": 1,
        "decoder_layers": 3,
        "encoder_attention_heads": 8,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 40,
        "activation_function": "gelu",
        "pad_token_id": 52,
        "decoder_start_token_id": 52,
    },
    "two vocabularies, tied": {
        "decoder_vocab_size": 70,
        "share_encoder_decoder_embeddings": False,
        "activation_function": "gelu_new",
    },
    "shared, not tied": {"tie_word_embeddings": False, "activation_function": "relu", "scale_embedding": False},
    "odd width": {"d_model": 33, "encoder_attention_heads": 3, "decoder_attention_heads": 11},
}


@torch.no_grad()
def randomise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Set every weight, bias and norm to random numbers, none of them 0 or 1."""
    random = torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        if "embed_positions" not in name:
            weight.copy_(0.2 * torch.randn(weight.shape, generator=random) + ("norm" in name and "weight" in name))
    return module.eval()


def marian(shape: str = "opus", **fields) -> MarianMTModel:
    model = randomise(MarianMTModel(MarianConfig(**(OPUS | SHAPES[shape] | fields))))
    if shape == "shared, not tied":  # Marian has two embeddings then
        model.model.shared.load_state_dict(model.model.encoder.embed_tokens.state_dict())
        model.model.decoder.embed_tokens.load_state_dict(model.model.encoder.embed_tokens.state_dict())
    bias = model.final_logits_bias
    bias.copy_(torch.randn(bias.shape, generator=torch.Generator().manual_seed(1)))
    settings = {"max_length": 24, "num_beams": 4, "forced_eos_token_id": 0}
    settings["bad_words_ids"] = [[model.config.pad_token_id]]
    settings["no_repeat_ngram_size"] = 1  # random weights would repeat one token
    model.generation_config.update(**settings)
    return model


def batch(model: MarianMTModel, sizes: tuple[int, ...] = (9, 14, 3), seed: int = 2) -> dict[str, torch.Tensor]:
    """Sentences of several lengths, padded on the right."""
    random, pad = torch.Generator().manual_seed(seed), model.config.pad_token_id
    mask = (torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]).long()
    ids = torch.randint(1, 50, mask.shape, generator=random)
    return {"input_ids": ids.masked_fill(mask == 0, pad), "attention_mask": mask}


def scratch(**fields) -> ScratchForConditionalGeneration:
    """A model that Marian can express, unless `fields` say otherwise."""
    defaults = {"norm_position": "post", "final_norm": False, "lm_head_bias": True, "vocab_size": 61, "d_model": 32}
    defaults |= {"encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = ScratchConfig(**(defaults | {"encoder_ffn_dim": 40, "decoder_ffn_dim": 40} | fields))
    return randomise(ScratchForConditionalGeneration(config))


def identical(first: nn.Module, second: nn.Module) -> bool:
    first, second = first.state_dict(), second.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class Tutorial(nn.Module):
    """The model of https://docs.pytorch.org/tutorials/beginner/translation_transformer.html."""

    def __init__(self, src_vocab_size=31, tgt_vocab_size=29, emb_size=24, nhead=4, **options):
        super().__init__()
        options = {"num_encoder_layers": 2, "num_decoder_layers": 3, "dim_feedforward": 40, "dropout": 0.2} | options
        self.transformer = nn.Transformer(d_model=emb_size, nhead=nhead, **options)
        self.generator = nn.Linear(emb_size, tgt_vocab_size)
        self.src_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(src_vocab_size, emb_size)})
        self.tgt_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(tgt_vocab_size, emb_size)})
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, 500).reshape(500, 1)
        pos_embedding = torch.zeros((500, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        self.positional_encoding = nn.Module()
        self.positional_encoding.register_buffer("pos_embedding", pos_embedding.unsqueeze(-2))

    def embed(self, embedding, tokens):
        vectors = embedding["embedding"](tokens) * math.sqrt(embedding["embedding"].embedding_dim)
        return vectors + self.positional_encoding.pos_embedding[: tokens.size(0)]

    def forward(self, src, trg, src_padding_mask):
        """src (source_length, batch_size), trg (target_length, batch_size), mask (batch_size, source_length)."""
        out = self.transformer(
            self.embed(self.src_tok_emb, src),
            self.embed(self.tgt_tok_emb, trg),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(len(trg)),
            src_key_padding_mask=src_padding_mask,
            memory_key_padding_mask=src_padding_mask,
        )
        return self.generator(out)


SPECIAL = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "unk_token_id": 0}
NAMES = {
    "source_embedding": "src_tok_emb.embedding",
    "target_embedding": "tgt_tok_emb.embedding.weight",
    "output_projection": "generator",
}
TOLD = {"num_heads": 4, "norm_position": "post", "activation_function": "relu", "scale_embedding": True}


def tutorial(**options) -> Tutorial:
    return randomise(Tutorial(**options))
