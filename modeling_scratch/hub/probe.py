"""
Observe what a model folder makes of some sentences: ids, logits and outputs. Run as a script, this loads the folder as
a stranger would, with the folder's own code: python -P probe.py FOLDER SENTENCES.json OUT.pt

This module imports nothing from this project; run as a script, it also keeps the folder's code from doing so.
"""

import json
import sys
from importlib.abc import MetaPathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedConfig, pipeline

TARGET_FOLDER = "target_tokenizer"
HANDLER = "handler.py"  # of Inference Endpoints
PROJECT = "modeling_scratch"
PIPED = 4  # sentences
TASKS = {"text2text-generation": "generated_text", "translation": "translation_text"}  # and the keys of their results
_REFUSED = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


def observe(
    folder: str, sentences: list[str], trust_remote_code: bool, pipeline_class: type | None = None
) -> dict[str, Any]:
    """
    Load a folder's model and tokenizers, and run sentences through them, or random ids if there is no tokenizer.

    Args:
        pipeline_class: None: the folder's own.

    Returns:
        `input_ids`, `decoded` (the ids decoded again), `logits` (batch_size, 8, target vocabulary) for a fixed target,
        `outputs`, `pipeline` (its outputs for some sentences, if the folder has one), `handler` (the answers of the
        folder's handler.py if its code is trusted; without one, or if its owner has edited it, the outputs of the
        pipeline again), `loading` (weights that were missing or unexpected).
    """
    source = None
    if (Path(folder) / "tokenizer_config.json").is_file():
        source = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    target = source
    if (Path(folder) / TARGET_FOLDER).is_dir():
        target = AutoTokenizer.from_pretrained(folder, subfolder=TARGET_FOLDER, trust_remote_code=trust_remote_code)
    model, report = AutoModelForSeq2SeqLM.from_pretrained(
        folder, trust_remote_code=trust_remote_code, output_loading_info=True, dtype=torch.float32
    )
    model.eval()
    inputs = source(sentences, padding=True, return_tensors="pt") if source else _random_inputs(model.config)
    with torch.inference_mode():
        torch.manual_seed(0)  # for models that sample
        ids = model.generate(**inputs)
        # A fixed target: outputs of other lengths would give logits of other shapes.
        vocabulary = model.config.decoder_vocab_size or model.config.vocab_size
        fixed = torch.arange(8).repeat(len(inputs["input_ids"]), 1) % vocabulary
        logits = model(**inputs, decoder_input_ids=fixed).logits
    piped = handled = []
    named = getattr(model.config, "custom_pipelines", None) or {}
    if source and (task := next((name for name in TASKS if name in named), None)):
        options = {"pipeline_class": pipeline_class, "trust_remote_code": trust_remote_code}
        # Not on a GPU, which may be busy with training. The overloads list the tasks of Transformers alone.
        piping = pipeline(task, model=folder, device="cpu", **options)  # type: ignore[call-overload]
        torch.manual_seed(0)
        lengths, longest = inputs["attention_mask"].sum(dim=1), model.config.max_position_embeddings
        taken = [text for text, length in zip(sentences, lengths, strict=True) if length <= longest]
        piped = handled = [result[TASKS[task]] for result in piping(taken[:PIPED])]
        if trust_remote_code and (Path(folder) / HANDLER).is_file():
            torch.manual_seed(0)
            answers = load_handler(folder)({"inputs": taken[:PIPED]})
            if (Path(folder) / HANDLER).read_bytes() == Path(__file__).with_name(HANDLER).read_bytes():
                handled = [answer[TASKS[task]] for answer in answers]
    return {
        "input_ids": inputs["input_ids"].tolist(),
        "decoded": source.batch_decode(inputs["input_ids"], skip_special_tokens=True) if source else [],
        "logits": logits.clone(),
        "outputs": target.batch_decode(ids, skip_special_tokens=True) if target else ids.tolist(),
        "pipeline": piped,
        "handler": handled,
        "loading": sorted(report["missing_keys"]) + sorted(report["unexpected_keys"]),
    }


def _random_inputs(config: PreTrainedConfig) -> dict[str, torch.Tensor]:
    ids = torch.randint(config.vocab_size, (PIPED, 8), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def load_handler(folder: str) -> Any:
    """The EndpointHandler in a folder's handler.py, loaded as Inference Endpoints does."""
    spec = spec_from_file_location("handler.EndpointHandler", Path(folder) / HANDLER)
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, folder)
    sys.modules[spec.name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EndpointHandler(folder)


def _no_connections(event: str, arguments: tuple) -> None:
    """An audit hook against accidental connections and processes; malicious code can get around it."""
    if event in _REFUSED or (event.startswith("socket.") and event not in ("socket.__new__", "socket.gethostname")):
        raise PermissionError(f"the folder's code wants a connection, or another process ({event})")


class _Refuse(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] == PROJECT:
            raise ImportError(f"{fullname} is not available to strangers: the folder's own code must do")


if __name__ == "__main__":
    sys.meta_path.insert(0, _Refuse())
    sys.addaudithook(_no_connections)
    model_folder, sentence_file, output_file = sys.argv[1:]
    observed = observe(model_folder, json.loads(Path(sentence_file).read_text(encoding="utf-8")), True)
    torch.save(observed, output_file)
