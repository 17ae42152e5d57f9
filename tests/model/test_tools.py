"""The model works with compilers, exporters, PEFT, Trainer, and the loading options of Transformers."""

import json
import os
import pickle
import sys

import onnxruntime
import peft
import pytest
import torch
from choices import FAST, slowly_every_choice_but, two_choices_and_slowly_every
from conftest import (
    CHOICES,
    DISTINCT,
    FEW_LAYERS,
    ROOT,
    SHALLOW,
    SMALL_MODEL,
    every_choice,
    located,
    padded,
    run_command,
)
from datasets import Dataset
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForTextEncoding,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from modeling_scratch import ScratchConfig, ScratchEncoderModel, ScratchForConditionalGeneration, ScratchModel
from modeling_scratch.data.tokenizer import train_tokenizer
from modeling_scratch.model.confidence import Confidence, NgramSet


@pytest.fixture
def inputs(sentences):
    ids, mask = padded(sentences, 7)
    torch.manual_seed(2)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(4, 61, (3, 5))}


# -- compiling and exporting -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "fields"), [*(("aot_eager", fields) for fields in DISTINCT.values()), ("inductor", {})]
)
def test_a_compiled_forward_pass_equals_eager(backend, fields, make_model, inputs):
    model = make_model(**SHALLOW, **fields)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    results = []
    for forward in (model, compiled):
        model.zero_grad()
        output = forward(**inputs)
        output.loss.backward()
        results.append([output.loss, output.logits, *(parameter.grad.clone() for parameter in model.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-5)


class Logits(torch.nn.Module):
    """A forward pass with only tensors as input and output, for exporters."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, decoder_input_ids):
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False
        ).logits


def export_arguments(inputs):
    batch, source, target = (torch.export.Dim(name, min=2, max=64) for name in ("batch", "source", "target"))
    arguments = (inputs["input_ids"], inputs["attention_mask"], inputs["labels"])
    return arguments, ({0: batch, 1: source}, {0: batch, 1: source}, {0: batch, 1: target})


def other_shape():
    """Padded inputs of another shape than those of the export."""
    torch.manual_seed(3)
    ids, mask = padded([torch.randint(4, 61, (length,)) for length in (9, 6, 3, 8)], 11)
    return ids, mask, torch.randint(4, 61, (4, 8))


# By default only the paper's architecture; tests/apps/web/test_export_web.py exports a modern one.
@slowly_every_choice_but("default")
def test_an_exported_model_equals_eager_in_other_shapes(fields, make_model, inputs):
    model = Logits(make_model(**SHALLOW, **fields))
    arguments, shapes = export_arguments(inputs)
    exported = torch.export.export(model, arguments, dynamic_shapes=shapes).module()
    for case in (arguments, other_shape()):
        torch.testing.assert_close(exported(*case), model(*case), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:# The axis name:UserWarning")  # the exporter merges equal axes
@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")  # its own
@pytest.mark.slow
def test_an_onnx_model_equals_eager_in_other_shapes(make_model, inputs, tmp_path):
    model = Logits(make_model(**SHALLOW, **CHOICES["rotary, rms, gated"])).eval()
    arguments, shapes = export_arguments(inputs)
    path = tmp_path / "model.onnx"
    torch.onnx.export(model, arguments, path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    for case in (arguments, other_shape()):
        (logits,) = session.run(None, {key: value.numpy() for key, value in zip(names, case, strict=True)})
        torch.testing.assert_close(torch.from_numpy(logits), model(*case), rtol=0, atol=1e-4)


# -- loading -----------------------------------------------------------------------------------------------------------


@every_choice
def test_the_encoder_alone_loads_from_any_checkpoint(fields, make_model, inputs, tmp_path):
    model = make_model(**FEW_LAYERS, **fields)
    model.save_pretrained(tmp_path / "whole")
    source = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    expected = model.get_encoder()(**source).last_hidden_state
    encoder, report = AutoModelForTextEncoding.from_pretrained(tmp_path / "whole", output_loading_info=True)
    assert type(encoder) is ScratchEncoderModel
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert torch.equal(encoder(**source).last_hidden_state, expected)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == sum(
        parameter.numel() for parameter in model.get_encoder().parameters()
    )
    encoder.save_pretrained(tmp_path / "encoder")
    again = AutoModelForTextEncoding.from_pretrained(tmp_path / "encoder")
    assert torch.equal(again(**source).last_hidden_state, expected)
    model.model.save_pretrained(tmp_path / "base")  # a checkpoint without a head
    from_base = AutoModelForTextEncoding.from_pretrained(tmp_path / "base")
    assert torch.equal(from_base(**source).last_hidden_state, expected)


@every_choice
def test_sharded_checkpoints_load_with_and_without_a_device_map(fields, make_model, inputs, tmp_path):
    model = make_model(**FEW_LAYERS, **fields)
    expected = model(**inputs)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2
    for options in ({}, {"device_map": "cpu"}):
        loaded, report = AutoModelForSeq2SeqLM.from_pretrained(
            tmp_path / "sharded", output_loading_info=True, **options
        )
        assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
        assert torch.equal(loaded(**inputs).logits, expected.logits)
    most = int(0.7 * sum(parameter.nbytes for parameter in model.parameters()))
    loaded = AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "sharded", device_map="auto", max_memory={"cpu": most}, offload_folder=tmp_path / "offload"
    )
    assert {"cpu", "disk"} == set(loaded.hf_device_map.values())
    assert torch.equal(loaded(**inputs).logits, expected.logits)


# By default every choice in bfloat16, and some in float16.
HALF_PRECISION = [pytest.param(torch.bfloat16, CHOICES[name], id=f"bfloat16, {name}") for name in CHOICES]
for name in CHOICES:
    marks = [] if name in FAST else pytest.mark.slow
    HALF_PRECISION.append(pytest.param(torch.float16, CHOICES[name], id=f"float16, {name}", marks=marks))


@pytest.mark.parametrize(("dtype", "fields"), HALF_PRECISION)
def test_half_precision_is_nearly_float32_and_is_saved_and_loaded(fields, dtype, make_model, inputs, tmp_path):
    model = make_model(**FEW_LAYERS, **fields)
    model.save_pretrained(tmp_path / "wide")
    half = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "wide", dtype=dtype)
    assert {parameter.dtype for parameter in half.parameters()} == {dtype}
    tolerance = 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(half(**inputs).logits.float(), model(**inputs).logits, rtol=tolerance, atol=tolerance)
    source = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    assert half.generate(**source, max_new_tokens=4).shape[0] == 3
    # Loaded as float32, a model saved in half precision has rounded weights but exact positions.
    half.save_pretrained(tmp_path / "half")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "half")
    assert again.dtype == dtype
    assert torch.equal(again(**inputs).logits, half(**inputs).logits)
    wide = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "half", dtype=torch.float32)
    ours, theirs = (located(each.get_encoder().embed_positions, torch.arange(50)[None]) for each in (wide, model))
    if fields.get("position_embedding_type") != "learned":
        assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


# -- vocabularies ------------------------------------------------------------------------------------------------------


def rows(model):
    return (
        model.get_encoder().embed_tokens.num_embeddings,
        model.get_decoder().embed_tokens.num_embeddings,
        model.lm_head.out_features,
    )


@every_choice
@pytest.mark.parametrize("size", [68, 55])
def test_a_shared_vocabulary_can_be_resized(fields, size, make_wide_model, inputs, tmp_path):
    model = make_wide_model(**FEW_LAYERS, **fields, **({} if "lm_head_bias" in fields else {"lm_head_bias": True}))
    inputs = {name: value.clamp(max=54) for name, value in inputs.items()}
    if not model.config.share_encoder_decoder_embeddings:
        with pytest.raises(ValueError, match="share_encoder_decoder_embeddings is False: this model has two"):
            model.resize_token_embeddings(size)
        return
    with torch.no_grad():
        before = model(**inputs).logits
    model.resize_token_embeddings(size, mean_resizing=False)
    assert rows(model) == (size, size, size)
    kept = min(61, size)
    torch.testing.assert_close(model(**inputs).logits[..., :kept], before[..., :kept], rtol=0, atol=1e-6)
    assert len(model.lm_head.bias) == model.lm_head.out_features
    tied = model.config.tie_word_embeddings
    assert (model.lm_head.weight is model.get_decoder().embed_tokens.weight) == tied
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert rows(loaded) == rows(model)
    torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits)
    assert model.generate(inputs["input_ids"], max_new_tokens=3).shape[0] == 3
    model(**inputs).loss.backward()
    assert AutoModel.from_pretrained(tmp_path).resize_token_embeddings(57).num_embeddings == 57


def test_resizing_keeps_a_single_vocabulary(make_model):
    model = make_model(decoder_vocab_size=61)
    model.resize_token_embeddings(70)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (70, 70)


@pytest.mark.parametrize(("shared", "before", "after"), [(False, 70, 70), (True, 61, 68)])
def test_the_encoder_alone_can_be_resized(shared, before, after, tmp_path):
    fields = SMALL_MODEL | {"decoder_vocab_size": before, "share_encoder_decoder_embeddings": shared}
    encoder = ScratchEncoderModel(ScratchConfig(**fields))
    encoder.resize_token_embeddings(68)
    assert (encoder.config.vocab_size, encoder.config.decoder_vocab_size) == (68, after)
    encoder.save_pretrained(tmp_path)
    assert ScratchEncoderModel.from_pretrained(tmp_path).get_input_embeddings().num_embeddings == 68


# -- training tools ----------------------------------------------------------------------------------------------------


# PEFT's warning about embeddings that are not shared; save_pretrained compares the weights.
@pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied after merging:UserWarning")
@two_choices_and_slowly_every
def test_lora_trains_saves_loads_and_merges(fields, make_wide_model, inputs, tmp_path):
    model = make_wide_model(**fields)
    plain = model(**inputs).logits
    config = peft.LoraConfig(
        task_type="SEQ_2_SEQ_LM", r=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], init_lora_weights=False
    )
    tuned = peft.get_peft_model(model, config)
    adapted = [name for name, _ in tuned.named_modules() if name.endswith("lora_A.default")]
    layers = (1, 1) if fields.get("share_layers") else (2, 3)
    assert len(adapted) == 4 * (layers[0] + 2 * layers[1])  # every projection of every attention
    tuned.train()
    optimizer = torch.optim.Adam((each for each in tuned.parameters() if each.requires_grad), lr=1e-2)
    losses = []
    for _ in range(10):
        loss = tuned(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    tuned.eval()
    expected = tuned(**inputs).logits
    assert not torch.allclose(expected, plain, atol=1e-3)
    tuned.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(make_wide_model(**fields), tmp_path).eval()
    torch.testing.assert_close(loaded(**inputs).logits, expected)
    source = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    generated = loaded.generate(**source, max_new_tokens=5)
    merged = loaded.merge_and_unload()
    assert type(merged) is ScratchForConditionalGeneration
    torch.testing.assert_close(merged(**inputs).logits, expected, rtol=0, atol=1e-5)
    assert torch.equal(merged.generate(**source, max_new_tokens=5), generated)
    merged.save_pretrained(tmp_path / "merged")
    again, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    torch.testing.assert_close(again(**inputs).logits, expected, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied after merging:UserWarning")
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True` and a tied layer is part:UserWarning")
@pytest.mark.parametrize(("module", "shared"), [("embed_tokens", False), ("lm_head", True)])
def test_embeddings_that_merging_has_replaced_are_saved_as_separate(
    module, shared, make_model, inputs, tmp_path, caplog
):
    """PEFT 0.21 copies each module of modules_to_save, and changes tie_word_embeddings of the config, but no other."""
    model = make_model(**SHALLOW)
    tuned = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], modules_to_save=[module]))
    with torch.no_grad():
        for number, (name, weight) in enumerate(tuned.named_parameters()):
            if "modules_to_save" in name:
                weight += 0.1 * (number + 1)
    merged = tuned.merge_and_unload().eval()
    expected = merged(**inputs).logits
    merged.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["share_encoder_decoder_embeddings"], config["tie_word_embeddings"]) == (shared, False)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert "NOT tie" not in caplog.text
    for each in (merged, loaded):
        torch.testing.assert_close(each(**inputs).logits, expected, rtol=0, atol=1e-4)
        if shared:
            each.resize_token_embeddings(70)
            torch.testing.assert_close(each(**inputs).logits[..., :61], expected, rtol=0, atol=1e-4)
        else:
            with pytest.raises(ValueError, match="this model has two"):
                each.resize_token_embeddings(70)
        each.tie_weights()
        torch.testing.assert_close(each(**inputs).logits[..., :61], expected, rtol=0, atol=1e-4)


def test_seq2seq_trainer_accumulates_gradients_translates_and_saves(make_model, tmp_path):
    sources = ["The cat sleeps.", "The old man sees her.", "We run.", "The dog can see the old cat today."] * 2
    targets = ["Die Katze schläft.", "Der alte Mann sieht sie.", "Wir laufen.", "Der Hund kann sie sehen."] * 2
    tokenizer, start = train_tokenizer(iter([[*sources, *targets]]), 100), tmp_path / "start"
    make_model(vocab_size=len(tokenizer), dropout=0.0, **SHALLOW).save_pretrained(start)
    confidence = Confidence({"length_ratio": (0.5, 0.1)}, 7, NgramSet(b"1")).text()
    (start / "confidence.json").write_text(confidence)
    rows = Dataset.from_dict({"source": sources, "target": targets}).map(
        lambda row: tokenizer(row["source"], text_target=row["target"]), remove_columns=["source", "target"]
    )
    results = []
    for batch, accumulation in ((8, 1), (2, 4)):
        torch.manual_seed(0)
        model = AutoModelForSeq2SeqLM.from_pretrained(start)
        options = {"max_steps": 3, "learning_rate": 1e-2, "optim": "sgd", "lr_scheduler_type": "constant"}
        options |= {"max_grad_norm": 0.0, "predict_with_generate": True, "report_to": [], "save_strategy": "no"}
        options |= {"use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False}
        arguments = Seq2SeqTrainingArguments(
            output_dir=tmp_path / f"accumulation-{accumulation}",
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            **options,
        )
        trainer = Seq2SeqTrainer(
            model,
            arguments,
            DataCollatorForSeq2Seq(tokenizer, model),
            train_dataset=rows,
            eval_dataset=rows,
            compute_metrics=lambda output: {"starts": [int(ids[0]) for ids in output.predictions]},
        )
        trainer.train()
        metrics = trainer.evaluate(max_new_tokens=5)
        assert metrics["eval_loss"] > 0
        assert metrics["eval_starts"] == [1] * len(rows)  # translations, not logits
        trainer.save_model(tmp_path / f"saved-{accumulation}")
        assert (tmp_path / f"saved-{accumulation}" / "confidence.json").read_text() == confidence
        assert (tmp_path / f"saved-{accumulation}" / "training_args.bin").is_file()  # load_confidence warns of it
        results.append(model)
    whole, accumulated = (dict(each.named_parameters()) for each in results)
    started = dict(AutoModelForSeq2SeqLM.from_pretrained(start).named_parameters())
    assert any(not torch.equal(whole[name], started[name]) for name in whole)
    for name in whole:
        torch.testing.assert_close(accumulated[name], whole[name], rtol=0, atol=2e-6, msg=name)
    reloaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved-4")
    source = tokenizer(["The cat sleeps."], return_tensors="pt")
    assert torch.equal(reloaded.generate(**source, max_new_tokens=5), results[1].generate(**source, max_new_tokens=5))


@pytest.mark.slow
def test_a_model_sharded_by_its_fsdp_plan_equals_the_whole_one(tmp_path):
    environment = {"PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT / "tests")])}
    command = ["-m", "torch.distributed.run", "--standalone", "--local_addr", "127.0.0.1", "--nproc_per_node", "2"]
    result = run_command(*command, "tests/shard_and_compare.py", **environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("equal") == 2


def test_fsdp_plans_name_the_layers(make_model):
    model = make_model()
    for head in (model, model.model, ScratchEncoderModel(model.config)):
        plan = head._expand_parallel_plan(head.fsdp_plan)
        names = dict(head.named_modules())
        layers = SMALL_MODEL["encoder_layers"] + (0 if head.__class__ is ScratchEncoderModel else 3)
        assert len(plan) == layers
        assert set(plan) <= set(names)


def test_every_head_is_saved_with_its_code(make_model, tmp_path):
    """And the Auto classes load an encoder or decoder that was saved alone, not a model that is random in part."""
    model = make_model()
    whole, parts = [model, model.model], [ScratchEncoderModel(model.config), model.get_encoder(), model.get_decoder()]
    for head in (*parts, *whole):
        name = head.__class__.__name__
        head.save_pretrained(folder := tmp_path / name)
        auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
        if head in whole or name == "ScratchEncoderModel":
            assert auto_map["AutoModelForTextEncoding"] == "modeling_scratch.ScratchEncoderModel"
            assert {"modeling_scratch.py", "stacks.py", "text.py"} <= {path.name for path in folder.glob("*.py")}
        assert ("AutoModelForSeq2SeqLM" in auto_map) == (head in whole)
        assert auto_map["AutoModel"].rpartition(".")[2] == (name if head in parts else "ScratchModel")
        assert (folder / f"{auto_map['AutoModel'].partition('.')[0]}.py").is_file()
    for head in parts:
        folder = tmp_path / head.__class__.__name__
        loaders = [type(head), AutoModel]
        loaders += [AutoModelForTextEncoding] if head is not model.get_decoder() else []
        for loader in loaders:
            again, report = loader.from_pretrained(folder, output_loading_info=True)
            assert type(again) is type(head)
            assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
            assert all(map(torch.equal, again.state_dict().values(), head.state_dict().values()))
    refused = [(AutoModelForSeq2SeqLM, head) for head in parts]
    refused += [(AutoModelForTextEncoding, parts[2]), (ScratchEncoderModel, parts[1]), (ScratchEncoderModel, parts[2])]
    for loader, head in refused:
        with pytest.raises(ValueError, match="was saved alone"):
            loader.from_pretrained(tmp_path / head.__class__.__name__)


@pytest.mark.parametrize(
    "load",
    [
        "import pickle; model = pickle.load(open('model', 'rb'))",
        pytest.param(
            "from modeling_scratch.model.modeling_scratch import ScratchForConditionalGeneration as Model\n"
            "model = Model.from_pretrained('saved')",
            marks=pytest.mark.slow,
        ),
        *(
            pytest.param(
                f"import modeling_scratch.{module}\nfrom transformers import AutoModelForSeq2SeqLM\n"
                "model = AutoModelForSeq2SeqLM.from_pretrained('saved', trust_remote_code=True)",
                marks=marks,
            )
            for module, *marks in (
                ("training.fast_layers",),
                ("training.fused_loss", pytest.mark.slow),
            )
        ),
    ],
    ids=["pickle", "a module", "fast_layers", "fused_loss"],
)
def test_a_model_is_of_this_package_and_saved_with_its_code_however_it_came(load, make_model, tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path / "saved")
    (tmp_path / "model").write_bytes(pickle.dumps(model))
    code = f"import os; os.chdir({str(tmp_path)!r})\n{load}\nmodel.save_pretrained('again')"
    done = run_command("-c", f"{code}\nprint(type(model).__module__)", HF_HOME=str(tmp_path / "home"))
    assert done.stdout.strip() == "modeling_scratch.model.modeling_scratch", done.stderr
    before, after = ({path.name for path in (tmp_path / name).glob("*.py")} for name in ("saved", "again"))
    assert after == before > {"modeling_scratch.py"}


@pytest.mark.parametrize("architectures", [None, [], ["ScratchForConditionalGeneration"]])
def test_auto_classes_make_models_of_configs_that_name_no_part(architectures):
    """Transformers 5.24 iterates over the architectures, which are None in other configs that are not of a model."""
    config = ScratchConfig(**SMALL_MODEL, architectures=architectures)
    assert type(AutoModel.from_config(config)) is ScratchModel
    assert type(AutoModelForTextEncoding.from_config(config)) is ScratchEncoderModel
