"""
The model card of a folder: what is generated from a run's records or the model's files, and what its owner wrote.

A push regenerates the text between the lines `BEGIN` and `END` and the metadata that we know. The text above and below,
and all other metadata, belong to the owner and stay.
"""

import logging
import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCard, eval_result_entries_to_yaml
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.utils import yaml_dump

from .. import __version__
from ..data.sources import Provenance
from ..errors import TOKEN, UserError, without_tokens
from ..languages import language_code
from ..metrics import (
    METRICS,
    RESAMPLES,
    describe_confidence,
    describe_heads,
    describe_score,
    scores_in,
    tells_nothing,
    title_of,
)
from ..model.configuration_scratch import ScratchConfig, task_of
from ..recipe.schema import FEATURES
from ..training.folder import CURVES, scored_set
from ..training.records import RunRecords
from .allowed_files import CARD
from .card_markdown import escape, hub_link, plural, table
from .plain_card import (
    METADATA,
    METADATA_OF_OTHERS,
    Conversion,
    ModelFacts,
    describe_search,
    limits,
    make_card,
    read_facts,
    tokenizer_languages,
)

BEGIN = "<!-- modeling_scratch: the next push replaces the text from here; write your own above this line -->"
END = "<!-- modeling_scratch: the next push replaces the text up to here; write your own below this line -->"
MEASURED = {"metrics", "model-index", "widget"}  # metadata that goes if it is not generated again
PACKAGES = ("torch", "transformers", "datasets", "tokenizers", "sacrebleu", "modeling_scratch")
_WIDGET_EXAMPLES = 3
_TOKENIZERS = {
    "bpe": "byte-level BPE",
    "characters": "characters",
    "decomposed": "parts of characters",
    "words": "words between spaces",
    "pattern": "matches of a regular expression",
}

logger = logging.getLogger(__name__)


# -- the card with its owner's text ------------------------------------------------------------------------------------


def updated_card(
    folder: Path,
    repo_id: str,
    run: RunRecords | None,
    license: str | None = None,
    languages: Sequence[str] | None = None,
    author: str | None = None,
    has_space: bool = False,
    marian: str | None = None,
    before: str | None = None,
) -> str:
    """
    The card of a model folder, with the owner's text of the card before it.

    Args:
        license: an identifier from https://huggingface.co/docs/hub/repositories-licenses. None: that of the recipe, of
            the card before, or the default.
        before: the last card, as its owner may have edited it.

    Raises:
        UserError: a record is missing or damaged, an argument is wrong, or the card is not complete.
    """
    license = _license(run, license, split_front_matter(before or "")[0])
    generated = build_card(folder, repo_id, run, license, languages, author, has_space, marian)
    return with_owners_text(generated, before, required_metadata(run))


def with_owners_text(generated: ModelCard, before: str | None, required: Iterable[str]) -> str:
    """
    A generated card with the owner's text of the card before it.

    Args:
        before, required: as in `updated_card` and `check_card`, whose errors it raises.
    """
    metadata, body = split_front_matter(before or "")
    above, begin, rest = body.partition(BEGIN)
    _, end, below = rest.partition(END)
    text = f"{BEGIN}\n\n{generated.text.strip()}\n\n{END}"
    if body.strip() and not (begin and end):
        logger.warning(
            "the card has none of our text, and is kept as its owner wrote it; to have the text generated, delete "
            f"{CARD} in the folder and on the Hub"
        )
        above, text, below = body, "", ""
    data = generated.data.to_dict()
    data |= {key: value for key, value in metadata.items() if key not in MEASURED | data.keys()}
    if isinstance(tags := metadata.get("tags"), list):
        data["tags"] = list(dict.fromkeys([*data["tags"], *tags]))
    front = yaml_dump(data, sort_keys=False, width=math.inf).strip()
    parts = [f"---\n{front}\n---", *(part.strip() for part in (above, text, below))]
    card = "\n\n".join(filter(None, parts)) + "\n"
    check_card(card, required)
    return card


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """
    A card's metadata and its text.

    Raises:
        UserError: the metadata is not a YAML mapping; the message gives the line.
    """
    text = re.sub(r"\r\n?", "\n", text.removeprefix("\ufeff"))
    found = REGEX_YAML_BLOCK.search(text)
    if found is None:
        if re.match(r"\s*---[ \t]*\n", text):
            raise UserError("the card: its metadata begins with --- and has no line --- at its end")
        return {}, text
    first = text[: found.start(2)].count("\n") + 1
    try:
        metadata = yaml.safe_load(found[2])
    except Exception as error:  # PyYAML's own, or of a value, such as the date 2026-13-01
        mark = getattr(error, "problem_mark", None)
        line = first + mark.line if mark else first
        problem = getattr(error, "problem", None) or error
        raise UserError(f"the card, line {line}: its metadata is not valid YAML: {problem}") from None
    if not isinstance(metadata, dict | None):
        raise UserError(f"the card, line {first}: its metadata is a {type(metadata).__name__}, not keys with values")
    return metadata or {}, text[found.end() :]


# -- what a card must have ---------------------------------------------------------------------------------------------

REQUIRED_METADATA = ("language", "license", "library_name", "pipeline_tag", "tags", "metrics", "model-index")


def check_license(license: str) -> str:
    """The normalized identifier of a license. Raises UserError if it cannot be one."""
    license = license.strip().lower()
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
        raise UserError(f"license is {license!r}; see https://huggingface.co/docs/hub/repositories-licenses")
    return license


def license_of(folder: Path, run: RunRecords | None, given: str | None = None) -> str | None:
    """The license of the model in a folder: as given, of its recipe or its card, or the default. None: unknown."""
    metadata: dict[str, Any] = {}
    with suppress(ValueError, OSError):  # a push reports what is wrong with a card
        metadata, _ = split_front_matter((folder / CARD).read_text(encoding="utf-8"))
    license = _license(run, given, metadata)
    return ", ".join(map(str, license)) if isinstance(license, list) else license


def _license(run: RunRecords | None, given: str | None, metadata: dict[str, Any]) -> Any:
    if given is None and run is not None:
        given = run.recipe.hub.license
    if given is not None:
        return check_license(given)
    return metadata.get("license") or _default_license(run)


def _default_license(run: RunRecords | None) -> str | None:
    """apache-2.0 for a run from random weights. None for any other model, since its weights come from elsewhere."""
    return "apache-2.0" if run and run.recipe.model.start_from is None else None


def check_languages(*tags: str) -> None:
    """Raise UserError for language tags that have no ISO 639 code."""
    if wrong := [tag for tag in tags if language_code(tag) is None]:
        raise UserError(
            f"{' and '.join(map(repr, wrong))}: not ISO 639 codes such as en or deu, which a model card must have; set "
            "data.source_language and data.target_language to codes, and data.source_column and data.target_column to "
            "the names of the columns if they have different names"
        )


def required_metadata(run: RunRecords | None) -> tuple[str, ...]:
    """
    Metadata that the card must have. Without a run, the license, languages and scores may be unknown; for a run that
    started from another model, the license; for pairs without languages, the languages.
    """
    if run is None:
        return tuple(METADATA)
    unknown = {"language": not run.tags, "license": not _default_license(run)}
    return tuple(key for key in REQUIRED_METADATA if not unknown.get(key))


def check_card(text: str, required: Iterable[str] = REQUIRED_METADATA) -> None:
    """
    Check a model card offline. Before a commit the Hub checks the values in its metadata.

    Args:
        required: metadata that must be there.

    Raises:
        UserError: names everything that is missing or wrong.
    """
    metadata, _ = split_front_matter(text)
    problems = []
    for key in required:
        if metadata.get(key) in (None, "", [], {}):
            how = ", e.g. [en, de]: the recipe's languages are not ISO 639 codes" if key == "language" else ""
            problems.append(f"metadata: {key} is missing{how}")
    try:
        ModelCard(text.removeprefix("\ufeff"))
    except Exception as error:
        problems.append(f"metadata: huggingface_hub cannot read it: {' '.join(str(error).split())}")
    if TOKEN.search(text):
        problems.append("it contains what looks like a token (hf_...): remove it, and revoke it if it is one")
    if problems:
        raise UserError(f"the model card is not complete: {'; '.join(problems)}")


# -- what is generated -------------------------------------------------------------------------------------------------


def build_card(
    folder: Path,
    repo_id: str,
    run: RunRecords | None,
    license: Any = None,
    languages: Sequence[str] | None = None,
    author: str | None = None,
    has_space: bool = False,
    marian: str | None = None,
) -> ModelCard:
    """
    Generate the card of a model folder.

    Args:
        repo_id: where the model goes, user/name.
        run: the run whose folder it is, if any.
        license: None: the default for a run from random weights, unknown for any other model.
        languages: codes of source and target. None: those that the recipe or the tokenizer names, if any.
        author: a name. None: the card names no author, only who shares the model.
        has_space: whether a Space of the same name has a page to try the model on.
        marian: the repository of the same model as a Marian model, if there is one.

    Raises:
        UserError: a record is missing or damaged, or a language is not an ISO 639 code.
    """
    if wrong := [tag for tag in languages or () if language_code(tag) is None]:
        raise UserError(f"--languages: {' and '.join(map(repr, wrong))} is not an ISO 639 code such as en or deu")
    tags = [tag.strip().replace("_", "-") for tag in languages or ()]
    metadata = {"license": license or _default_license(run)}
    if run is None:
        card = _card_of_model(folder, repo_id, tags, metadata, author)
    else:
        card = card_of_run(run, repo_id, tags, metadata, author)
    links = []
    if has_space:
        link = f"[try it on a page](https://huggingface.co/spaces/{repo_id}), where it runs in your browser."
        links.append(f"Without installing anything, {link}")
    if marian is not None:
        links.append(
            f"{hub_link(marian)} is this model as a Marian model, which Transformers loads without code from the "
            "repository."
        )
    card.text = card.text.replace("\n## ", "\n" + "".join(f"{link}\n\n" for link in links) + "## ", 1)
    return card


def marian_card(
    folder: Path,
    repo_id: str,
    original: str,
    difference: float,
    run: RunRecords | None,
    license: Any = None,
    languages: Iterable[str] | None = None,
    author: str | None = None,
) -> ModelCard:
    """
    Generate the card of a model that was converted to a Marian model.

    Args:
        folder: the model before its conversion.
        repo_id, original: the repositories of the Marian model and of the model before.
        difference: the largest one of their logits; see `Conversion`.
        run, license, languages, author: as in `build_card`.
    """
    tags = [tag.strip().replace("_", "-") for tag in languages or ()] or (run.tags if run else [])
    facts = replace(
        _facts_of_run(run, tags) if run else read_facts(folder, tags),
        base_model=original,
        pipeline=False,
        calibration={},
        is_marian=True,
    )
    before, metadata = hub_link(original), METADATA if facts.is_translator else METADATA_OF_OTHERS
    tags_on_hub = [tag for tag in metadata["tags"] if tag != ScratchConfig.model_type]
    sections = {
        "Results": f"See the card of {before}. This model has the same weights, renamed and reordered. "
        f"Its logits on random ids differ from those of {before} by at most {difference:.1e}, in float32.",
        "Training": f"See the card of {before}.",
        "Limits and intended use": limits(facts, f"See the card of {before}."),
    }
    origin = f"It is {before} as a Marian model, converted by modeling_scratch {__version__}."
    return make_card(facts, repo_id, origin, author, {"license": license, "tags": tags_on_hub}, sections)


def _card_of_model(
    folder: Path, repo_id: str, languages: Iterable[str], metadata: dict[str, Any], author: str | None
) -> ModelCard:
    facts, conversion = read_facts(folder, languages), Conversion.read(folder)
    metadata["language_bcp47"] = list(languages) if any("-" in tag for tag in languages) else None
    if conversion is None:
        return make_card(facts, repo_id, author=author, metadata=metadata)
    facts.base_model = conversion.name
    before = hub_link(conversion.name) if conversion.name else f"the {conversion.kind}"
    known = f"see the card of {before}" if conversion.name else "ask whoever trained it"
    named = f", {before}," if conversion.name else ""
    origin = f"It was converted from a {conversion.kind}{named} by modeling_scratch {conversion.version}."
    how = " and how" if metadata["license"] else ", how, and on what terms they may be used"
    sections = {
        "Results": f"Not measured: the converted model has not been scored for this card. When it was converted, its "
        f"logits on random ids differed from those of {before} by at most {conversion.largest_difference:.1e}, in "
        "float32.",
        "Training": f"The weights were taken from {before}. For what they were trained on{how}, {known}; "
        "no training after the conversion is recorded.",
        "Limits and intended use": limits(
            facts, f"For what the model was trained on, {known}. Try it on text of your own before you use it."
        ),
    }
    return make_card(facts, repo_id, origin, author, metadata, sections)


# -- the card of a run -------------------------------------------------------------------------------------------------


def card_of_run(
    run: RunRecords, repo_id: str, languages: Iterable[str], metadata: dict[str, Any], author: str | None
) -> ModelCard:
    tags = list(languages) or run.tags or tokenizer_languages(run.folder)
    facts = _facts_of_run(run, tags)
    results = _eval_results(run, facts, tags)
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
        "Samples": _samples(run, facts),
        "Training": _training(run),
        "Curves": _curves(run),
        "Limits and intended use": _limits(run, facts),
    }
    return make_card(facts, repo_id, _origin(run), author, metadata, sections)


def _facts_of_run(run: RunRecords, tags: list[str]) -> ModelFacts:
    facts = read_facts(run.folder, tags)
    facts.base_model = run.base_model
    facts.sources = sorted(filter(None, (" ".join(each.get("source", "").split()) for each in run.samples)), key=len)
    facts.features = next((each[FEATURES] for each in run.samples if each.get(FEATURES)), "")
    facts.task = run.recipe.data.task
    return facts


def _origin(run: RunRecords) -> str:
    if run.base_model:
        origin = f"fine-tuned from {hub_link(run.base_model)}"
    else:
        origin = "fine-tuned from another model" if run.recipe.model.start_from else "trained from random weights"
    version = run.machine.get("modeling_scratch")
    return f"It was {origin} on {training_data(run)}, with modeling_scratch{f' {version}' if version else ''}."


def training_data(run: RunRecords) -> str:
    """A description of all the training data, in Markdown."""
    texts = [_described(run.provenance())]
    for entry, found in zip(run.recipe.data.mix, run.mixed(), strict=True):
        notes = [] if entry.weight == 1 else [f"weight {entry.weight:g}"]
        notes += [] if entry.tag is None else [f"tagged {escape(without_tokens(entry.tag))}"]
        texts.append(_described(found) + (f" ({', '.join(notes)})" if notes else ""))
    return " and ".join(texts)


def _described(found: Provenance) -> str:
    if found.hub_name is not None:
        link = f"[{found.hub_name}](https://huggingface.co/datasets/{found.hub_name})"
        return link + (f" ({escape(found.subset)})" if found.subset else "")
    return f"local files ({escape(found.dataset_name)})" if found.dataset_type == "local" else found.dataset_name


def _duration(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} hours"
    return f"{round(seconds) // 60} min {round(seconds) % 60} s" if seconds >= 60 else f"{seconds:.1f} s"


def _widget(run: RunRecords) -> list[dict[str, Any]]:
    """Examples for the widget beside the card on the Hub: inputs to try, and their outputs."""
    without_features = [sample for sample in run.samples if not sample.get(FEATURES)]
    pairs = [(sample.get("source", ""), sample.get("translation", "")) for sample in without_features]
    plain = [pair for pair in pairs if pair[0] and not any("\n" in text for text in pair)]
    return [{"text": source, "output": {"text": translation}} for source, translation in plain[:_WIDGET_EXAMPLES]]


def _eval_results(run: RunRecords, facts: ModelFacts, tags: list[str]) -> list[EvalResult]:
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
                    task_type=task_of(facts.config),
                    task_name=f"Translation {'-'.join(tags)}" if facts.is_translator else facts.task or "Sequences",
                    **dataset,
                    dataset_split=split,
                    metric_type=METRICS[key].hub_id if key in METRICS else key,
                    metric_name=title_of(key),
                    metric_value=round(record[key], 2),
                    metric_args={"signature": signature} if signature else None,
                )
            )
    return results


def benchmark_result(folder: Path, repo_id: str, run: RunRecords | None, task: str, metric: str) -> str:
    """
    YAML with the score of a run's test set, for `.eval_results/`: https://huggingface.co/docs/hub/eval-results.

    Args:
        task: its id in the eval.yaml of the data set, which is a benchmark on the Hub.
        metric: the task's, as in `METRICS`.

    Raises:
        UserError: the test set is not on the Hub, or has no such score.
    """
    scored = run.scored if run else []
    record = next((each for each in scored if each["split"] == "test" and not each.get("name")), {})
    if run is None or not record:
        raise UserError(f"--benchmark: {folder} has no scores of a test set; scratch train writes them at its end")
    found = run.provenance("test")
    if found.hub_name is None or found.split is None or "[" in found.split:
        raise UserError("--benchmark: the test set is no whole split of a data set on the Hub (data.name, data.test)")
    if metric not in scores_in(record):
        raise UserError(f"--benchmark: the test set has no score {metric!r}, only {', '.join(scores_in(record))}")
    signature = record.get(f"{metric}_signature")
    entry = EvalResultEntry(
        found.hub_name,
        task,
        round(record[metric], 2),
        source_url=f"https://huggingface.co/{repo_id}",
        source_name="Model card",
        notes=title_of(metric) + (f", {signature}" if signature else ""),
    )
    return yaml_dump(eval_result_entries_to_yaml([entry]), sort_keys=False)


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
            "The training is not finished; these are the best weights so far, of update "
            f"{run.scored[0]['step']:,}. Decoding {describe_search(beams)}."
        )
    scale = _scale(run, keys)
    return "\n\n".join(filter(None, [f"{state} {scale}", scores, _signatures(run, keys), _evaluations(run)]))


def _scale(run: RunRecords, keys: list[str]) -> str:
    """Explains the scores."""
    if keys == ["loss"]:
        return "Loss is the cross-entropy of a target token, in nats."
    notes = ["Scores are of the whole test set, detokenized."]
    for key in keys:
        if key in METRICS:
            direction = "higher" if METRICS[key].higher_is_better else "lower"
            notes.append(f"{METRICS[key].title}: {METRICS[key].description}; {direction} is better.")
    if any(f"{key}_interval" in record for record in run.scored for key in keys):
        notes.append(f"± is half the 95 % interval over {RESAMPLES:,} bootstrap resamples of the sentences.")
    return " ".join(notes)


def _signatures(run: RunRecords, keys: list[str]) -> str:
    lines = [
        f"- {title_of(key)}: `{signature}`"
        for key in keys
        for signature in dict.fromkeys(record.get(f"{key}_signature") for record in run.scored)
        if signature
    ]
    for describe in (describe_heads, describe_confidence):
        lines += dict.fromkeys(f"- {line}" for record in run.scored for line in describe(record))
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
<summary>Evaluations on the validation split during training</summary>

{table(["Update", *columns.values()], rows)}

Losses are per target token, in nats. The training loss is the mean over the preceding updates, with dropout.

</details>"""


def _samples(run: RunRecords, facts: ModelFacts) -> str:
    if not run.samples:
        return ""
    fields = ["source", "reference", "translation"] + [FEATURES] * any(FEATURES in sample for sample in run.samples)
    rows = [[escape(sample.get(field, "")) for field in fields] for sample in run.samples]
    of = next(scored_set(record) for record in run.scored if "samples" in record)
    titles = [facts.languages[0] if facts.languages else "Source", "Reference", facts.output.capitalize(), "Features"]
    shown = table(titles[: len(fields)], rows)
    return f"The first pairs of `{of}`, not hand-picked:\n\n{shown}"


def _curves(run: RunRecords) -> str:
    if not (run.folder / CURVES).is_file():
        return ""
    return f"![Loss, scores and learning rate over the updates]({CURVES})"


def _training(run: RunRecords) -> str:
    recipe, train, machine = run.recipe, run.train, run.machine
    how, data = recipe.optimization, recipe.data
    kinds = (recipe.tokenizer.kind, recipe.tokenizer.target_kind or recipe.tokenizer.kind)
    kind = " and ".join(_TOKENIZERS[kind] for kind in dict.fromkeys(kinds))
    tokenizer = f"{kind}, at most {recipe.tokenizer.vocab_size:,} tokens, trained on the training pairs"
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
        "Data": training_data(run) + pairs,
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
    spaces = "white space in sources becomes single spaces"
    return f"{removed}, {spaces}, Unicode is normalized to NFC; case and punctuation are kept"


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
        f"It was trained on {training_data(run)}{terms or ', not part of this repository'}. Its scores are for text "
        "of the same origin; expect worse ones for other topics, styles, times or spellings."
    )
    if run.recipe.model.start_from:
        domain += " It also inherits what the model it was fine-tuned from had learned, and its limits."
    length = (
        f"It was trained on single sentences of at most {data.max_source_tokens:,} source and "
        f"{data.max_target_tokens:,} target tokens, without context: it does not know what a pronoun refers to in "
        "the sentence before, and longer texts have to be split into sentences. "
    )
    if not facts.is_translator:
        limit = f"{data.max_source_tokens:,} source and {data.max_target_tokens:,} target tokens"
        length = f"It was trained on pairs of at most {limit}. "
    return limits(facts, domain, length)
