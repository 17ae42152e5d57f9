"""An ensemble chooses tokens by the mean of its members' probabilities, computed here again without any cache."""

import pytest
import torch
from conftest import SHALLOW, SMALL_MODEL, padded
from search_cases import SETTINGS, enliven, inherited
from transformers.modeling_outputs import Seq2SeqLMOutput

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.inference.ensemble import Ensemble
from modeling_scratch.model import cache
from modeling_scratch.model import search as search_loops
from modeling_scratch.model.batched_generation import generate_batch

pytest_plugins = ["search_fixtures"]

# Three architectures, which have in common their vocabulary.
MEMBERS = [
    {"encoder_layers": 1, "decoder_layers": 2},
    {"d_model": 48, "position_embedding_type": "alibi", "norm_position": "post", "final_norm": False, **SHALLOW},
    {"position_embedding_type": "learned", "max_position_embeddings": 64, "decoder_layers": 1},
]
NAMES = ("greedy", "several", "two ends", "opus", "a beginning", "repetition, greedy", "as long as it takes")
BATCH = [torch.randint(4, 61, (length,), generator=torch.Generator().manual_seed(2)) for length in (7, 4, 5, 9, 3, 6)]
SOURCE = dict(zip(("input_ids", "attention_mask"), padded(BATCH, 9), strict=True))


class BruteForce(ScratchForConditionalGeneration):
    """
    Reads source and target again at each step with every member, and averages the probabilities themselves. Its own
    weights have no part in it.
    """

    def forward(self, decoder_input_ids, **kwargs):
        beams = len(decoder_input_ids) // len(SOURCE["input_ids"])
        source = {name: rows.repeat_interleave(beams, dim=0) for name, rows in SOURCE.items()}
        each = [member(**source, decoder_input_ids=decoder_input_ids).logits.softmax(-1) for member in self.others]
        return Seq2SeqLMOutput(logits=(sum(each) / len(each)).log())


@pytest.fixture
def members() -> list[ScratchForConditionalGeneration]:
    members = []
    for number, fields in enumerate(MEMBERS):
        config = ScratchConfig(**(SMALL_MODEL | fields), lm_head_bias=True, tie_word_embeddings=False)
        members.append(enliven(ScratchForConditionalGeneration(config).double().eval(), 50 + number))
        members[-1].lm_head.bias.data[[0, 2]] = torch.tensor([-50.0, 3.0]).double()  # never padding; sometimes the end
    return members


def brute_force(members) -> BruteForce:
    model = BruteForce(members[0].config).double().eval()
    model.others = members  # a list, so that they are no submodules
    return model


@pytest.mark.parametrize("name", NAMES)
def test_the_mean_of_the_probabilities_decides(name, members, loops, monkeypatch):
    monkeypatch.setattr(search_loops, "_SHARE_THAT_LEAVES", 0.01)  # caches are cut often
    options = {"max_new_tokens": 9, "do_sample": False, "return_dict_in_generate": True} | SETTINGS[name]
    found = Ensemble(members).generate(**SOURCE, **options)
    expected = inherited(brute_force(members), **SOURCE, **options, use_cache=False)
    assert torch.equal(found.sequences, expected.sequences)
    alone = [member.generate(**SOURCE, **options).sequences for member in members]
    assert not any(torch.equal(found.sequences, each) for each in alone)
    assert len(loops) == 4  # our own, of the ensemble and of its members
    assert len(set((found.sequences[:, 1:] == 2).int().argmax(dim=1).tolist())) > 1  # they end at different places


@pytest.mark.parametrize("settings", [{}, {"num_beams": 4, "num_return_sequences": 3}], ids=str)
def test_scores_are_logarithms_of_the_mean_probabilities(settings, members):
    ids = [sentence.tolist() for sentence in BATCH]
    tokens, scores = generate_batch(Ensemble(members), ids, True, max_new_tokens=8, eos_token_id=None, **settings)
    rows = tokens.flatten(0, 1)
    predicted = brute_force(members)(rows[:, :-1]).logits.gather(2, rows[:, 1:, None])
    torch.testing.assert_close(scores.flatten(), predicted.sum(dim=(1, 2)).float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("beams", [1, 3])
def test_batches_do_not_matter(beams, members, monkeypatch):
    monkeypatch.setattr(cache, "_GROWTH", 3)  # hidden slots are dropped
    ensemble, options = Ensemble(members), {"num_beams": beams, "max_new_tokens": 12, "return_dict_in_generate": True}
    together = ensemble.generate(**SOURCE, **options)
    for row, sentence in enumerate(BATCH):
        alone = ensemble.generate(input_ids=sentence[None], **options)
        length = alone.sequences.shape[1]
        assert torch.equal(together.sequences[row, :length], alone.sequences[0])
        assert torch.isin(together.sequences[row, length:], torch.tensor([0, 2])).all()  # filled up
        torch.testing.assert_close(together.log_probabilities[row], alone.log_probabilities[0])


def test_every_member_reads_each_token_once(members):
    encoded, widths = [], []
    for member in members:
        member.model.encoder.register_forward_pre_hook(lambda encoder, given: encoded.append(given[0].shape[0]))
        member.lm_head.register_forward_pre_hook(lambda head, given: widths.append(given[0].shape[:2]))
    Ensemble(members).generate(**SOURCE, num_beams=3, max_new_tokens=5, eos_token_id=None)
    assert encoded == [6] * 3
    assert widths == [(6, 1)] * 3 + [(18, 1)] * 3 * 4


@pytest.mark.parametrize("settings", [{"use_cache": False}, {"use_cache": False, "num_beams": 3}], ids=str)
def test_inherited_loops_find_the_same(settings, members, loops):
    ensemble = Ensemble(members)
    found = ensemble.generate(**SOURCE, **settings, max_new_tokens=8)
    assert not loops
    del settings["use_cache"]
    assert torch.equal(found, ensemble.generate(**SOURCE, **settings, max_new_tokens=8))
    assert len(loops) == 1


def test_arguments_that_an_ensemble_refuses(members):
    ensemble, positions = Ensemble(members), torch.zeros_like(SOURCE["input_ids"])
    with pytest.raises(ValueError, match="output_attentions, position_ids: an ensemble does not take this"):
        ensemble.generate(**SOURCE, position_ids=positions, output_attentions=True)
    found = ensemble.generate(**SOURCE, max_new_tokens=4, cache_implementation="static", use_cache=True)
    assert torch.equal(found, ensemble.generate(**SOURCE, max_new_tokens=4))


def test_probabilities_that_vanish_are_averaged_without_overflow(members):
    """One member is certain beyond the range of exp; the mean is half of its probability."""
    certain, other = members[0].float(), members[1].float()
    certain.lm_head.weight.data.zero_()
    certain.lm_head.bias.data.fill_(-1e4)[7] = 1e4
    logits = Ensemble([certain, other])(**SOURCE, decoder_input_ids=torch.ones(6, 1, dtype=torch.long)).logits
    assert torch.isfinite(logits).all()
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(6, 1))
    assert (logits[..., 7].exp() >= 0.5 - 1e-6).all()


def test_members_share_the_widest_type_and_the_fewest_positions(members):
    ensemble = Ensemble([members[0].half(), members[1].float(), members[2].float()])
    assert ensemble.dtype == torch.float32
    assert {parameter.dtype for parameter in ensemble.parameters()} == {torch.float32}
    assert ensemble.config.max_position_embeddings == 64
    assert ensemble.config.position_embedding_type == "learned"  # nothing goes beyond these
    with pytest.raises(ValueError, match="save its members"):
        ensemble.save_pretrained("nowhere")
