"""
The model card of a run, from the run's own records. `card_text` keeps what is edited in it by hand, and checks it.
"""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.utils import validate_repo_id, yaml_dump

from .card_text import LANGUAGES, check_card, join_card, language_code, merge_card
from .recipe import EMBEDDED_CORPUS
from .run_folder import CURVES
from .run_records import RunRecords, without_folders
from .translation_pipeline import TARGET_FOLDER

__all__ = ["build_card", "check_card", "merge_card"]

PAPER = "https://arxiv.org/abs/1706.03762"
TAGS = ["translation", "scratch", "attention-is-all-you-need"]
METADATA_ORDER = ["language", "language_bcp47", "license", "library_name", "pipeline_tag", "base_model", "datasets"]
# A record's scores: their ids on hf.co/metrics, and titles. The `bleu` there is another one: of tokens, from 0 to 1.
SCORES = {"bleu": ("sacrebleu", "BLEU"), "chrf": ("chrf", "chrF"), "loss": ("loss", "Loss")}

CITATION = r"""```bibtex
@inproceedings{vaswani2017attention,
  title     = {Attention Is All You Need},
  author    = {Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and Jones, Llion and
               Gomez, Aidan N. and Kaiser, {\L}ukasz and Polosukhin, Illia},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {30},
  year      = {2017},
  url       = {https://arxiv.org/abs/1706.03762}
}
```"""

_MARKUP = re.compile(r"[\\`*_\[\]{}<>~|$&]")
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_FINAL_NORMS = {True: ", and one after each stack", False: "", "decoder": ", and one after the decoder"}


# -- Markdown ----------------------------------------------------------------------------------------------------------


def _escape(text: str) -> str:
    """Text that Markdown shows as it is, in one cell of a table: what could be markup becomes a character reference."""
    text = _MARKUP.sub(lambda match: f"&#{ord(match[0])};", text.strip())
    text = re.sub(r"\r\n?|[\n\u2028\u2029]", "<br>", text)
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, ["---"] * len(header), *rows])


def _language_name(tag: str) -> str:
    """English for en, Portuguese (pt-BR) for pt-BR; a tag that is not known is its own name."""
    name = LANGUAGES.get(language_code(tag) or "")
    return _escape(tag) if name is None else name if len(tag) == 2 else f"{name} ({_escape(tag)})"


def _pair(run: RunRecords) -> str:
    return " to ".join(map(_language_name, run.tags))


def _data_name(run: RunRecords) -> str:
    data = run.recipe.data
    if run.local:
        return f"local files ({_escape(run.file_names('train'))})"
    if run.embedded:
        return "the embedded corpus of modeling_scratch"
    subset = f" ({_escape(data.subset)})" if data.subset else ""
    return f"[{data.name}](https://huggingface.co/datasets/{data.name}){subset}"


def _duration(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} hours"
    return f"{round(seconds) // 60} min {round(seconds) % 60} s" if seconds >= 60 else f"{seconds:.1f} s"


def _plural(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


# -- the card ----------------------------------------------------------------------------------------------------------


def check_license(license: str | None) -> str:
    """A license's id, apache-2.0 for None. ValueError if it cannot be one."""
    license = "apache-2.0" if license is None else license.strip().lower()
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
        raise ValueError(f"license is {license!r}; see https://huggingface.co/docs/hub/repositories-licenses")
    return license


def check_languages(*tags: str) -> None:
    """ValueError for language tags that a card cannot say in ISO 639 codes."""
    if wrong := [tag for tag in tags if language_code(tag) is None]:
        raise ValueError(
            f"{' and '.join(map(repr, wrong))}: no ISO 639 codes, as en or deu, which a model's card must have; set "
            "data.source_language and data.target_language to codes (data.source_column names a column of another name)"
        )


def build_card(folder: Path, repo_id: str, license: str | None = None) -> ModelCard:
    """
    The card of the run in a folder.

    Args:
        folder: of a run that has ended or, while it goes on, has been evaluated.
        repo_id: where the model goes, user/name.
        license: an id of https://huggingface.co/docs/hub/repositories-licenses. None: apache-2.0.

    Raises:
        ValueError: a record is missing or damaged; `repo_id` or `license` cannot be one.
    """
    validate_repo_id(repo_id)
    license = check_license(license)
    run, name = RunRecords(Path(folder)), repo_id.split("/")[-1]
    results = _eval_results(run)
    data = ModelCardData(
        language=run.languages or None,
        language_bcp47=run.tags if run.languages and any("-" in tag for tag in run.tags) else None,
        license=license,
        library_name="transformers",
        pipeline_tag="translation",
        base_model=run.base_model,
        datasets=[run.dataset] if run.dataset else None,
        tags=list(TAGS),
        metrics=list(dict.fromkeys(result.metric_type for result in results)),
        model_name=name,
        eval_results=results,
    )
    sections = {
        "How to use": _usage(run, repo_id),
        "Results": _results(run),
        "Sample translations": _samples(run),
        "Architecture": _architecture(run),
        "Training": _training(run),
        "Curves": f"![Loss, scores and learning rate over the updates]({CURVES})" * (run.folder / CURVES).is_file(),
        "Limits and intended use": _limits(run),
        "Citation": CITATION,
    }
    body = [f"# {name}: {_pair(run)}", _summary(run)]
    body += [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    return ModelCard(join_card(data.to_yaml(original_order=METADATA_ORDER), body))


def _scores_of(record: dict[str, Any]) -> list[str]:
    return [key for key in ("bleu", "chrf") if key in record] or ["loss"]


def _eval_results(run: RunRecords) -> list[EvalResult]:
    data, results = run.recipe.data, []
    for record in run.scored:
        split = record["split"]
        if run.dataset:
            dataset = {"dataset_type": run.dataset, "dataset_name": run.dataset, "dataset_config": data.subset}
            split = getattr(data, split) or split
        elif run.local:
            dataset = {"dataset_type": "local", "dataset_name": run.file_names(split)}
        else:
            dataset = {"dataset_type": EMBEDDED_CORPUS, "dataset_name": "the embedded corpus of modeling_scratch"}
        for key in _scores_of(record):
            signature = record.get(f"{key}_signature")
            metric, title = SCORES[key]
            results.append(
                EvalResult(
                    task_type="translation",
                    task_name=f"Translation {'-'.join(run.tags)}",
                    **dataset,
                    dataset_split=split,
                    metric_type=metric,
                    metric_name=title,
                    metric_value=record[key],
                    metric_args={"signature": signature} if signature else None,
                )
            )
    return results


def _summary(run: RunRecords) -> str:
    config = run.config
    if run.base_model:
        origin = f"fine-tuned from [{run.base_model}](https://huggingface.co/{run.base_model})"
    else:
        origin = "fine-tuned from another model" if run.recipe.model.start_from else "trained from random weights"
    size = f"{run.parameters / 1e6:,.1f} million" if run.parameters >= 1e6 else f"{run.parameters:,}"
    version = run.machine.get("modeling_scratch")
    return (
        f'This model translates {_pair(run)}. It is an encoder-decoder Transformer as in ["Attention Is All You Need"]'
        f"({PAPER}), with {size} parameters, {_plural(config.encoder_layers, 'encoder layer')} and "
        f"{_plural(config.decoder_layers, 'decoder layer')} of width {config.d_model}. It was {origin} on "
        f"{_data_name(run)}, with modeling_scratch{f' {version}' if version else ''}."
    )


def _usage(run: RunRecords, repo_id: str) -> str:
    sources = sorted((" ".join(sample.get("source", "").split()) for sample in run.samples), key=len)
    sources = [source for source in sources if source] or ["..."]
    one, batch = json.dumps(sources[0], ensure_ascii=False), json.dumps(sources[:2], ensure_ascii=False)
    two = run.two_vocabularies
    load = f'AutoTokenizer.from_pretrained("{repo_id}", trust_remote_code=True'
    target = f'target_tokenizer = {load}, subfolder="{TARGET_FOLDER}")\n' if two else ""
    decoder = "target_tokenizer" if two else "tokenizer"
    needed = "torch, transformers and sentencepiece" if any(run.folder.glob("*.spm")) else "torch and transformers"
    blocks = [
        f"All that has to be installed is {needed}. `trust_remote_code=True` runs the model's code, which is in this "
        "repository: read its `.py` files first, and pin what you have read by `revision=COMMIT`."
    ]
    if run.pipeline:
        blocks.append(
            f"""As a pipeline:

```python
from transformers import pipeline

translator = pipeline("translation", model="{repo_id}", trust_remote_code=True)
print(translator({one}))
print(translator({batch}, num_beams=4))
```"""
        )
    blocks.append(
        f"""With the Auto classes{", and a tokenizer for each of the two vocabularies" if two else ""}:

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = {load})
{target}model = AutoModelForSeq2SeqLM.from_pretrained("{repo_id}", trust_remote_code=True)

inputs = tokenizer({one}, return_tensors="pt")
print({decoder}.decode(model.generate(**inputs)[0], skip_special_tokens=True))
```

A batch is padded to its longest sentence; the attention mask hides the padding:

```python
sentences = {batch}
inputs = tokenizer(sentences, padding=True, return_tensors="pt")
print({decoder}.batch_decode(model.generate(**inputs), skip_special_tokens=True))
```"""
    )
    limit = run.generation.get("max_new_tokens")
    end = f", and writes at most {limit:,} tokens" if limit else ""
    blocks.append(f"Unless it is told otherwise, `generate` {_search(run.generation)}{end}.")
    return "\n\n".join(blocks)


def _search(settings: dict[str, Any]) -> str:
    if (settings.get("num_beams") or 1) == 1:
        return "takes the likeliest token at each step"
    penalty = settings.get("length_penalty")
    return f"searches with {settings['num_beams']} beams and length penalty {1.0 if penalty is None else penalty:g}"


def _results(run: RunRecords) -> str:
    keys = [key for key in SCORES if any(key in _scores_of(record) for record in run.scored)]
    rows = [
        [record["split"], *(f"{record[key]:.2f}" if key in record else "" for key in keys)] for record in run.scored
    ]
    table = _table(["Split", *(SCORES[key][1] for key in keys)], rows)
    signatures = [
        f"- {SCORES[key][1]}: `{signature}`"
        for key in keys
        for signature in dict.fromkeys(record.get(f"{key}_signature") for record in run.scored)
        if signature
    ]
    evaluation = run.recipe.evaluation
    if run.finished:
        search = _search({"num_beams": evaluation.num_beams, "length_penalty": evaluation.length_penalty})
        state = f"Scores of the final weights. Decoding {search}."
    else:
        state = (
            f"The training goes on; these are the best weights so far, of update {run.scored[0]['step']:,}. Decoding "
            f"{_search({'num_beams': evaluation.validation_beams, 'length_penalty': evaluation.length_penalty})}."
        )
    if keys == ["loss"]:
        scale = "Loss is the cross-entropy of a target token, in nats."
    else:
        scale = "BLEU and chrF are sacreBLEU's, of the whole split, cased and detokenized, from 0 to 100."
    blocks = [f"{state} {scale}", table]
    return "\n\n".join(blocks + (["Signatures:\n\n" + "\n".join(signatures)] if signatures else []))


def _samples(run: RunRecords) -> str:
    if not run.samples:
        return ""
    fields = ("source", "reference", "translation")
    rows = [[_escape(sample.get(field, "")) for field in fields] for sample in run.samples]
    header = [_language_name(run.tags[0]), "Reference", "Translation"]
    split = next((split for split in ("test", "validation") if any(r["split"] == split for r in run.scored)), "test")
    return f"The first sentences of the {split} split, not chosen:\n\n{_table(header, rows)}"


def _architecture(run: RunRecords) -> str:
    config = run.config

    def both(field: str) -> str:
        encoder, decoder = getattr(config, f"encoder_{field}"), getattr(config, f"decoder_{field}")
        return f"{encoder:,}" if encoder == decoder else f"{encoder:,} in the encoder, {decoder:,} in the decoder"

    tied = [
        "source and target" * config.share_encoder_decoder_embeddings,
        "target and output projection" * config.tie_word_embeddings,
    ]
    vocabulary = f"{config.vocab_size:,} tokens"
    if run.two_vocabularies or config.target_vocab_size != config.vocab_size:
        vocabulary = f"{config.vocab_size:,} source and {config.target_vocab_size:,} target tokens"
    biases = {"attention": config.attention_bias, "feed-forward": config.ffn_bias, "output": config.lm_head_bias}
    rows = {
        "Parameters": f"{run.parameters:,} ({', '.join(DTYPES.get(dtype, dtype) for dtype in run.dtypes)})",
        "Layers": f"{config.encoder_layers} encoder, {config.decoder_layers} decoder",
        "Width (`d_model`)": f"{config.d_model:,}",
        "Attention heads": both("attention_heads"),
        "Feed-forward width": f"{both('ffn_dim')}, {config.activation_function}" + ", gated" * config.gated_ffn,
        "Norm": f"{config.norm_type.replace('_', ' ')}, {'before' if config.norm_position == 'pre' else 'after'} each "
        f"sub-layer{_FINAL_NORMS[config.final_norm]}",
        "Positions": config.position_embedding_type,
        "Vocabulary": vocabulary,
        "Shared embeddings": "; ".join(filter(None, tied)) or "none",
        "Biases": ", ".join(name for name, has in biases.items() if has) or "none",
        "Dropout": f"{config.dropout:g} (attention weights {config.attention_dropout:g}, inside the feed-forward "
        f"{config.activation_dropout:g})",
    }
    return _table(["Property", "Value"], rows.items())


def _training(run: RunRecords) -> str:
    recipe, train, machine = run.recipe, run.train, run.machine
    how, data = recipe.optimization, recipe.data
    tokenizer = f"byte-level BPE, at most {recipe.tokenizer.vocab_size:,} tokens, trained on the training pairs"
    if recipe.model.start_from:
        tokenizer = "that of the model it started from"
    elif recipe.tokenizer.existing:
        tokenizer = f"adopted: {_escape(without_folders(recipe.tokenizer.existing))}"
    kept = f"the best on the validation split by {SCORES[recipe.evaluation.metric][1]}"
    if recipe.checkpoints.average_last > 1 and run.finished:
        kept = f"the average of the last {_plural(recipe.checkpoints.average_last, 'checkpoint')}"
    precision = machine.get("mixed_precision")
    rows = {
        "Data": _data_name(run) + (f", {_plural(machine['train_pairs'], 'pair')}" if "train_pairs" in machine else ""),
        "Longest pair": f"{data.max_source_tokens:,} source and {data.max_target_tokens:,} target tokens",
        "Tokenizer": tokenizer,
        "Updates": f"{train['step']:,}" if train else "",
        "Epochs": f"{train['epoch']:g}" if train else "",
        "Batch": f"{how.tokens_per_batch:,} padded tokens of source or target, over all processes",
        "Optimizer": f"AdamW, betas {how.betas[0]:g} and {how.betas[1]:g}, epsilon {how.epsilon:g}, weight decay "
        f"{how.weight_decay:g}, "
        + (f"gradient norm at most {how.max_grad_norm:g}" if how.max_grad_norm else "no clipping"),
        "Learning rate": f"{how.learning_rate:g} at its peak, {_plural(how.warmup_steps, 'warm-up update')}, then "
        f"{how.schedule.replace('_', ' ')}",
        "Label smoothing": f"{how.label_smoothing:g}",
        "Weights kept": kept,
        "Seed": str(recipe.seed),
        "Hardware": _hardware(machine),
        "Precision": "float32" if precision == "no" else f"mixed, {precision}" if precision else "",
        "Time": f"{_duration(train['seconds'])}, evaluations not counted" if "seconds" in train else "",
        "Target tokens": f"{train['target_tokens']:,} over all epochs" if "target_tokens" in train else "",
        "Versions": ", ".join(f"{name} {machine[name]}" for name in ("torch", "transformers") if name in machine),
    }
    table = _table(["Setting", "Value"], ((name, value) for name, value in rows.items() if value))
    content = yaml_dump(run.shown_recipe(), sort_keys=False, width=math.inf).strip()
    return f"""{table}

<details>
<summary>The whole recipe</summary>

```yaml
{content}
```

</details>"""


def _hardware(machine: dict[str, Any]) -> str:
    if "device_name" not in machine:
        return ""
    name, processes = _escape(machine["device_name"]), machine.get("processes", 1)
    kind = {"cuda": "GPU", "cpu": "CPU"}.get(machine.get("device"), machine.get("device") or "device")
    return f"{kind}: {name}" + (f", {processes} processes" if processes > 1 else "")


def _limits(run: RunRecords) -> str:
    data, config = run.recipe.data, run.config
    source, target = map(_language_name, run.tags)
    if run.embedded and not run.local:
        domain = (
            "The embedded corpus is made by a small grammar: a few hundred words, and one right translation for each "
            "sentence. The model knows nothing else: it shows that the training works, and does not translate ordinary "
            f"{source} text. Its scores cannot be compared with those on natural text."
        )
    else:
        there = (
            ": see there for where the text is from and what its terms are"
            if run.dataset
            else ", not part of this repository"
        )
        domain = (
            f"It was trained on {_data_name(run)}{there}. Its scores are on text of the same origin; expect worse on "
            "text of another topic, style, time or spelling."
        )
    if run.recipe.model.start_from:
        domain += " What the model that it was fine-tuned from had learnt, and its limits, are in it too."
    lengths = (
        f"It was trained on single sentences of at most {data.max_source_tokens:,} source and "
        f"{data.max_target_tokens:,} target tokens, without their context: what a pronoun stands for in the sentence "
        "before is not known to it, and longer texts have to be cut into sentences. "
    )
    if config.position_embedding_type == "learned":
        lengths += f"More than {config.max_position_embeddings:,} tokens are an error."
    else:
        lengths += "It takes longer input, but has not learnt to translate it."
    points = {
        "Meant for": f"research, teaching and experiments in translating {source} to {target}, and as a start for "
        "fine-tuning. Where an error does harm, as in medicine or law, somebody who knows both languages has to read "
        "what it writes.",
        "Data.": domain,
        "Length.": lengths,
        "Errors.": "A translation may read well and be wrong: names, numbers and negations may change, words may be "
        f"left out or repeated. It always answers, also to what is not {source}.",
        "No filter.": "Nothing filters what it reads or writes. It can repeat the biases of its data and write what "
        "offends; the records of its training hold no test of that.",
    }
    return "\n".join(f"- **{title}** {text}" for title, text in points.items())
