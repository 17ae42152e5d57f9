"""The card of any model, from the files in its folder: what it is, how to use it, and what is not known about it."""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from safetensors import safe_open
from transformers import PreTrainedConfig

from .. import __version__
from ..errors import UserError, as_user_error
from ..files import read_json, reading, write_whole
from ..languages import language_code, language_codes, language_name
from ..metrics import describe_calibration
from ..model.confidence import FILE as CONFIDENCE
from ..model.configuration_scratch import TEXT2TEXT, TRANSLATION, ScratchConfig, task_of
from ..model.translation_pipeline import TARGET_FOLDER
from ..recipe.reading import check_fields
from ..training.folder import WEIGHTS
from .card_markdown import escape, hub_link, plural, table

PAPER = "https://arxiv.org/abs/1706.03762"
TAGS = ["scratch", "attention-is-all-you-need"]
METADATA = {"library_name": "transformers", "pipeline_tag": TRANSLATION, "tags": [TRANSLATION, *TAGS]}
# On the Hub, text2text-generation is a tag within the task text-generation.
METADATA_OF_OTHERS = METADATA | {"pipeline_tag": "text-generation", "tags": [TEXT2TEXT, *TAGS]}
METADATA_ORDER = ["language", "language_bcp47", "license", "library_name", "pipeline_tag", "base_model", "datasets"]
SECTION_ORDER: tuple[str, ...] = ("How to use", "Results", "Samples", "Architecture", "Training")
SECTION_ORDER += ("Curves", "Limits and intended use", "Citation")

CITATION = r"""```bibtex
@inproceedings{vaswani2017attention,
  title     = {Attention Is All You Need},
  author    = {Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and
               Jones, Llion and Gomez, Aidan N. and Kaiser, {\L}ukasz and Polosukhin, Illia},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {30},
  year      = {2017},
  url       = {https://arxiv.org/abs/1706.03762}
}
```"""

_FINAL_NORMS = {True: ", and one after each stack", False: "", "decoder": ", and one after the decoder"}


@dataclass
class ModelFacts:
    """What is known about any model in a folder."""

    config: PreTrainedConfig
    generation: dict[str, Any]  # generation settings
    parameters: int
    dtypes: list[str]  # such as "float32"
    languages: list[str] = field(default_factory=list)  # names of source and target language; empty: unknown
    codes: list[str] = field(default_factory=list)  # their ISO 639 codes
    tokenizers: int = 1  # how many are stored with the model
    sentencepiece: bool = False  # whether they need this package
    pipeline: bool = True  # whether `pipeline` works
    base_model: str | None = None  # a name on the Hub
    sources: list[str] = field(default_factory=list)  # example sentences
    features: str = ""  # of an example, if the model was trained with features
    is_translator: bool = True  # whether its task is translation
    task: str | None = None  # what the outputs are, if it is not
    calibration: dict[str, Any] = field(default_factory=dict)  # what was measured of its confidence
    is_marian: bool = False  # whether it is a MarianMTModel now, which needs no code from its repository

    @property
    def direction(self) -> str:
        return " to ".join(self.languages)

    @property
    def trust(self) -> str:
        """What follows the name in calls of `from_pretrained`."""
        return "" if self.is_marian else ", trust_remote_code=True"

    @property
    def output(self) -> str:
        """What an output is called."""
        return "translation" if self.is_translator else "output"


def make_card(
    facts: ModelFacts,
    repo_id: str,
    origin: str = "",
    author: str | None = None,
    metadata: dict[str, Any] | None = None,
    sections: dict[str, str] | None = None,
) -> ModelCard:
    """
    The model card.

    Args:
        repo_id: the repository that it is for.
        origin: sentences for the summary on where the model comes from.
        author: None: unknown (the owner of `repo_id` is named anyway).
        metadata, sections: further metadata and sections, or replacements; an empty section is left out.
    """
    data: dict[str, Any] = METADATA if facts.is_translator else METADATA_OF_OTHERS
    data = data | {"language": facts.codes or None, "base_model": facts.base_model} | (metadata or {})
    what = (facts.direction or "translation") if facts.is_translator else escape(facts.task or "pairs of sequences")
    title = f"{repo_id.split('/')[-1]}: {what}"
    texts = _sections(facts, repo_id) | (sections or {})
    owner = repo_id.rpartition("/")[0]
    by = [f"Author: {escape(author)}." if author else "", f"Shared by {hub_link(owner)}." if owner else ""]
    body = [f"# {title}", " ".join(filter(None, [_summary(facts), origin, *by]))]
    body += [f"## {name}\n\n{texts[name]}" for name in SECTION_ORDER if texts.get(name)]
    front = ModelCardData(**data).to_yaml(original_order=METADATA_ORDER)
    return ModelCard(f"---\n{front}\n---\n\n" + "\n\n".join(body) + "\n")


def _sections(facts: ModelFacts, repo_id: str) -> dict[str, str]:
    return {
        "How to use": usage(facts, repo_id),
        "Results": f"Not measured: no {facts.output} of this model has been scored for this card.",
        "Architecture": architecture(facts),
        "Training": "How the model was trained is not recorded.",
        "Limits and intended use": limits(
            facts, "Its training data is not recorded. Try the model on your own text before you use it."
        ),
        "Citation": CITATION,
    }


def _summary(facts: ModelFacts) -> str:
    config, parameters = facts.config, facts.parameters
    size = f"{parameters / 1e6:,.1f} million" if parameters >= 1e6 else f"{parameters:,}"
    what = f"This model translates {facts.direction}." if facts.languages else "This is a translation model."
    if not facts.is_translator:
        outputs = f"; its outputs are {escape(facts.task)}" if facts.task else ""
        what = f"This model was trained on pairs of sequences{outputs}."
    return (
        f'{what} It is an encoder-decoder Transformer as in ["Attention Is All You Need"]({PAPER}), with {size} '
        f"parameters, {plural(config.encoder_layers, 'encoder layer')} and "
        f"{plural(config.decoder_layers, 'decoder layer')} of width {config.d_model}."
    )


def usage(facts: ModelFacts, repo_id: str) -> str:
    """Code that loads the model and runs it."""
    needed = "torch, transformers and sentencepiece" if facts.sentencepiece else "torch and transformers"
    blocks = [f"This needs {needed}, and no code from this repository."]
    if not facts.is_marian:
        blocks = [
            f"This needs {needed}. `trust_remote_code=True` runs the model's code, which is in this repository: read "
            "its `.py` files first, and pin the version you have read with `revision=COMMIT`."
        ]
    blocks += [_use_without_tokenizer(facts, repo_id)] if facts.tokenizers == 0 else _use(facts, repo_id)
    if facts.features:
        code = f"features={json.dumps(facts.features, ensure_ascii=False)}"
        blocks.append(
            f"It was trained with features, on which the output depends. The pipeline takes them as `{code}`, a string "
            "for all inputs or a list with one for each. A tokenizer takes them before the text, each followed by "
            "U+001F."
        )
    limit = facts.generation.get("max_new_tokens") or facts.generation.get("max_length")
    end = f", and writes at most {limit:,} tokens" if limit else ""
    return "\n\n".join([*blocks, f"By default `generate` {describe_search(facts.generation)}{end}."])


def _use(facts: ModelFacts, repo_id: str) -> list[str]:
    sources = facts.sources or ["...", "..."]
    one, batch = (json.dumps(each, ensure_ascii=False, indent=4) for each in (sources[0], sources[:2]))
    load = f'AutoTokenizer.from_pretrained("{repo_id}"{facts.trust}'
    two = facts.tokenizers == 2
    task, called = (TRANSLATION, "translator") if facts.is_translator else (TEXT2TEXT, "generator")
    target = f'target_tokenizer = {load}, subfolder="target_tokenizer")\n' if two else ""
    decoder = "target_tokenizer" if two else "tokenizer"
    classes = f"""With the Auto classes{", and a tokenizer for each of the two vocabularies" if two else ""}:

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = {load})
{target}model = AutoModelForSeq2SeqLM.from_pretrained("{repo_id}"{facts.trust})

inputs = tokenizer({one}, return_tensors="pt")
print({decoder}.decode(model.generate(**inputs)[0], skip_special_tokens=True))
```

A batch is padded to its longest text; the attention mask hides the padding:

```python
texts = {batch}
inputs = tokenizer(texts, padding=True, return_tensors="pt")
print({decoder}.batch_decode(model.generate(**inputs), skip_special_tokens=True))
```"""
    pipeline = f"""As a pipeline, whose code is in this repository too (Transformers 5 has none for this task):

```python
from transformers import pipeline

{called} = pipeline("{task}", model="{repo_id}", trust_remote_code=True)
print({called}({one}))

texts = {batch}
print({called}(texts, num_beams=4))
```"""
    return [classes, pipeline] if facts.pipeline else [classes]


def _use_without_tokenizer(facts: ModelFacts, repo_id: str) -> str:
    return f"""There is no tokenizer in this repository: use the one that the model was trained with.

```python
import torch
from transformers import AutoModelForSeq2SeqLM

model = AutoModelForSeq2SeqLM.from_pretrained("{repo_id}"{facts.trust})
input_ids = torch.tensor([[4, 5, 6]])  # a text, encoded with that tokenizer
print(model.generate(input_ids=input_ids))
```"""


def describe_search(settings: dict[str, Any]) -> str:
    """What `generate` does with these settings, to follow the words "generate" or "decoding"."""
    if settings.get("do_sample"):
        return "samples"
    if (settings.get("num_beams") or 1) == 1:
        return "takes the likeliest token at each step"
    penalty = settings.get("length_penalty")
    return f"searches with {settings['num_beams']} beams and length penalty {1.0 if penalty is None else penalty:g}"


def architecture(facts: ModelFacts) -> str:
    """A table of the config's main fields."""
    config = facts.config

    def both(name: str) -> str:
        encoder, decoder = getattr(config, f"encoder_{name}"), getattr(config, f"decoder_{name}")
        return f"{encoder:,}" if encoder == decoder else f"{encoder:,} in the encoder, {decoder:,} in the decoder"

    shared = ["source and target"] if config.share_encoder_decoder_embeddings else []
    shared += ["target and output projection"] if config.tie_word_embeddings else []
    repeated = ", each one layer applied repeatedly" if config.share_layers else ""
    gated = ", gated" if config.gated_ffn else ""
    order = "before" if config.norm_position == "pre" else "after"
    vocabulary = f"{config.vocab_size:,} tokens"
    if config.decoder_vocab_size is not None and not config.share_encoder_decoder_embeddings:
        vocabulary = f"{config.vocab_size:,} source and {config.target_vocab_size:,} target tokens"
    biases = {"attention": config.attention_bias, "feed-forward": config.ffn_bias, "output": config.lm_head_bias}
    rows = {
        "Parameters": f"{facts.parameters:,} ({', '.join(facts.dtypes)})",
        "Layers": f"{config.encoder_layers} encoder, {config.decoder_layers} decoder{repeated}",
        "Width (`d_model`)": f"{config.d_model:,}",
        "Attention heads": both("attention_heads"),
        "Feed-forward width": f"{both('ffn_dim')}, {config.activation_function}{gated}",
        "Norm": f"{config.norm_type.replace('_', ' ')}, {order} each sub-layer{_FINAL_NORMS[config.final_norm]}",
        "Positions": config.position_embedding_type,
        "Vocabulary": vocabulary,
        "Shared embeddings": "; ".join(shared) or "none",
        "Biases": ", ".join(name for name, has in biases.items() if has) or "none",
        "Dropout": f"{config.dropout:g} (attention weights {config.attention_dropout:g}, inside the feed-forward "
        f"{config.activation_dropout:g})",
    }
    return table(["Property", "Value"], rows.items())


def limits(facts: ModelFacts, data: str, length: str = "") -> str:
    """
    A list of limits and intended uses.

    Args:
        data: sentences on the training data and its consequences.
        length: sentences on the length of the training data.
    """
    config, source = facts.config, facts.languages[0] if facts.languages else "its source language"
    if config.position_embedding_type == "learned" or facts.is_marian:
        length += f"More than {config.max_position_embeddings:,} tokens are an error."
    else:
        length += (
            f"The pipeline takes at most {config.max_position_embeddings:,} tokens, `generate` any number, but "
            f"the {facts.output} of unusually long input is bad."
        )
    direction = f" {facts.direction}" if facts.languages else ""
    experiments, who = f"experiments in translating{direction}", "who knows both languages"
    errors = (
        "A translation may read well and be wrong: names, numbers and negations may change, words may be left out or "
        f"repeated. It always produces output, even for text that is not {source}."
    )
    if not facts.is_translator:
        experiments, who = "experiments", "who knows the subject"
        errors = "It always produces output, even for input unlike its training data."
    if facts.calibration:
        errors += (
            " With `return_confidence=True`, the pipeline adds a number from 0 to 1: below 0.5, the input is unlike "
            f"what it has learnt, and the {facts.output} is doubtful. Of {facts.calibration['sentences']:,} validation "
            f"sentences and others made of them, {describe_calibration(facts.calibration)}."
        )
    points = {
        "Meant for": f"research, teaching and {experiments}, and as a starting point for fine-tuning. Where an error "
        f"does harm, as in medicine or law, somebody {who} must check what it writes.",
        "Data.": data,
        "Length.": length,
        "Errors.": errors,
        "No filter.": "Nothing filters its input or output. It can repeat the biases of its data and produce "
        "offensive text; no test for this is recorded.",
    }
    return "\n".join(f"- **{title}** {text}" for title, text in points.items())


CONVERSION = "conversion.json"
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


# -- what is in files --------------------------------------------------------------------------------------------------


def read_config(folder: Path) -> ScratchConfig:
    """A folder's config. Raises UserError if it is damaged, or belongs to a different architecture."""
    path = folder / "config.json"
    content = read_json(path)
    kind = content.get("model_type")
    if kind != ScratchConfig.model_type:
        how = f"; scratch convert marian {folder} OUT makes one" if kind == "marian" else ""
        raise UserError(f"{path}: model_type is {kind!r}; only 'scratch' models are shared here{how}")
    named = {ScratchConfig.attribute_map.get(name, name): value for name, value in content.items()}
    check_fields({name: named[name] for name in ScratchConfig.fields() if name in named}, str(path))
    with as_user_error(f"{path}: "):
        return ScratchConfig.from_dict(content)


def weight_files(folder: Path) -> list[Path]:
    """The single weight file, or else the shards. Raises UserError if there are neither."""
    single = folder / WEIGHTS
    files = [single] if single.is_file() else sorted(folder.glob("model-*-of-*.safetensors"))
    if not files:
        raise UserError(f"{folder}: there are no weights ({WEIGHTS} is missing); save the model there first")
    return files


@contextmanager
def open_weights(path: Path) -> Iterator[safe_open]:
    """A safetensors file. Raises UserError if it cannot be read."""
    how = "cannot be read as safetensors, perhaps it is truncated: "
    with reading(path, how), safe_open(path, framework="pt") as weights:
        yield weights


def _count_parameters(paths: Iterable[Path]) -> tuple[int, list[str]]:
    """The number of parameters in safetensors files (tied ones count once), and their dtypes. Reads only headers."""
    count, dtypes = 0, set()
    for path in paths:
        with open_weights(path) as weights:
            tensors = [weights.get_slice(name) for name in weights.keys()]  # noqa: SIM118
            count += sum(math.prod(each.get_shape()) for each in tensors)
            dtypes |= {_DTYPES.get(each.get_dtype(), each.get_dtype()) for each in tensors}
    return count, sorted(dtypes)


# -- the folder --------------------------------------------------------------------------------------------------------


@dataclass
class Conversion:
    """How a folder was converted from a model of a different kind."""

    kind: str  # e.g. Marian model
    name: str | None  # on the Hub
    largest_difference: float  # of logits of random ids, in float32
    version: str = __version__  # of this package

    def write(self, folder: Path) -> None:
        write_whole(folder / CONVERSION, json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def read(folder: Path) -> "Conversion | None":
        path = folder / CONVERSION
        if not path.is_file():
            return None
        with as_user_error(f"{path}: not what a conversion writes (delete it): "):
            conversion = Conversion(**read_json(path))
            if math.isfinite(conversion.largest_difference):
                return conversion
            raise ValueError("largest_difference is not finite")


def tokenizer_languages(folder: Path) -> list[str]:
    """Source and target language as OPUS-MT tokenizers name them; empty if this one does not."""
    path = folder / "tokenizer_config.json"
    content = read_json(path) if path.is_file() else {}
    tags = [content.get("source_lang"), content.get("target_lang")]
    return tags if all(isinstance(tag, str) and language_code(tag) for tag in tags) else []


def read_facts(folder: Path, tags: Iterable[str] = ()) -> ModelFacts:
    """
    Read a model's facts from its folder.

    Args:
        tags: source and target language, if known from a better source than the tokenizer.

    Raises:
        UserError: a file is missing or damaged.
    """
    config = read_config(folder)
    tags = list(tags) or tokenizer_languages(folder)
    pipelines = read_json(folder / "config.json").get("custom_pipelines") or {}
    return ModelFacts(
        config,
        read_json(folder / "generation_config.json"),
        *_count_parameters(weight_files(folder)),
        languages=[escape(language_name(tag)) for tag in tags],
        codes=language_codes(tags),
        tokenizers=sum((folder / part / "tokenizer_config.json").is_file() for part in ("", TARGET_FOLDER)),
        sentencepiece=any(folder.glob("*.spm")),
        pipeline=not pipelines.keys().isdisjoint([TRANSLATION, TEXT2TEXT]),
        is_translator=task_of(config) == TRANSLATION,
        calibration=read_json(confidence)["measured"] if (confidence := folder / CONFIDENCE).is_file() else {},
    )
