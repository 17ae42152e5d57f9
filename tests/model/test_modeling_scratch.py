"""The whole model: batches and padding, saving and loading, captured outputs, wrong inputs."""

import math

import pytest
import torch
from conftest import FEW_LAYERS, SHALLOW, SMALL_MODEL, every_choice, padded
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModel, AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration, ScratchModel
from modeling_scratch.data.batches import BinCollator, PairCollator
from modeling_scratch.model.stacks import CACHE_NAME
from modeling_scratch.training.fused_loss import TrainingLoss, fused_cross_entropy


@every_choice
def test_a_sentence_has_the_same_logits_and_translation_in_any_batch(fields, make_wide_model, sentences):
    """Alone, in a batch of 64, and with padding on either side: the same logits and the same translation."""
    model = make_wide_model(**FEW_LAYERS, **fields)
    target = torch.randint(4, 61, (1, 6))
    alone = model(input_ids=sentences[1][None], decoder_input_ids=target).logits
    greedy = model.generate(sentences[1][None], max_new_tokens=6)
    for side in ("left", "right"):
        for length in (7, 30):
            ids, mask = padded([sentences[1], *[sentences[0], sentences[2]] * 32][:64], length, side)
            logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=target.expand(64, -1)).logits
            torch.testing.assert_close(logits[:1], alone, rtol=0, atol=2e-5)
            together = model.generate(ids, attention_mask=mask, max_new_tokens=6)[:1, : greedy.shape[1]]
            assert torch.equal(together, greedy)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padding_of_the_target_changes_nothing(implementation, make_model, sentences):
    model = make_model()
    model.set_attn_implementation(implementation)
    source = sentences[0][None]
    alone = model(input_ids=source, decoder_input_ids=sentences[1][None]).logits
    for side, place in (("right", slice(0, 4)), ("left", slice(2, 6))):
        ids, mask = padded([sentences[1]], 6, side)
        logits = model(input_ids=source, decoder_input_ids=ids, decoder_attention_mask=mask).logits
        torch.testing.assert_close(logits[:, place], alone, rtol=0, atol=1e-5)


@every_choice
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_cached_steps_after_a_padded_prompt_equal_uncached_sentences(cache, fields, make_model, sentences):
    model = make_model(**FEW_LAYERS, **fields, eos_token_id=None)
    ids, mask = padded(sentences, 8, "left")
    prompts = [torch.tensor([1, 9, 8, 7]), torch.tensor([1]), torch.tensor([1, 5, 6])]
    prompt, prompt_mask = padded(prompts, 4, "left")
    output = model.generate(
        ids,
        attention_mask=mask,
        decoder_input_ids=prompt,
        decoder_attention_mask=prompt_mask,
        max_new_tokens=4,
        cache_implementation=cache,
        disable_compile=True,
        return_dict_in_generate=True,
        output_logits=True,
    )
    for row, (sentence, given) in enumerate(zip(sentences, prompts, strict=True)):
        whole = output.sequences[row, 4 - len(given) : -1]
        expected = model(input_ids=sentence[None], decoder_input_ids=whole[None]).logits[0, len(given) - 1 :]
        found = torch.stack([logits[row] for logits in output.logits])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@every_choice
@pytest.mark.parametrize("side", ["left", "right"])
def test_masked_positions_receive_no_gradient(side, fields, make_model, sentences):
    model = make_model(**fields)
    ids, mask = padded(sentences, 9, side)
    target, target_mask = padded([sentence[:3] for sentence in sentences], 5, side)
    embeds = model.get_encoder().embed_tokens(ids).detach().requires_grad_()
    target_embeds = model.get_decoder().embed_tokens(target).detach().requires_grad_()
    logits = model(
        inputs_embeds=embeds,
        attention_mask=mask,
        decoder_inputs_embeds=target_embeds,
        decoder_attention_mask=target_mask,
    ).logits
    logits[target_mask == 1].log_softmax(-1)[:, 5].sum().backward()
    for given, kept in ((embeds, mask), (target_embeds, target_mask)):
        assert torch.equal(given.grad[kept == 0], torch.zeros_like(given.grad[kept == 0]))
        assert given.grad[kept == 1].abs().min() > 0


@every_choice
def test_a_loaded_model_equals_the_saved_one_and_shares_the_same_weights(fields, make_model, sentences, tmp_path):
    model = make_model(**FEW_LAYERS, **fields)
    source, mask = padded(sentences, 7)
    inputs = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": source[:, :3]}
    model.save_pretrained(tmp_path)
    loaded, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert type(loaded) is ScratchForConditionalGeneration
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    shared, tied = loaded.config.share_encoder_decoder_embeddings, loaded.config.tie_word_embeddings
    encoder, decoder = loaded.model.encoder.embed_tokens.weight, loaded.model.decoder.embed_tokens.weight
    assert (encoder is decoder) == shared
    assert (loaded.lm_head.weight is decoder) == tied
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is ScratchModel
    assert torch.equal(base(**inputs).last_hidden_state, model.model(**inputs).last_hidden_state)


def test_initial_weights_have_the_scale_of_xavier_and_of_1_over_d_model():
    torch.manual_seed(0)
    model = ScratchForConditionalGeneration(ScratchConfig(**(SMALL_MODEL | {"vocab_size": 5000, "d_model": 64})))
    embedding, matrix = model.model.encoder.embed_tokens.weight, model.model.encoder.layers[0].self_attn.q_proj.weight
    assert embedding.std().item() == pytest.approx(64**-0.5, rel=0.02)
    assert matrix.abs().max().item() == pytest.approx(math.sqrt(6 / 128), rel=0.02)  # Xavier's bound


def test_gradient_checkpointing_changes_no_gradient(make_model, sentences):
    model = make_model(dropout=0.0).train()
    source, mask = padded(sentences, 7)
    labels = torch.randint(4, 61, (3, 5))
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable()
        model.zero_grad()
        # With a cache, a layer that runs twice would append to it twice.
        output = model(input_ids=source, attention_mask=mask, labels=labels, use_cache=checkpointing)
        assert output.get(CACHE_NAME) is None
        output.loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(checkpointed, plain, rtol=0, atol=1e-7)
    with pytest.raises(ValueError, match="gradient checkpointing cannot use a key/value cache"):
        model(input_ids=source, labels=labels, past_key_values=DynamicCache())


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attentions_and_hidden_states_can_be_captured(implementation, make_model, sentences):
    model = make_model()
    model.set_attn_implementation(implementation)
    source, mask = padded(sentences, 7)
    inputs = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": source[:, :3]}
    output = model(**inputs, output_attentions=True, output_hidden_states=True)
    assert [tuple(x.shape) for x in output.encoder_attentions] == [(3, 4, 7, 7)] * 2
    assert [tuple(x.shape) for x in output.decoder_attentions] == [(3, 2, 3, 3)] * 3
    assert [tuple(x.shape) for x in output.cross_attentions] == [(3, 2, 3, 7)] * 3
    assert (len(output.encoder_hidden_states), len(output.decoder_hidden_states)) == (3, 4)
    for weights in (*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions):
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    for weights in (*output.encoder_attentions, *output.cross_attentions):
        assert weights[1, :, :, 4:].abs().max() == 0  # padding
    for weights in output.decoder_attentions:
        assert weights.triu(1).abs().max() == 0
    assert torch.equal(output.encoder_hidden_states[-1], output.encoder_last_hidden_state)
    assert torch.equal(model.lm_head(output.decoder_hidden_states[-1]), output.logits)
    torch.testing.assert_close(model(**inputs).logits, output.logits)
    assert model(**inputs).cross_attentions is None


def test_arguments_override_what_the_config_captures(make_model):
    model = make_model(output_hidden_states=True)
    model.set_attn_implementation("eager")  # required by the next line
    model.config.output_attentions = True
    inputs = {"input_ids": torch.tensor([[5, 6, 2]]), "decoder_input_ids": torch.tensor([[1, 7]])}
    assert len(model(**inputs).decoder_hidden_states) == 4
    assert len(model(**inputs).decoder_attentions) == 3
    assert model(**inputs, output_attentions=False).decoder_attentions is None
    assert model(**inputs, output_hidden_states=False).encoder_hidden_states is None


@every_choice
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_model_runs_on_the_meta_device(implementation, fields, make_model, sentences):
    model = make_model(**SHALLOW, **fields).to("meta")
    model.set_attn_implementation(implementation)
    ids, mask = (each.to("meta") for each in padded(sentences, 8, "left"))
    labels = torch.empty(3, 5, dtype=torch.long, device="meta")
    output = model(input_ids=ids, attention_mask=mask, labels=labels, decoder_attention_mask=mask[:, :5])
    assert output.logits.shape == (3, 5, model.config.target_vocab_size)
    assert output.logits.device.type == output.loss.device.type == "meta"
    output.loss.backward()
    assert all(parameter.grad.shape == parameter.shape for parameter in model.parameters())


@every_choice
def test_an_empty_batch_has_a_loss_of_zero(fields, make_model):
    model = make_model(**fields)
    ids = torch.empty(0, 5, dtype=torch.long)
    output = model(input_ids=ids, attention_mask=ids, labels=ids)
    assert output.logits.shape == (0, 5, model.config.target_vocab_size)
    assert output.loss == 0
    assert model(input_ids=ids, labels=ids, fused_loss=fused_cross_entropy).loss == 0


def test_shared_layers_are_one_layer_that_runs_several_times(make_model, tmp_path):
    model, shallow = make_model(share_layers=True), make_model(**SHALLOW)
    assert sum(each.numel() for each in model.parameters()) == sum(each.numel() for each in shallow.parameters())
    model.save_pretrained(tmp_path)
    inputs = {"input_ids": torch.tensor([[5, 6, 2]]), "decoder_input_ids": torch.tensor([[1, 7]])}
    output = ScratchForConditionalGeneration.from_pretrained(tmp_path)(**inputs, output_hidden_states=True)
    assert (len(output.encoder_hidden_states), len(output.decoder_hidden_states)) == (3, 4)
    once = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, **SHALLOW)(**inputs, output_hidden_states=True)
    expected = model(**inputs, output_hidden_states=True)
    assert torch.equal(output.logits, expected.logits)
    assert not torch.equal(output.logits, once.logits)
    norm = model.get_encoder().layer_norm
    assert torch.equal(once.encoder_last_hidden_state, norm(output.encoder_hidden_states[1]))


def test_removed_layers_do_not_run(make_model):
    model, shallow = make_model(), make_model(**SHALLOW)
    for stack in (model.get_encoder(), model.get_decoder()):
        stack.layers = stack.layers[:1]
    shallow.load_state_dict(model.state_dict())
    inputs = {"input_ids": torch.tensor([[5, 6, 2]]), "decoder_input_ids": torch.tensor([[1, 7]])}
    assert torch.equal(model(**inputs).logits, shallow(**inputs).logits)


@pytest.mark.parametrize(("final_norm", "expected"), [(True, (1, 1)), (False, (0, 0)), ("decoder", (0, 1))])
def test_final_norm_decides_which_stacks_end_with_a_norm(final_norm, expected, make_model):
    model = make_model(final_norm=final_norm)
    found = [isinstance(stack.layer_norm, nn.LayerNorm) for stack in (model.get_encoder(), model.get_decoder())]
    assert tuple(found) == expected
    ids = torch.tensor([[5, 6, 2]])
    norms = [model.get_encoder()(ids).last_hidden_state, model.model(ids, decoder_input_ids=ids).last_hidden_state]
    for states, normed in zip(norms, expected, strict=True):
        assert (states.mean(-1).abs().max() < 1e-5) == bool(normed)  # a new norm's bias is 0


@every_choice
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_pairs_in_shared_rows_have_the_loss_and_gradients_of_separate_rows(
    implementation, fields, make_model, monkeypatch
):
    """Some rows have more padding than the model has positions."""
    monkeypatch.setattr(BinCollator, "length", 32)
    model = make_model(**fields, max_position_embeddings=16).double()
    model.set_attn_implementation(implementation)
    torch.manual_seed(2)
    lengths = torch.randint(2, 16, (20, 2)).tolist()
    pairs = [tuple(torch.randint(4, 61, (length,)).tolist() for length in each) for each in lengths]
    found = []
    for batch in (PairCollator(0)(pairs), BinCollator(0, rows=4)(pairs)):
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        found.append({"loss": loss.detach(), **gradients})
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-13)


def test_labels_are_shifted_to_make_the_decoder_input(make_model, sentences):
    model = make_model()
    labels = torch.tensor([[9, 8, 2], [7, 2, -100]])
    shifted = torch.tensor([[1, 9, 8], [1, 7, 2]])
    source = torch.stack([sentences[1], sentences[1]])
    from_labels = model(input_ids=source, labels=labels)
    given = model(input_ids=source, decoder_input_ids=shifted)
    assert torch.equal(from_labels.logits, given.logits)
    expected = nn.functional.cross_entropy(given.logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(from_labels.loss, expected)


SOURCE, TARGET = {"input_ids": [[5, 2]]}, {"decoder_input_ids": [[1]]}
WRONG_INPUTS = {
    "no source": (TARGET, "one of input_ids and inputs_embeds: got neither"),
    "two sources": (
        SOURCE | TARGET | {"inputs_embeds": [[[0.0] * 32] * 2]},
        "of input_ids and inputs_embeds: got both",
    ),
    "two targets": (SOURCE | TARGET | {"decoder_inputs_embeds": [[[0.0] * 32]]}, "decoder_inputs_embeds: got both"),
    "no target in segments": (SOURCE | {"segment_ids": [[1, 1]], "decoder_segment_ids": [[1]]}, "needs decoder_input"),
    "no target": (SOURCE, "needs decoder_input_ids, decoder_inputs_embeds or, .* labels"),
    "id too large": (TARGET | {"input_ids": [[5, 61]]}, r"^input_ids .* 5 to 61.*\[0, 61\)"),
    "id below 0": (TARGET | {"input_ids": [[-1, 5]]}, r"^input_ids .* -1 to 5.*\[0, 61\)"),
    "target id": (SOURCE | {"decoder_input_ids": [[99]]}, r"decoder_input_ids .* 99 to 99.*\[0, 61\)"),
    "label": (SOURCE | {"labels": [[61, -100, 5]]}, r"decoder_input_ids .* 0 to 61.*\[0, 61\)"),
    "ids of one dimension": (TARGET | {"input_ids": [5, 2]}, r"input_ids has shape \(2,\)"),
    "no tokens": (TARGET | {"input_ids": [[]]}, "input_ids has shape"),
    "mask of another length": (SOURCE | TARGET | {"attention_mask": [[1]]}, r"attention_mask.*\(1, 1\).*need \(1, 2\)"),
    "mask of another batch": (SOURCE | TARGET | {"attention_mask": [[1, 1]] * 2}, r"\(2, 2\).*need \(1, 2\)"),
    "target mask": (SOURCE | TARGET | {"decoder_attention_mask": [[1, 1]]}, r"decoder_attention_mask.*need \(1, 1\)"),
    "4-D mask, keys": (SOURCE | TARGET | {"attention_mask": [[[[1]]]]}, r"\(1, 1, 1, 1\).*the last is 2"),
    "4-D mask, rows": (SOURCE | TARGET | {"attention_mask": [[[[1, 1], [1, 1]]]]}, "a row for each"),
    "embeddings of another width": (TARGET | {"inputs_embeds": [[[0.0] * 8]]}, r"\(1, 1, 8\).*d_model \(32\)"),
    "positions of another length": (SOURCE | TARGET | {"position_ids": [[0]]}, r"\(1, 1\).*need \(1, 2\)"),
    "positions of one dimension": (SOURCE | TARGET | {"position_ids": [0, 1]}, r"\(2,\).*need \(1, 2\)"),
    "labels of another length": (SOURCE | TARGET | {"labels": [[5, 6]]}, r"labels has shape \(1, 2\).*\(1, 1\)"),
    "labels that are no integers": (SOURCE | TARGET | {"labels": [[5.7]]}, "labels has shape .*torch.float32"),
    "too long for learned": (TARGET | {"input_ids": [[5] * 9]}, r"no position 8.*max_position_embeddings \(8\)"),
    "position": (SOURCE | TARGET | {"position_ids": [[0, 8]]}, r"no position 8.*max_position_embeddings \(8\)"),
}


@pytest.mark.parametrize(("inputs", "message"), WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_wrong_inputs_are_named_with_what_is_needed(inputs, message, make_model):
    model = make_model(position_embedding_type="learned", max_position_embeddings=8)
    with pytest.raises(ValueError, match=message):
        model(**{name: torch.tensor(value) for name, value in inputs.items()})


@pytest.mark.parametrize(
    "others",
    [
        {"segment_ids": None},
        {"attention_mask": torch.ones(1, 3)},
        {"decoder_attention_mask": torch.ones(1, 3)},
        {"past_key_values": DynamicCache()},
        {"use_cache": True},
    ],
    ids=lambda others: next(iter(others)),
)
def test_segments_need_each_other_and_replace_masks_and_caches(others, make_model):
    ids = torch.ones(1, 3, dtype=torch.long)
    segments = {"segment_ids": ids, "decoder_segment_ids": ids}
    with pytest.raises(ValueError, match=r"come together|takes the place of masks"):
        make_model()(input_ids=ids, decoder_input_ids=ids, **segments | others)


def test_generate_takes_no_segments(make_model):
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="cannot be used"):
        make_model().generate(ids, segment_ids=ids)


@pytest.mark.parametrize("labels", [[[5, -1, 6]], [[5, 6]], [[5], [6], [7]], [[5.0, 6.7, 7.0]]])
def test_wrong_labels_for_a_fused_loss_are_named(labels, make_model):
    inputs = {"input_ids": torch.tensor([[5, 2]]), "decoder_input_ids": torch.tensor([[1, 5, 6]])}
    with pytest.raises(ValueError, match=r"labels has shape|labels holds -1"):
        make_model()(**inputs, labels=torch.tensor(labels), fused_loss=TrainingLoss(0.0))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi"])
def test_computed_positions_have_no_limit(positions, make_model):
    short = make_model(position_embedding_type=positions, max_position_embeddings=8)
    long = make_model(position_embedding_type=positions, max_position_embeddings=64)
    ids = torch.randint(4, 61, (1, 30))
    inputs = {"input_ids": ids, "decoder_input_ids": ids}
    assert torch.equal(short(**inputs).logits, long(**inputs).logits)


def test_generation_ends_where_learned_positions_end(make_model):
    model = make_model(position_embedding_type="learned", max_position_embeddings=8, eos_token_id=None)
    with pytest.raises(ValueError, match=r"no position 8.*max_position_embeddings \(8\)"):
        model.generate(torch.tensor([[5, 6]]), max_new_tokens=12)
    assert model.generate(torch.tensor([[5, 6]]), max_new_tokens=8).shape == (1, 9)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_float_masks_of_ones_and_zeros_work_as_integer_masks(compiled, make_model, sentences):
    """PEFT's prompt tuning makes such masks."""
    model = make_model(**SHALLOW)
    ids, mask = padded(sentences, 8, "left")
    target, target_mask = padded([sentence[:3] for sentence in sentences], 4, "left")
    inputs = {"input_ids": ids, "decoder_input_ids": target}
    expected = model(**inputs, attention_mask=mask, decoder_attention_mask=target_mask).logits
    forward = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    logits = forward(**inputs, attention_mask=mask.float(), decoder_attention_mask=target_mask.float()).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)


def test_learned_positions_skip_padding(make_model):
    model = make_model(position_embedding_type="learned", max_position_embeddings=8)
    sentence = torch.randint(4, 61, (5,))
    ids, mask = padded([sentence], 12, "left")
    target = torch.tensor([[1, 7]])
    alone = model(input_ids=sentence[None], decoder_input_ids=target).logits
    torch.testing.assert_close(model(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits, alone)


class Doubled(nn.Module):
    """A wrapped head, as adapters make them."""

    def __init__(self, head):
        super().__init__()
        self.head, self.weight, self.bias = head, head.weight, head.bias

    def forward(self, states):
        return 2 * self.head(states)


def wrap(model):
    model.lm_head = Doubled(model.lm_head)


def patch(model):
    forward = model.lm_head.forward
    model.lm_head.forward = lambda states: 2 * forward(states)  # as in offloading


@pytest.mark.parametrize("change", [wrap, patch])
def test_the_fused_loss_calls_a_wrapped_or_patched_head(change, make_model, sentences):
    model = make_model()
    labels = torch.tensor([[5, 6, 2]])
    inputs = {"input_ids": sentences[0][None], "labels": labels}
    plain = model(**inputs).loss
    change(model)
    expected = model(**inputs).loss
    assert not torch.isclose(expected, plain)
    output = model(**inputs, fused_loss=fused_cross_entropy)
    assert output.logits is None
    torch.testing.assert_close(output.loss, expected)


def test_encoder_outputs_may_be_a_dict_and_the_cache_a_plain_one(make_model, sentences):
    model = make_model()
    ids, target = sentences[0][None], torch.tensor([[1, 5, 6]])
    expected = model(input_ids=ids, decoder_input_ids=target).logits
    states = model.get_encoder()(ids).last_hidden_state
    given = model(encoder_outputs={"last_hidden_state": states}, decoder_input_ids=target).logits
    assert torch.equal(given, expected)
    cached = model(input_ids=ids, decoder_input_ids=target, past_key_values=DynamicCache())
    torch.testing.assert_close(cached.logits, expected)


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_the_cache_has_both_names(name, make_model, sentences):
    """Transformers calls it `cache` from 5.24 on. Outputs use the name of the installed release."""
    model = make_model()
    ids, states = sentences[0][None], model.get_encoder()(sentences[0][None]).last_hidden_state
    for part, inputs, of_the_target in (
        (model, {"input_ids": ids}, "decoder_"),
        (model.model, {"input_ids": ids}, "decoder_"),
        (model.get_decoder(), {"encoder_hidden_states": states}, ""),
    ):
        given = DynamicCache()
        first = part(**inputs, **{f"{of_the_target}input_ids": torch.tensor([[1, 5]]), name: given})[CACHE_NAME]
        assert first.self_attention_cache is given
        second = part(**inputs, **{f"{of_the_target}input_ids": torch.tensor([[6]]), name: first})[CACHE_NAME]
        assert second is first
        assert second.get_seq_length() == 3
    given = EncoderDecoderCache(DynamicCache(), DynamicCache())
    model.generate(ids, max_new_tokens=4, min_new_tokens=4, **{name: given})
    assert given.get_seq_length() == 4


@every_choice
def test_weights_missing_from_a_checkpoint_are_initialized(fields, make_model, tmp_path):
    model = make_model(**SHALLOW, **fields)
    model.save_pretrained(tmp_path)
    save_file({}, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = dict(type(model).from_pretrained(tmp_path).named_parameters())
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            assert torch.equal(loaded[name], weight), name
        else:
            assert loaded[name].std().item() == pytest.approx(weight.std().item(), rel=0.2), name
