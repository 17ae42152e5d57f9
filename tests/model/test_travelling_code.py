"""The code that travels with a checkpoint only uses public interfaces, and it alone decides what the model computes."""

import ast
import json
import shutil
import sys

import compatibility
import pytest
import torch
from conftest import ROOT
from transformers import AutoConfig, GenerationMixin
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration

PACKAGE = ROOT / "modeling_scratch" / "model"
# Private names of other packages that may be read, and why.
READ = {
    "_attn_implementation": "the documented way for a model to learn which attention function was chosen",
    "_upload_modified_files": "the inherited method, of the one that is overridden",
}
# Private hooks of Transformers' base classes that are overridden; only Transformers calls them.
OVERRIDDEN = {
    "_init_weights": "initializes a module",
    "_tied_weights_keys": "weights that are one",
    "_keys_to_ignore_on_load_unexpected": "the encoder alone reads a whole checkpoint",
    "_no_split_modules": "layers stay on one device",
    "_supports_sdpa": "attention functions",
    "_can_compile_fullgraph": "static caches may compile",
    "_fsdp_plan": "how FSDP shards",
    "_upload_modified_files": "the confidence is pushed too",
    "_sanitize_parameters": "abstract in Pipeline",
    "_forward": "abstract in Pipeline",
    "_load_tokenizer": "what `pipeline` loads",
    "_load_processor": "what `pipeline` loads",
    "_load_image_processor": "what `pipeline` loads",
    "_load_video_processor": "what `pipeline` loads",
    "_load_feature_extractor": "what `pipeline` loads",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return compatibility.make_models(tmp_path_factory.mktemp("models"))


def travelling(folder) -> list:
    return sorted(folder.glob("*.py"))


def siblings(path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_private_names_are_our_own_or_listed(saved):
    seen = set()
    for path in travelling(saved["default"]):
        tree = ast.parse(path.read_text())
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)} - set(
            OVERRIDDEN
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                names = [part for alias in node.names for part in alias.name.split(".")]
                names += (getattr(node, "module", None) or "").split(".")
                assert not any(map(is_private, names)), f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                calls_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") and node.attr in own
                sets = isinstance(node.ctx, ast.Store) and node.attr in OVERRIDDEN
                assert calls_own or sets or node.attr in READ, f"{path.name}:{node.lineno}: {node.attr}"
                seen.add(node.attr)
            # Names in strings count too.
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "setattr"):
                name = node.args[1]
                assert not (isinstance(name, ast.Constant) and is_private(name.value)), f"{path.name}:{node.lineno}"
    assert set(READ) <= seen


def test_overridden_private_hooks_are_listed(saved):
    found = set()
    for base in (ScratchForConditionalGeneration, *ScratchForConditionalGeneration.__mro__, ScratchConfig):
        if base.__module__.startswith("modeling_scratch."):
            theirs = {
                name for other in base.__mro__ if other.__module__.startswith("transformers.") for name in vars(other)
            }
            found |= {name for name in vars(base) if is_private(name)} & theirs
    assert found <= set(OVERRIDDEN) | {"_auto_class"}


def test_travelling_files_only_import_each_other_and_the_libraries(saved):
    """Transformers up to 5.8 copies only the files that modeling_scratch.py or the pipeline import directly."""
    imported = {path.stem: siblings(path) for path in travelling(saved["default"])}
    assert imported["modeling_scratch"] == imported.keys() - {"modeling_scratch"}
    for name in imported["translation_pipeline"]:
        assert imported[name] <= imported["translation_pipeline"], name
    for path in travelling(saved["default"]):
        assert path.read_text() == (PACKAGE / path.name).read_text()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level:
                top = node.module.split(".")[0]
                assert top in {"torch", "transformers", "huggingface_hub"} | set(sys.stdlib_module_names), path.name


@pytest.mark.slow
def test_renaming_every_private_method_of_generation_mixin_changes_nothing(saved, tmp_path, monkeypatch, capsys):
    """As a later release of Transformers might."""
    names = [str(saved["modern"]), str(saved["alibi"])]  # with two vocabularies, and with shared layers
    monkeypatch.setattr(sys, "argv", ["-c", json.dumps(names), json.dumps(compatibility.SENTENCES)])
    exec(compatibility.PROBE.replace("transformers_modules.", "modeling_scratch."), {})  # the code is imported here
    expected = list(json.loads(capsys.readouterr().out.splitlines()[-1]).values())
    compatibility.rename_private_methods(tmp_path / "renamed")
    found = compatibility.probe(sys.executable, names, tmp_path, PYTHONPATH=str(tmp_path / "renamed"))
    assert not [each["error"] for each in expected + found if "error" in each]
    for each, wanted in zip(found, expected, strict=True):
        assert all(compatibility.compare(each, wanted))


# Edits that an owner may make to the source: (text, its replacement).
EDITS = {
    "layers.py": (
        "hidden_states = residual + drop(self.dropout, hidden_states)",
        "hidden_states = residual + 0.3 * hidden_states.tanh()",
    ),
    "attention.py": (
        "query = self.split_heads(self.q_proj(hidden_states), beams)",
        "query = self.split_heads(self.q_proj(hidden_states).flip(-1), beams)",
    ),
    "position_embeddings.py": ("distances = (query", "distances = 3 * (query"),
    "stacks.py": ("return inputs_embeds * self.embed_scale", "return inputs_embeds.sin() * self.embed_scale"),
}


def generated(folder) -> list[torch.Tensor]:
    """Greedy and beam search with the code in a folder, whose results must equal those of the inherited loops."""
    name = "modeling_scratch.ScratchForConditionalGeneration"
    model = get_class_from_dynamic_module(name, str(folder)).from_pretrained(folder).eval().double()
    assert type(model).__module__.startswith(f"transformers_modules.{folder.name}.")
    ids = torch.randint(4, 60, (6, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 5:] = mask[2, 3:] = 0
    results = []
    for beams in (1, 4):
        options = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 12, "num_beams": beams}
        options["return_dict_in_generate"] = True
        own, inherited = model.generate(**options), GenerationMixin.generate(model, **options)
        assert "Search" in type(own).__name__
        assert "Search" not in type(inherited).__name__
        assert torch.equal(own.sequences, inherited.sequences)
        results.append(own.sequences)
    return results


@pytest.fixture(scope="module")
def unedited(saved):
    return generated(saved["alibi"])


@pytest.mark.parametrize("name", EDITS)
def test_edits_of_a_checkpoints_code_change_what_it_generates(name, saved, unedited, tmp_path):
    """In our own search as in the inherited loops."""
    folder = tmp_path / f"edited_{name.removesuffix('.py')}"
    shutil.copytree(saved["alibi"], folder)
    text, replacement = EDITS[name]
    source = (folder / name).read_text()
    assert text in source
    (folder / name).write_text(source.replace(text, replacement))
    pairs = zip(generated(folder), unedited, strict=True)
    assert not all(torch.equal(found, before) for found, before in pairs)


def test_the_config_accepts_keys_of_later_releases(saved, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads((saved["default"] / "config.json").read_text()) | {"a_later_key": 1}))
    assert AutoConfig.from_pretrained(tmp_path, another_later_key=2).a_later_key == 1
    assert ScratchConfig(a_later_key=1).a_later_key == 1
