"""The keys of a recipe, and the fields of a new model, with their types, ranges, defaults and meanings."""

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

from huggingface_hub.utils import validate_repo_id
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    field_validator,
    model_validator,
)
from transformers.activations import ACT2FN

from ..metrics import CANONICAL, METRICS, asked_for, check_beams
from ..model.configuration_scratch import TEXT2TEXT, TRANSLATION, ScratchConfig
from . import SECONDS_TO_ANSWER, SECONDS_TO_PUSH, SOURCE, TARGET

Probability = Annotated[float, Field(ge=0, lt=1)]
_DURATION = r"[1-9]\d*[mh]"


def _is_interval(value: Any) -> bool:
    return value == "epoch" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


def _check_interval(value: Any) -> Any:
    if not _is_interval(value):
        raise ValueError(f"{value!r} is neither epoch nor a number of updates (at least 1)")
    return value


def _check_interval_or_time(value: Any) -> Any:
    if not _is_interval(value) and not re.fullmatch(_DURATION, str(value)):
        raise ValueError(f"{value!r} is neither epoch, a number of updates (at least 1) nor a time such as 10m or 2h")
    return value


def _check_column(value: Any) -> Any:
    if not (value is None or (isinstance(value, str) and value) or (type(value) is int and value >= 1)):
        raise ValueError(f"{value!r} is neither the name of a column nor, in files without a header, its number from 1")
    return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | int) else value


_LONGEST_NAME = 200  # bytes of the name of a file, which may have 255, with its ending and a temporary one


def _are_test_sets(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    # null on the command line removes a set that the recipe names
    named = {str(name): files for name, files in value.items() if files is not None}
    used = {"train", "validation", "test"}  # these become names of files, where some systems ignore the case
    for name in named:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ValueError(f"{name!r} is not a valid name of a test set; use letters, digits, . _ -")
        if len(name.encode()) > _LONGEST_NAME:
            raise ValueError(f"{name[:20]}... is too long for the name of a test set and its file of translations")
        if name.casefold() in used:
            raise ValueError(f"{name!r} is not a valid name of a test set: a split or another set has it too")
        used.add(name.casefold())
    return named


# `data.augment=robust`, in the order in which the functions change a pair: for a model that reads what people type.
# Mozilla's teachers (https://github.com/mozilla/translations, teacher.one-stage.yml) have the same rates of capitals,
# 0.2 for final marks and 0.05 for typing errors.
ROBUST = {
    "cut_phrase": 0.05,
    "join_sentences": 0.05,
    "drop_final_punctuation": 0.1,
    "change_final_punctuation": 0.05,
    "drop_punctuation": 0.1,
    "lower_case": 0.05,
    "title_case": 0.05,
    "upper_case": 0.1,
    "drop_accents": 0.05,
    "misspell": 0.4,
    "change_numbers": 0.1,
}
Interval = Annotated[int | str, BeforeValidator(_check_interval)]
IntervalOrTime = Annotated[int | str, BeforeValidator(_check_interval_or_time)]
Column = Annotated[int | str | None, BeforeValidator(_check_column)]
Columns = Annotated[
    Annotated[list[Annotated[int | str, BeforeValidator(_check_column)]], Field(min_length=1)] | None,
    BeforeValidator(_as_list),
]
Files = Annotated[Annotated[list[str], Field(min_length=1)] | None, BeforeValidator(_as_list)]
TestSets = Annotated[dict[str, Files], BeforeValidator(_are_test_sets)]
Augment = Annotated[
    dict[str, Annotated[float, Field(gt=0, le=1)]],
    BeforeValidator(lambda value: dict(ROBUST) if value == "robust" else value),
]
Betas = Annotated[list[Probability], Field(min_length=2, max_length=2)]


class Section(BaseModel):
    """A part of the recipe. Unknown keys, empty texts and values of the wrong type are errors."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False, strict=True, str_min_length=1)

    @field_validator("*")
    @classmethod
    def _fits_in_64_bits(cls, value: Any) -> Any:
        if isinstance(value, int) and value >= 2**63:
            raise ValueError("must be less than 2**63")
        return value


EMBEDDED_CORPUS, DATES = "embedded", "dates"
EMBEDDED = (EMBEDDED_CORPUS, DATES)  # the data sets that this package generates
FEATURES = "features"  # the column of a pair with what the target depends on besides the source

FINE_TUNING_FIELDS = ("dropout", "attention_dropout", "activation_dropout")  # may differ from the model's own


class ModelSection(Section):
    """Which model: a new one from a file in configuration/models, or an existing one to fine-tune."""

    # `checked_recipe` copies the file's fields into `overrides`, so that a saved recipe does not depend on the file.
    config: str | None = Field(None, description="a name in configuration/models, or the path of a YAML file")
    overrides: dict[str, Any] = Field({}, description="ScratchConfig fields, which override the file's")
    start_from: str | None = Field(None, description="a model folder or Hub name to fine-tune, with its tokenizer")

    @model_validator(mode="after")
    def _keeps_the_shape_it_starts_from(self):
        fixed = [name for name in self.overrides if name not in FINE_TUNING_FIELDS]
        if self.start_from is not None and fixed:
            raise ValueError(
                f"model.overrides: {', '.join(fixed)} cannot differ from the model in model.start_from, only "
                "dropouts can; set model.overrides={}"
            )
        return self


def _check_embedded(section: Section, prefix: str, **splits: str) -> None:
    """ValueError if a section of the embedded corpus has keys that apply only to other data sets."""
    allowed = dict.fromkeys(["subset", "revision", "source_column", "target_column", "feature_columns"]) | splits
    if wrong := [prefix + key for key, name in allowed.items() if getattr(section, key) not in (None, name)]:
        raise ValueError(f"{', '.join(wrong)}: only for data sets on the Hub or in files, not for embedded ones")


class MixedSource(Section):
    """Further training pairs, mixed with those of `data`. Name either files or a data set."""

    files: Files = Field(None, description="local files, as in data.train_files")
    name: str | None = Field(None, description="`embedded`, or the name of a data set on the Hub")
    subset: str | None = Field(None, description="the Hub data set's configuration")
    revision: str | None = Field(None, description="the Hub data set's commit, branch or tag; null: the newest")
    split: str = Field("train", description="name of the split in a Hub data set")
    source_column: Column = Field(None, description="as in data.source_column")
    target_column: Column = Field(None, description="as in data.target_column")
    feature_columns: Columns = Field(None, description="as in data.feature_columns")
    weight: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="how often an epoch has each pair: 2 is twice; 0.1 a tenth of the pairs, drawn anew in each epoch",
    )
    tag: str | None = Field(
        None, description="text to put before each source sentence, such as <bt> before back-translated ones"
    )
    translated_by: list[str] = Field([], description="the models that wrote the targets, for the card")

    @model_validator(mode="after")
    def _names_one_source(self):
        if (self.files is None) == (self.name is None):
            raise ValueError("an entry of data.mix needs either files or name")
        if self.files is not None and (self.subset or self.revision or self.split != "train"):
            raise ValueError("subset, revision and split apply to data sets on the Hub, not to files")
        if self.name in EMBEDDED:
            _check_embedded(self, "", split="train")
        return self


class DataSection(Section):
    """Which sentence pairs, and how long they may be."""

    name: str = Field(
        EMBEDDED_CORPUS,
        description="`embedded`, translations by a small grammar; `dates`, in words and in ISO 8601; or the name of a "
        "data set on the Hub, or a folder of `save_to_disk`",
    )
    subset: str | None = Field(None, description="the Hub data set's configuration, such as de-en of wmt14")
    revision: str | None = Field(None, description="the Hub data set's commit, branch or tag; null: the newest")
    task: str | None = Field(
        None, description="what the outputs are, in a few words for people, where pairs are not translations"
    )
    source_language: str | None = Field(
        None,
        description="a code; also the source column's name in a table, or the ending of text files; null, with "
        "target_language: no language (the embedded corpus: en and de)",
    )
    target_language: str | None = Field(None, description="the same for the target")
    source_column: Column = Field(
        None,
        description="null: the column named source_language (`source` without languages), or that key of a "
        "`translation` column; a number, from 1: that column of CSV or TSV files without a header (in quotes, '\"1\"', "
        "it is a name)",
    )
    target_column: Column = Field(None, description="the same for target_language")
    feature_columns: Columns = Field(
        None,
        description="further columns, on which the target depends too, by name or number; each cell holds features, "
        "separated by semicolons: V;PST;3;SG",
    )
    train: str = Field("train", description="name of the split in a Hub data set")
    validation: str | None = Field("validation", description="name of the split; null: hold out validation_size pairs")
    test: str | None = Field("test", description="name of the split; null: no test")
    train_files: Files = Field(
        None,
        description="local data instead of `name`: a .jsonl, .csv, .tsv or .parquet file or several, two text files "
        "[source, target], or the prefix of two (data/train for data/train.en.gz and data/train.de.gz)",
    )
    validation_files: Files = Field(
        None, description="the same for validation; null, with train_files: pairs are held out"
    )
    test_files: Files = Field(None, description="the same for the test; null, with train_files: no test")
    test_sets: TestSets = Field(
        {}, description="further test sets for the final model, local files: {newstest2014: data/newstest2014, ...}"
    )
    mix: list[MixedSource] = Field(
        [], description="further training pairs, each source with a weight: old pairs beside new ones, for example"
    )
    weight: float = Field(
        1.0, ge=0, le=1000, description="with data.mix: how often an epoch has each of the other pairs"
    )
    validation_size: int | None = Field(
        None, ge=1, description="pairs held out of training without validation; null: 1,000, or a tenth if that is less"
    )
    embedded_size: int = Field(24000, ge=1, le=1_000_000, description="training pairs of `embedded` or `dates`")
    max_source_tokens: int = Field(256, ge=1, le=1_000_000, description="longer training pairs are dropped and counted")
    max_target_tokens: int = Field(256, ge=1, le=1_000_000, description="the same for the target")
    augment: Augment = Field(
        {},
        description="changes to training pairs, drawn anew in each epoch: functions of data/augmentation.py, each with "
        "the probability that it changes a pair: {lower_case: 0.3}; robust: those for texts as people type them",
    )
    kept_words: bool = Field(
        True,
        description="translations: train on reserved characters in place of words that stay as they are, such as "
        "{name}, which translating puts back; false: all is text",
    )
    num_workers: int = Field(
        0, ge=0, description="worker processes of each training process, for tokenizing and for preparing batches"
    )
    streaming: bool = Field(False, description="read training pairs as needed, for data sets larger than memory")
    shuffle_buffer: int = Field(
        20_000,
        ge=1,
        description="pairs of a stream that are shuffled and sorted by length together, divided among its readers",
    )

    @model_validator(mode="after")
    def _agrees_with_itself(self):
        if (self.source_language is None) != (self.target_language is None):
            raise ValueError("data.source_language and data.target_language must both be codes or both be null")
        if self.name in EMBEDDED and not self.train_files:
            _check_embedded(self, "data.", train="train", validation="validation", test="test")
        if self.augment and any(entry.tag for entry in self.mix):
            raise ValueError("data.augment would change the tags of data.mix; use one of them")
        if "join_sentences" in self.augment and any((self.feature_columns, *(one.feature_columns for one in self.mix))):
            raise ValueError("data.augment: join_sentences would join pairs of different features; leave it out")
        if self.weight != 1 and not self.mix:
            raise ValueError("data.weight: without data.mix, an epoch has each pair once")
        if self.streaming and self.mix:
            raise ValueError("data.mix: a stream cannot be mixed with other pairs; set data.streaming=false")
        for entry in self.mix if self.on_the_hub else []:
            same = (entry.name, entry.subset) == (self.name, self.subset)
            if same and entry.split in (self.validation, self.test):
                raise ValueError(f"data.mix: {entry.split!r} is also data.validation or data.test")
            holds_out = self.validation is None and self.validation_files is None
            if same and entry.split == self.train and holds_out:
                raise ValueError(
                    f"data.mix: pairs for validation are held out of {entry.split!r}; name data.validation"
                )
        if self.on_the_hub and self.train in (self.validation, self.test):
            raise ValueError(f"data.train is {self.train!r}, but so is data.validation or data.test")
        return self

    def mixed(self) -> list["DataSection"]:
        """For each entry of `mix`, a section whose training pairs are that entry, without any other data."""
        sections = []
        source, target = self.languages or (None, None)
        for entry in self.mix:
            changes = entry.model_dump(
                include={"subset", "revision", "source_column", "target_column", "feature_columns"}
            )
            changes |= {"name": entry.name or self.name, "train": entry.split, "train_files": entry.files}
            changes |= {"validation_files": None, "test_files": None, "test_sets": {}, "mix": [], "weight": 1.0}
            changes |= {"source_language": source, "target_language": target}
            sections.append(self.model_copy(update=changes))
        return sections

    @property
    def languages(self) -> tuple[str, str] | None:
        """The codes of source and target; None for pairs that are not in languages."""
        if (
            self.source_language is None
            or self.target_language is None
            or (self.name == DATES and not self.train_files)
        ):
            return ("en", "de") if self.name == EMBEDDED_CORPUS and not self.train_files else None
        return self.source_language, self.target_language

    @property
    def pipeline_task(self) -> str:
        """What `pipeline` calls the task of a model of these pairs: translation, if they have two languages."""
        return TRANSLATION if self.languages and len(set(self.languages)) == 2 else TEXT2TEXT

    @property
    def names(self) -> tuple[str, str]:
        """What source and target are called where nothing else names them."""
        return self.languages or (SOURCE, TARGET)

    def files(self) -> dict[str, list[str]]:
        """The local files of each split and further test set, the training files first."""
        splits = {"train": self.train_files, "validation": self.validation_files, "test": self.test_files}
        return {split: files for split, files in (splits | self.test_sets).items() if files}

    @staticmethod
    def files_key(split: str) -> str:
        """The recipe's key for a split's files."""
        return f"data.{split}_files" if split in ("train", "validation", "test") else f"data.test_sets.{split}"

    @property
    def on_the_hub(self) -> bool:
        return self.train_files is None and self.name not in EMBEDDED


TokenizerKind = Literal["bpe", "characters", "decomposed", "words", "pattern"]


class TokenizerSection(Section):
    """A new vocabulary, or an existing tokenizer."""

    kind: TokenizerKind = Field(
        "bpe",
        description="what a token is. bpe: a frequent piece of a word (byte-level BPE); characters: a character; "
        "decomposed: a part of a character, such as a letter, its accent, or a sound of a Korean syllable; "
        "words: what is between spaces, such as the phones of a word; pattern: what tokenizer.pattern "
        "matches, and what is between matches",
    )
    target_kind: TokenizerKind | None = Field(None, description="of the target; null: as the source's")
    pattern: str | None = Field(None, description="a regular expression, such as that of the atoms and bonds in SMILES")
    vocab_size: int = Field(
        8000,
        ge=5,
        le=100_000_000,
        description="the most tokens; of bpe, at least 300: 256 bytes, merges, special tokens",
    )
    shared: bool = Field(True, description="one vocabulary for source and target")
    max_sentences: int = Field(1_000_000, ge=1, description="train on a seeded sample if there are more")
    existing: str | None = Field(None, description="a folder, a Hub name or a tiktoken encoding, instead of training")

    @model_validator(mode="after")
    def _agrees_with_its_kinds(self):
        kinds = {self.kind, self.target_kind or self.kind}
        if self.existing is not None and kinds != {"bpe"}:
            keys = "tokenizer.kind=bpe tokenizer.target_kind=null tokenizer.pattern=null"
            raise ValueError(f"tokenizer.existing has its own kind; set {keys}")
        if "bpe" in kinds and self.vocab_size < 300:
            raise ValueError(f"tokenizer.vocab_size is {self.vocab_size}; tokenizer.kind bpe needs at least 300")
        if len(kinds) > 1 and self.shared:
            raise ValueError("tokenizer.target_kind differs from tokenizer.kind; set tokenizer.shared=false")
        if ("pattern" in kinds) != (self.pattern is not None):
            raise ValueError("tokenizer.pattern needs tokenizer.kind or target_kind pattern, and they need it")
        return self


@dataclass(frozen=True)
class Schedule:
    """
    The learning rate after the warm-up.

    Args:
        factor: what the peak is multiplied by, a function of the update (counted from 1), `warmup_steps`, and the
            number of updates in the run.
        uses_length: whether it depends on the last of these, which may change when a run resumes.
    """

    factor: Callable[[int, int, int], float]
    uses_length: bool = False


def _part_after_warmup(step: int, warmup: int, total: int) -> float:
    """How much of the run after its warm-up has passed, from 0 to 1."""
    return min(1.0, (step - warmup) / max(1, total - warmup))


SCHEDULES = {
    # Section 5.3's d_model^-0.5 min(step^-0.5, step warmup^-1.5) after the warm-up, divided by its peak.
    "inverse_sqrt": Schedule(lambda step, warmup, total: math.sqrt(max(warmup, 1) / step)),
    "cosine": Schedule(lambda *run: 0.5 * (1.0 + math.cos(math.pi * _part_after_warmup(*run))), uses_length=True),
    "linear": Schedule(lambda *run: 1.0 - _part_after_warmup(*run), uses_length=True),
    "constant": Schedule(lambda *run: 1.0),
}

if TYPE_CHECKING:
    _Schedule: TypeAlias = str
    _Metric: TypeAlias = str
    _Score: TypeAlias = str
    _Canonical: TypeAlias = str
else:
    _Schedule = Literal[*SCHEDULES]
    _Score = Literal[*(key for key, metric in METRICS.items() if metric.compute)]
    _Metric = Literal["loss", *get_args(_Score)]
    _Canonical = Literal[*CANONICAL]


class OptimizationSection(Section):
    """How the weights are updated."""

    max_epochs: int | None = Field(None, ge=1, description="passes over the training pairs; null: no limit")
    max_steps: int | None = Field(None, ge=1, description="updates; null: no limit")
    tokens_per_batch: int = Field(
        4096, ge=1, description="the most source or target tokens in a global batch, padding included"
    )
    gradient_accumulation_steps: int = Field(1, ge=1, description="micro-batches into which a process splits its share")
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw",
        description="muon: Muon for the matrices of layers, with the same learning rate, and AdamW for the rest",
    )
    learning_rate: float = Field(1e-3, gt=0, description="at the schedule's peak")
    schedule: _Schedule = Field(
        "inverse_sqrt",
        description="of the learning rate after the warm-up: one of SCHEDULES; cosine and linear end at 0",
    )
    warmup_steps: int = Field(1000, ge=0, description="updates in which the learning rate grows linearly to its peak")
    betas: Betas = Field(
        [0.9, 0.98], description="of Adam: how much of its means of gradients and of their squares an update keeps"
    )
    epsilon: float = Field(1e-9, gt=0, description="of Adam: added to the root of the mean square")
    weight_decay: float = Field(
        0.0,
        ge=0,
        description="an update multiplies matrices, except embeddings, by 1 - weight_decay times the learning rate",
    )
    max_grad_norm: float | None = Field(
        1.0, gt=0, description="a gradient with a larger norm is scaled down to this one; null: no limit"
    )
    max_nonfinite_updates: int = Field(
        20,
        ge=0,
        description="updates skipped in a row, because loss or gradient is not finite, before the run ends",
    )
    label_smoothing: Probability = Field(
        0.1, description="how much of the target probability is spread evenly over all tokens (section 5.4)"
    )

    @model_validator(mode="after")
    def _has_an_end(self):
        if self.max_epochs is None and self.max_steps is None:
            raise ValueError("set max_epochs or max_steps, or both (whichever comes first)")
        return self


class EvaluationSection(Section):
    """When and how the model is evaluated."""

    every: Interval = Field("epoch", description="epoch, or a number of updates")
    translate_every: int = Field(1, ge=1, description="translate and score at every n-th evaluation")
    metric: _Metric = Field(
        "bleu",
        description="chooses the best checkpoint; where it cannot (BLEU of up to three words), the loss does",
    )
    metrics: list[_Score] | None = Field(
        None,
        min_length=1,
        description="scores at every evaluation, besides `metric`; null: BLEU and chrF",
    )
    also: list[_Score] = Field(
        [], description="further scores of the final model: TER, and BLEU in protocols that papers use"
    )
    canonical: _Canonical | None = Field(
        None,
        description="compare whole outputs (exact match, WER, top-k accuracy) in this form; smiles: RDKit's canonical "
        "SMILES",
    )
    alignments: bool = Field(
        False,
        description="choose the final model's alignment_heads, and score its word alignments; for data with gold "
        "links, such as the embedded corpus",
    )
    noise: bool = Field(
        False,
        description="also score the final model on sources as people type them: with mistakes, in capitals, and so on",
    )
    patience: int | None = Field(None, ge=1, description="stop after n evaluations without a better one")
    validation_beams: int = Field(1, ge=1, le=1000, description="beams during training; the final scores use num_beams")
    num_beams: int = Field(5, ge=1, le=1000, description="beams for the final scores, and the model's default")
    length_penalty: float = Field(
        1.0,
        description="a beam's log-probability is divided by its length to this power; more favours longer ones",
    )
    max_new_tokens: int = Field(256, ge=1, description="the most tokens of an output; longer ones are cut")
    batch_size: int = Field(128, ge=1, description="the most sentences that a process translates at once")
    batch_tokens: int = Field(4096, ge=1, description="the most source tokens at once, padding included")

    def batch_limits(self) -> dict[str, int]:
        """The most sentences and the most source tokens that a process translates at once."""
        return {"batch_size": self.batch_size, "batch_tokens": self.batch_tokens}

    def scored(self, final: bool) -> list[str]:
        """The metrics of final weights, or of every evaluation."""
        return asked_for(final, self.metric, self.also, self.metrics)

    @model_validator(mode="after")
    def _has_beams_for_its_metrics(self):
        only_final = "to score only the final model, move it to evaluation.also; otherwise set "
        check_beams(self.scored(final=False), self.validation_beams, f"{only_final}evaluation.validation_beams")
        check_beams(self.scored(final=True), self.num_beams, "set evaluation.num_beams")
        return self


class CheckpointSection(Section):
    """How often checkpoints are written, how many are kept, and how many are averaged."""

    every: IntervalOrTime = Field("epoch", description="epoch, a number of updates, or a time such as 10m or 2h")
    keep_last: int = Field(2, ge=1, description="how many checkpoints are kept, besides the best one")
    average_last: int = Field(1, ge=1, description="the final model is the mean of the last n checkpoints")

    @model_validator(mode="after")
    def _averages_at_fixed_updates(self):
        if self.seconds is not None and self.average_last > 1:
            raise ValueError(
                f"checkpoints.average_last: the number of updates in {self.every} varies from run to run, and so would "
                "the average; set checkpoints.every to epoch or a number of updates"
            )
        return self

    @property
    def seconds(self) -> float | None:
        """The time between two checkpoints; None if `every` is not a time."""
        if not isinstance(self.every, str) or self.every == "epoch":
            return None
        return int(self.every[:-1]) * {"m": 60, "h": 3600}[self.every[-1]]


class HubSection(Section):
    """Where the model is pushed; `scratch upload` does the same by hand."""

    repository: str | None = Field(None, description="user/name; null: nowhere")
    push: Literal["end", "best"] = Field("end", description="best: also whenever an evaluation finds a better one")
    private: bool = Field(False, description="make a new repository private")
    revision: str | None = Field(None, description="a branch, created if needed; null: main")
    license: str | None = Field(None, description="for the card; null: apache-2.0, or unknown with model.start_from")
    overwrite: bool = Field(False, description="replace a model that was not pushed from this run's folder")
    timeout: float = Field(SECONDS_TO_ANSWER, gt=0, description="seconds to wait for each response of the Hub")
    deadline: float = Field(SECONDS_TO_PUSH, gt=0, description="seconds that the whole upload may take")

    @field_validator("repository")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and value.count("/") != 1:
            raise ValueError(f"{value!r} is not a repository; write user/name")
        validate_repo_id(value)
        return value

    @model_validator(mode="after")
    def _pushes_somewhere(self):
        if self.push == "best" and self.repository is None:
            raise ValueError("hub.push is best, but hub.repository is not set; set it to user/name")
        return self


class Recipe(Section):
    """Everything that defines a run."""

    output_dir: str = Field(description="the run's folder")
    seed: int = Field(
        0, ge=0, lt=2**32, description="of all that is random: initial weights, dropout, the order of batches, ..."
    )
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    tokenizer: TokenizerSection = TokenizerSection()
    optimization: OptimizationSection
    evaluation: EvaluationSection = EvaluationSection()
    checkpoints: CheckpointSection = CheckpointSection()
    hub: HubSection = HubSection()
    precision: Literal["auto", "float32", "bf16"] = Field(
        "auto",
        description="of matrix products and of the states between layers; auto: bf16 where the machine is faster in "
        "it; `accelerate launch` overrides this",
    )
    compile: Literal["auto", True, False] = Field("auto", description="train with torch.compile; auto: on GPUs")
    logging_steps: int = Field(50, ge=1, description="updates from one record of the training loss to the next")
    trackers: list[str] = Field([], description="names that Accelerate knows: tensorboard, trackio, wandb, ...")

    @model_validator(mode="after")
    def _agrees_with_itself(self):
        longest = max(self.data.max_source_tokens, self.data.max_target_tokens)
        if self.optimization.tokens_per_batch < longest:
            raise ValueError(
                f"optimization.tokens_per_batch ({self.optimization.tokens_per_batch}) must hold the longest pair "
                f"that data.max_source_tokens and data.max_target_tokens allow ({longest})"
            )
        if self.data.streaming:
            if self.optimization.max_epochs is not None or self.optimization.max_steps is None:
                raise ValueError(
                    "data.streaming: the length of a stream is unknown; set optimization.max_steps, and "
                    "optimization.max_epochs=null"
                )
            for name, section in (("evaluation", self.evaluation), ("checkpoints", self.checkpoints)):
                if section.every == "epoch":
                    raise ValueError(f"data.streaming: a stream has no epochs; set {name}.every to a number of updates")
        if self.evaluation.metric != "loss" and self.evaluation.translate_every != 1 and self.evaluation.patience:
            raise ValueError(
                f"evaluation.patience: with metric {self.evaluation.metric}, set evaluation.translate_every to 1"
            )
        return self


_Size = Annotated[int, Field(ge=1, le=100_000_000)]  # the product of two still counts a tensor's bytes
_Positive = Annotated[float, Field(gt=0)]
_Id = Annotated[int, Field(ge=0)]


class _RopeParameters(Section):  # only for checking types; the defaults that count are those of ScratchConfig
    rope_type: Literal["default", "linear"] = "default"
    rope_theta: _Positive = 10000.0
    factor: Annotated[float, Field(ge=1)] = 1.0


def _is_an_activation(name: str) -> str:
    if name not in ACT2FN:
        close = difflib.get_close_matches(name, ACT2FN) or sorted(ACT2FN)
        raise ValueError(f"{name!r} is unknown; Transformers has {', '.join(close)}")
    return name


_FIELDS = ScratchConfig.fields()
_TYPES: dict[str, Any] = {
    name: _Size if field.annotation is int else field.annotation for name, field in _FIELDS.items()
}
# Narrower types than the annotations in ScratchConfig.
_TYPES |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), Probability)
_TYPES |= {"norm_eps": _Positive, "init_std": _Positive | None, "decoder_vocab_size": _Size | None}
_TYPES |= {"rope_parameters": _RopeParameters | None}
_TYPES |= dict.fromkeys(("pad_token_id", "bos_token_id", "unk_token_id", "decoder_start_token_id"), _Id | None)
_TYPES |= {"eos_token_id": _Id | Annotated[list[_Id], Field(min_length=1)] | None}
_TYPES |= {"activation_function": Annotated[str, AfterValidator(_is_an_activation)]}
_fields: Any = {name: (_TYPES[name], field.default) for name, field in _FIELDS.items()}
Architecture = create_model("Architecture", __base__=Section, **_fields)
