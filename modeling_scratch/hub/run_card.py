"""Generate the model card of a run from its records: scores, samples, recipe, machine, curves, limits."""

from collections.abc import Iterable
from typing import Any

from huggingface_hub import EvalResult, ModelCard

from ..card_markdown import escape, hub_link, plural, table
from ..metrics import METRICS, RESAMPLES, describe_heads, describe_score, scores_in, tells_nothing, title_of
from ..runs.folder import CURVES
from ..runs.metrics_file import scored_set
from .model_folder import read_facts
from .plain_card import ModelFacts, describe_search, limits, make_card
from .run_records import RunRecords

PACKAGES = ("torch", "transformers", "datasets", "tokenizers", "sacrebleu", "modeling_scratch")
_WIDGET_EXAMPLES = 3


def card_of_run(
    run: RunRecords, repo_id: str, languages: Iterable[str], metadata: dict[str, Any], author: str | None
) -> ModelCard:
    tags = list(languages) or run.tags
    facts = read_facts(run.folder, tags)
    facts.base_model = run.base_model
    facts.sources = sorted(filter(None, (" ".join(each.get("source", "").split()) for each in run.samples)), key=len)
    results = _eval_results(run, tags)
    metadata |= {
        "language_bcp47": tags if facts.codes and any("-" in tag for tag in tags) else None,
        "datasets": [found.hub_name for found in (run.provenance(), *run.mixed()) if found.hub_name] or None,
        "widget": _widget(run) or None,
        "metrics": list(dict.fromkeys(result.metric_type for result in results)),
        "model_name": repo_id.split("/")[-1],
        "eval_results": results,
    }
    sections = {
        "Results": _results(run),
        "Sample translations": _samples(run, facts),
        "Training": _training(run),
        "Curves": _curves(run),
        "Limits and intended use": _limits(run, facts),
    }
    return make_card(facts, repo_id, _origin(run), author, metadata, sections)


def _origin(run: RunRecords) -> str:
    if run.base_model:
        origin = f"fine-tuned from {hub_link(run.base_model)}"
    else:
        origin = "fine-tuned from another model" if run.recipe.model.start_from else "trained from random weights"
    version = run.machine.get("modeling_scratch")
    return f"It was {origin} on {run.training_data()}, with modeling_scratch{f' {version}' if version else ''}."


def _duration(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} hours"
    return f"{round(seconds) // 60} min {round(seconds) % 60} s" if seconds >= 60 else f"{seconds:.1f} s"


def _widget(run: RunRecords) -> list[dict[str, Any]]:
    """Examples for the widget beside the card on the Hub: sentences to try, and their translations."""
    pairs = [(sample.get("source", ""), sample.get("translation", "")) for sample in run.samples]
    plain = [pair for pair in pairs if pair[0] and not any("\n" in text for text in pair)]
    return [{"text": source, "output": {"text": translation}} for source, translation in plain[:_WIDGET_EXAMPLES]]


def _eval_results(run: RunRecords, tags: list[str]) -> list[EvalResult]:
    results = []
    for record in run.scored:
        split = record["split"]
        if name := record.get("name"):
            dataset = {"dataset_type": name, "dataset_name": name}
        else:
            found = run.provenance(split)
            dataset = {"dataset_type": found.dataset_type, "dataset_name": found.dataset_name}
            dataset |= {"dataset_config": found.subset} if found.subset else {}
            split = found.split or split
        for key in scores_in(record):
            signature = record.get(f"{key}_signature")
            results.append(
                EvalResult(
                    task_type="translation",
                    task_name=f"Translation {'-'.join(tags)}",
                    **dataset,
                    dataset_split=split,
                    metric_type=METRICS[key].hub_id if key in METRICS else key,
                    metric_name=title_of(key),
                    metric_value=round(record[key], 2),
                    metric_args={"signature": signature} if signature else None,
                )
            )
    return results


def _results(run: RunRecords) -> str:
    keys = [key for key in (*METRICS, "loss") if any(key in scores_in(record) for record in run.scored)]
    counted = any("sentences" in record for record in run.scored)
    rows = [
        [
            escape(scored_set(record)),
            *(describe_score(record, key) if key in record else "" for key in keys),
            *([f"{record['sentences']:,}" if "sentences" in record else ""] if counted else []),
        ]
        for record in run.scored
    ]
    scores = table(["Test set", *map(title_of, keys), *(["Sentences"] if counted else [])], rows)
    evaluation = run.recipe.evaluation
    if run.finished:
        search = describe_search({"num_beams": evaluation.num_beams, "length_penalty": evaluation.length_penalty})
        state = f"Scores of the final weights. Decoding {search}."
    else:
        beams = {"num_beams": evaluation.validation_beams, "length_penalty": evaluation.length_penalty}
        state = (
            f"The training goes on; these are the best weights so far, of update {run.scored[0]['step']:,}. Decoding "
            f"{describe_search(beams)}."
        )
    scale = _scale(run, keys)
    return "\n\n".join(filter(None, [f"{state} {scale}", scores, _signatures(run, keys), _evaluations(run)]))


def _scale(run: RunRecords, keys: list[str]) -> str:
    """What the scores measure."""
    if keys == ["loss"]:
        return "Loss is the cross-entropy of a target token, in nats."
    said = ["Scores are of the whole test set, detokenized."]
    for key in keys:
        if key in METRICS:
            direction = "higher" if METRICS[key].higher_is_better else "lower"
            said.append(f"{METRICS[key].title}: {METRICS[key].description}; {direction} is better.")
    if any(f"{key}_interval" in record for record in run.scored for key in keys):
        said.append(f"± is half the 95 % interval over {RESAMPLES:,} bootstrap resamples of the sentences.")
    return " ".join(said)


def _signatures(run: RunRecords, keys: list[str]) -> str:
    lines = [
        f"- {title_of(key)}: `{signature}`"
        for key in keys
        for signature in dict.fromkeys(record.get(f"{key}_signature") for record in run.scored)
        if signature
    ]
    lines += dict.fromkeys(f"- {line}" for record in run.scored for line in describe_heads(record))
    return "Signatures:\n\n" + "\n".join(lines) if lines else ""


def _evaluations(run: RunRecords) -> str:
    if not run.evaluations:
        return ""
    columns = {"train_loss": "Training loss", "loss": "Validation loss"}
    columns |= {key: title_of(key) for key in METRICS if any(key in record for record in run.evaluations)}
    rows = [
        [f"{record['step']:,}", *(f"{record[key]:.2f}" if record.get(key) is not None else "" for key in columns)]
        for record in run.evaluations
    ]
    return f"""<details>
<summary>Evaluations on the validation split while it was trained</summary>

{table(["Update", *columns.values()], rows)}

Losses are per target token, in nats. The training loss is the mean over the preceding updates, with dropout.

</details>"""


def _samples(run: RunRecords, facts: ModelFacts) -> str:
    if not run.samples:
        return ""
    fields = ("source", "reference", "translation")
    rows = [[escape(sample.get(field, "")) for field in fields] for sample in run.samples]
    of = next(scored_set(record) for record in run.scored if "samples" in record)
    shown = table([facts.languages[0], "Reference", "Translation"], rows)
    return f"The first sentences of `{of}`, not hand-picked:\n\n{shown}"


def _curves(run: RunRecords) -> str:
    if not (run.folder / CURVES).is_file():
        return ""
    return f"![Loss, scores and learning rate over the updates]({CURVES})"


def _training(run: RunRecords) -> str:
    recipe, train, machine = run.recipe, run.train, run.machine
    how, data = recipe.optimization, recipe.data
    tokenizer = f"byte-level BPE, at most {recipe.tokenizer.vocab_size:,} tokens, trained on the training pairs"
    if recipe.model.start_from:
        tokenizer = "taken over from the model it started from"
    elif recipe.tokenizer.existing:
        tokenizer = f"adopted: {escape(run.shown_name(recipe.tokenizer.existing))}"
    metric = recipe.evaluation.metric
    judged = [each for each in run.evaluations if metric in each]
    by_loss = all("chosen_by" in each or tells_nothing(metric, each[metric]) for each in judged)
    kept = f"the best on the validation split by {title_of('loss' if by_loss else metric)}"
    if recipe.checkpoints.average_last > 1 and run.finished:
        kept = f"the average of the last {plural(recipe.checkpoints.average_last, 'checkpoint')}"
    precision = machine.get("mixed_precision")
    pairs = f", {plural(machine['train_pairs'], 'pair')}" if "train_pairs" in machine else ""
    rows = {
        "Data": run.training_data() + pairs,
        "Pairs left out": f"empty ones, those above {data.max_source_tokens:,} source or {data.max_target_tokens:,} "
        "target tokens",
        "Preprocessing": _preprocessing(run),
        "Tokenizer": tokenizer,
        "Updates": f"{train['step']:,}" if train else "",
        "Epochs": f"{train['epoch']:g}" if train else "",
        "Batch": f"{how.tokens_per_batch:,} padded tokens of source or target, over all processes",
        "Optimizer": ("Muon for the layers' matrices and, for the rest, " if how.optimizer == "muon" else "")
        + f"AdamW, betas {how.betas[0]:g} and {how.betas[1]:g}, epsilon {how.epsilon:g}, weight decay "
        f"{how.weight_decay:g}, "
        + (f"gradient norm at most {how.max_grad_norm:g}" if how.max_grad_norm else "no clipping"),
        "Learning rate": f"{how.learning_rate:g} at its peak, {plural(how.warmup_steps, 'warm-up update')}, then "
        f"{how.schedule.replace('_', ' ')}",
        "Label smoothing": f"{how.label_smoothing:g}",
        "Weights kept": kept,
        "Seed": str(recipe.seed),
        "Hardware": _hardware(machine),
        "Precision": "float32" if precision == "no" else f"mixed, {precision}" if precision else "",
        "Time": f"{_duration(train['seconds'])}, evaluations not counted" if "seconds" in train else "",
        "Target tokens": f"{train['target_tokens']:,} over all epochs" if "target_tokens" in train else "",
        "Versions": ", ".join(f"{name} {machine[name]}" for name in PACKAGES if name in machine),
    }
    settings = table(["Setting", "Value"], ((name, value) for name, value in rows.items() if value))
    return f"""{settings}

<details>
<summary>The whole recipe</summary>

```yaml
{run.shown_recipe()}
```

</details>"""


def _preprocessing(run: RunRecords) -> str:
    removed = "white space at both ends and invisible characters are removed"
    if run.recipe.model.start_from or run.recipe.tokenizer.existing:
        return f"{removed}; the tokenizer does the rest"
    return f"{removed}, Unicode is normalized to NFC; case, punctuation and spaces are kept"


def _hardware(machine: dict[str, Any]) -> str:
    if "device_name" not in machine:
        return ""
    name, processes = escape(machine["device_name"]), machine.get("processes", 1)
    kind = {"cuda": "GPU", "cpu": "CPU"}.get(machine.get("device"), machine.get("device") or "device")
    return f"{kind}: {name}" + (f", {processes} processes" if processes > 1 else "")


def _limits(run: RunRecords, facts: ModelFacts) -> str:
    data = run.recipe.data
    found = run.provenance()
    terms = ": see there for the origin and the terms of the text" if found.hub_name else ""
    domain = found.limits or (
        f"It was trained on {run.training_data()}{terms or ', not part of this repository'}. Its scores are for text "
        "of the same origin; expect worse ones for other topics, styles, times or spellings."
    )
    if run.recipe.model.start_from:
        domain += " It also inherits what the model it was fine-tuned from had learnt, and that model's limits."
    length = (
        f"It was trained on single sentences of at most {data.max_source_tokens:,} source and "
        f"{data.max_target_tokens:,} target tokens, without context: it does not know what a pronoun refers to in "
        "the sentence before, and longer texts have to be split into sentences. "
    )
    return limits(facts, domain, length)
