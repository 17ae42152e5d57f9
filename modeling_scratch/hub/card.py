"""
The model card of a folder: a part that is generated from the files of the run or the model, and what its owner wrote.

A push generates the text between the lines `BEGIN` and `END` anew, and the metadata that we know. The text above and
below, and all other metadata, belong to the owner and stay.
"""

import json
import logging
import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCard, ModelCardData, eval_result_entries_to_yaml
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.utils import yaml_dump
from jinja2 import Environment, PackageLoader, StrictUndefined

from .. import __version__
from ..data.sources import Provenance
from ..errors import TOKEN, UserError, without_tokens
from ..languages import language_code
from ..metrics import (
    METRICS,
    RESAMPLES,
    describe_calibration,
    describe_confidence,
    describe_heads,
    describe_score,
    scores_in,
    tells_nothing,
    title_of,
)
from ..model.configuration_scratch import TEXT2TEXT, TRANSLATION, ScratchConfig, task_of
from ..recipe.schema import FEATURES
from ..run.folder import CURVES
from ..run.records import RunRecords, scored_set
from .allowed_files import CARD
from .card_markdown import escape, hub_link, plural, table
from .model_files import Conversion, ModelFacts, read_facts, tokenizer_languages

BEGIN = "<!-- modeling_scratch: the next push replaces the text from here; write your own above this line -->"
END = "<!-- modeling_scratch: the next push replaces the text up to here; write your own below this line -->"
TAGS = ["scratch", "attention-is-all-you-need"]
METADATA = {"library_name": "transformers", "pipeline_tag": TRANSLATION, "tags": [TRANSLATION, *TAGS]}
# On the Hub, text2text-generation is a tag within the task text-generation.
METADATA_OF_OTHERS = METADATA | {"pipeline_tag": "text-generation", "tags": [TEXT2TEXT, *TAGS]}
METADATA_ORDER = ["language", "language_bcp47", "license", "library_name", "pipeline_tag", "base_model", "datasets"]
MEASURED = {"metrics", "model-index", "widget"}  # metadata that is dropped if it is not generated again
PACKAGES = ("torch", "transformers", "datasets", "tokenizers", "sacrebleu", "modeling_scratch")
_WIDGET_EXAMPLES = 3

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
        UserError: a file is missing or damaged, an argument is wrong, or the card is not complete.
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
    except Exception as error:  # PyYAML raises others than its own too, as for the date 2026-13-01
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
    """The license of the model in a folder: `given`, else from its recipe or card, else the default. None: unknown."""
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
    """
    apache-2.0 for a run from random weights. None for any other model, and for one that learnt what others wrote, since
    they come from elsewhere.
    """
    if run is None or run.recipe.model.start_from is not None:
        return None
    return None if any(entry.translated_by for entry in run.recipe.data.mix) else "apache-2.0"


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
    Metadata that the card must have. Without a run, license, languages and scores may be unknown. The license may also
    be unknown if the run started from another model, and the languages if its pairs are in none.
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
        UserError: a file is missing or damaged, or a language is not an ISO 639 code.
    """
    if wrong := [tag for tag in languages or () if language_code(tag) is None]:
        raise UserError(f"--languages: {' and '.join(map(repr, wrong))} is not an ISO 639 code such as en or deu")
    tags = [tag.strip().replace("_", "-") for tag in languages or ()]
    metadata: dict[str, Any] = {"license": license or _default_license(run)}
    values: dict[str, Any] = {"author": author, "page": has_space, "marian": marian}
    if run is not None:
        tags = tags or run.tags or tokenizer_languages(run.folder)
        facts = _facts_of_run(run, tags)
        metadata |= _metadata_of_run(run, facts, tags, repo_id)
        metadata["language_bcp47"] = tags if facts.codes and any("-" in tag for tag in tags) else None
        return _made(facts, repo_id, metadata, **values, run=run, **_values_of_run(run, facts))
    facts, conversion = read_facts(folder, tags), Conversion.read(folder)
    metadata["language_bcp47"] = tags if any("-" in tag for tag in tags) else None
    if conversion is not None:
        facts.base_model = conversion.name
    return _made(facts, repo_id, metadata, **values, conversion=conversion)


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
        difference: the largest difference of their logits; see `Conversion`.
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
    tags_on_hub = (METADATA if facts.is_translator else METADATA_OF_OTHERS)["tags"]
    metadata = {"license": license, "tags": [tag for tag in tags_on_hub if tag != ScratchConfig.model_type]}
    return _made(facts, repo_id, metadata, author=author, original=original, difference=difference)


def _facts_of_run(run: RunRecords, tags: list[str]) -> ModelFacts:
    facts = read_facts(run.folder, tags)
    facts.base_model = run.base_model
    sources = (" ".join(sample.get("source", "").split()) for sample in run.samples)
    facts.sources = sorted(filter(None, sources), key=len)
    facts.features = next((sample[FEATURES] for sample in run.samples if sample.get(FEATURES)), "")
    facts.task = run.recipe.data.task
    return facts


def _metadata_of_run(run: RunRecords, facts: ModelFacts, tags: list[str], repo_id: str) -> dict[str, Any]:
    results = _eval_results(run, facts, tags)
    return {
        "datasets": [found.hub_name for found in (run.provenance(), *run.mixed()) if found.hub_name] or None,
        "widget": _widget(run) or None,
        "metrics": list(dict.fromkeys(result.metric_type for result in results)),
        "model_name": repo_id.split("/")[-1],
        "eval_results": results,
    }


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


def _values_of_run(run: RunRecords, facts: ModelFacts) -> dict[str, Any]:
    """What the template needs of a run, besides `RunRecords`."""
    metric = run.recipe.evaluation.metric
    by_loss = all(
        "chosen_by" in record or tells_nothing(metric, record[metric]) for record in run.evaluations if metric in record
    )
    return {
        "training_data": training_data(run),
        "scores": _scores(run),
        "evaluations": _evaluations(run),
        "samples": _samples(run, facts) if run.samples else None,
        "chosen_by": title_of("loss" if by_loss else metric),
        "versions": [f"{name} {run.machine[name]}" for name in PACKAGES if name in run.machine],
        "curves": CURVES if (run.folder / CURVES).is_file() else None,
    }


def training_data(run: RunRecords) -> str:
    """A description of all the training data, in Markdown."""
    weight = run.recipe.data.weight
    texts = [_described(run.provenance()) + (f" (weight {weight:g})" if weight != 1 else "")]
    for entry, found in zip(run.recipe.data.mix, run.mixed(), strict=True):
        notes = [] if entry.weight == 1 else [f"weight {entry.weight:g}"]
        notes += [] if entry.tag is None else [f"tagged {escape(without_tokens(entry.tag))}"]
        teachers = (hub_link(name) if "/" in name else escape(without_tokens(name)) for name in entry.translated_by)
        notes += [f"targets written by {' and '.join(teachers)}"] if entry.translated_by else []
        texts.append(_described(found) + (f" ({', '.join(notes)})" if notes else ""))
    return " and ".join(texts)


def _described(found: Provenance) -> str:
    if found.hub_name is not None:
        link = f"[{found.hub_name}](https://huggingface.co/datasets/{found.hub_name})"
        return link + (f" ({escape(found.subset)})" if found.subset else "")
    return f"local files ({escape(found.dataset_name)})" if found.dataset_type == "local" else found.dataset_name


def _scores(run: RunRecords) -> dict[str, Any]:
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
    columns = ["Test set", *map(title_of, keys), *(["Sentences"] if counted else [])]
    return {
        "columns": columns,
        "rows": rows,
        "metrics": [METRICS[key] for key in keys if key in METRICS],
        "resamples": RESAMPLES if any(f"{key}_interval" in record for record in run.scored for key in keys) else 0,
        "signatures": _signatures(run, keys),
    }


def _signatures(run: RunRecords, keys: list[str]) -> list[str]:
    lines = [
        f"{title_of(key)}: `{signature}`"
        for key in keys
        for signature in dict.fromkeys(record.get(f"{key}_signature") for record in run.scored)
        if signature
    ]
    for describe in (describe_heads, describe_confidence):
        lines += dict.fromkeys(line for record in run.scored for line in describe(record))
    return lines


def _evaluations(run: RunRecords) -> dict[str, Any]:
    columns = {"train_loss": "Training loss", "loss": "Validation loss"}
    columns |= {key: title_of(key) for key in METRICS if any(key in record for record in run.evaluations)}
    rows = [
        [f"{record['step']:,}", *(f"{record[key]:.2f}" if record.get(key) is not None else "" for key in columns)]
        for record in run.evaluations
    ]
    return {"columns": ["Update", *columns.values()], "rows": rows}


def _samples(run: RunRecords, facts: ModelFacts) -> dict[str, Any]:
    fields = ["source", "reference", "translation"] + [FEATURES] * any(FEATURES in sample for sample in run.samples)
    titles = [facts.languages[0] if facts.languages else "Source", "Reference", facts.output.capitalize(), "Features"]
    return {
        "of": next(scored_set(record) for record in run.scored if "samples" in record),
        "columns": titles[: len(fields)],
        "rows": [[escape(sample.get(field, "")) for field in fields] for sample in run.samples],
    }


def _duration(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} hours"
    return f"{round(seconds) // 60} min {round(seconds) % 60} s" if seconds >= 60 else f"{seconds:.1f} s"


_FILTERS = {
    "calibration": describe_calibration,
    "duration": _duration,
    "escaped": escape,
    "hub_link": hub_link,
    "number": "{:,}".format,
    "plural": plural,
    "python": lambda value: json.dumps(value, ensure_ascii=False, indent=4),
    "short": "{:g}".format,
}


def _made(facts: ModelFacts, repo_id: str, metadata: dict[str, Any], **values: Any) -> ModelCard:
    """Fill in the template `card.md.jinja`, whose first lines say what `values` are."""
    data: dict[str, Any] = METADATA if facts.is_translator else METADATA_OF_OTHERS
    data = data | {"language": facts.codes or None, "base_model": facts.base_model} | metadata
    owner, _, name = repo_id.rpartition("/")
    values = dict.fromkeys(("run", "conversion", "original", "page", "marian")) | values
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= _FILTERS
    text = environment.get_template("card.md.jinja").render(
        facts=facts,
        repo_id=repo_id,
        owner=owner,
        name=name,
        licensed=metadata["license"],
        version=__version__,
        table=table,
        **values,
    )
    front = ModelCardData(**data).to_yaml(original_order=METADATA_ORDER)
    return ModelCard(f"---\n{front}\n---\n\n{text}")


def benchmark_result(folder: Path, repo_id: str, run: RunRecords | None, task: str, metric: str) -> str:
    """
    YAML with the score of a run's test set, for `.eval_results/`: https://huggingface.co/docs/hub/eval-results.

    Args:
        task: its id in the eval.yaml of the data set, which is a benchmark on the Hub.
        metric: the metric of the task, a key of `METRICS`.

    Raises:
        UserError: the test set is not on the Hub, or has no such score.
    """
    scored = run.scored if run else []
    record = next((record for record in scored if record["split"] == "test" and not record.get("name")), {})
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
