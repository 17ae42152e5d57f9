"""Prepare a run's data, tokenizers and model from its recipe, once all that needs no data is checked."""

import logging
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import torch
from accelerate import Accelerator
from datasets import Dataset
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.augmentation import Augmenter, make_augmenter
from ..data.batches import AugmentedPairs, BinCollator, EpochBatches, PairCollator
from ..data.copied_words import COPIED, Copies, find_copied_words, kept_on_both_sides
from ..data.corpus import Links
from ..data.local_files import check_files
from ..data.sources import SEE_REPORT, load_pairs, side_of, source_of
from ..data.streaming import GlobalBatches, PairStream, StreamBatches, open_stream, sample_pairs
from ..data.tokenizer import (
    RESERVES,
    PairTokenizer,
    adopt_tokenizer,
    features_of,
    texts,
    tokenize_pairs,
    train_tokenizer,
)
from ..errors import UserError, as_user_error
from ..languages import is_in_another_script, is_same_language, script_of
from ..loading import load_config, load_tokenizers, load_translator, vocabulary_size
from ..metrics import METRICS, preparation_of
from ..model import ScratchForConditionalGeneration
from ..model.batched_generation import tokenize
from ..model.configuration_scratch import TRANSLATION, ScratchConfig, pipelines_for, task_of
from ..model.kept_words import KEPT, RESERVED
from ..model.sentences import beginnings
from ..model.text import SEPARATOR, clean, has_whole_symbols
from ..model.translation_pipeline import TARGET_FOLDER
from ..recipe.reading import adopts_two, check_fields, fields_of_new_model, planned_config
from ..recipe.schema import SOURCE, TARGET, EvaluationSection, Recipe
from ..run.processes import main_first, on_all, on_main
from ..run.progress import FROM_ANOTHER, advising, read_progress
from ..run.run import RunData, Tokenizers
from ..run.sharding import is_sharded
from .compilation import uses_bins
from .fast_layers import use_fast_layers

logger = logging.getLogger(__name__)

BYTES_A_PARAMETER = 16  # in float32: weight, gradient, and AdamW's two moments
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
# The number of rows in a batch of bins is rounded up to a multiple of a 16th of it, so that batches have few shapes.
_SHAPES = 16
_SAMPLED = 50_000  # pairs, of which kept words, copied words and sentences are counted, and which are joined to others
_COUNTED = 5_000  # pairs of these, of which those are counted that have words to copy
_FEW_KEPT = 0.05  # if a smaller share of pairs has kept words on both sides, words that translate each other are copied
_LEARNED = 0.01  # if a smaller share of pairs has reserved characters, a model does not learn to copy them
_MANY_FAULTY = 0.1  # if a larger share of pairs has a fault, warn
_SENTENCE = 20  # characters of a source; shorter copies are often names, and right
_POSITION = re.compile(r"(?<=%)[0-9]+\$")
_SEVERAL = 0.1  # if a smaller share of source lines has several sentences, lines are split to be translated
# What stays of the generation settings of a model that a run starts from: OPUS-MT models, for example, must not choose
# the pad token.
_KEPT: tuple[str, ...] = ("alignment_heads", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens")
_KEPT += ("forced_bos_token_id", "no_repeat_ngram_size", "repetition_penalty")


def prepare(
    recipe: Recipe, accelerator: Accelerator, checkpoint: Path | None = None, readers: int | None = None
) -> tuple[RunData, PreTrainedModel]:
    """
    Load, tokenize and build what the recipe asks for, on all processes.

    Args:
        checkpoint: the checkpoint to resume from; its tokenizers and weights are used.
        readers: the number of readers of a new run's stream; None: as many as these processes need.

    Raises:
        UserError: something is wrong with the data, the tokenizers or the model.
    """
    data, workers = recipe.data, recipe.data.num_workers
    config = main_first(accelerator, lambda: config_to_train(recipe, checkpoint))
    main_first(accelerator, lambda: check_before_reading(recipe, config, accelerator))
    adopted = None if checkpoint else on_main(accelerator, lambda: adopted_tokenizers(recipe))
    pairs = main_first(accelerator, lambda: load_pairs(data, recipe.seed))
    stream = main_first(accelerator, lambda: open_stream(data, recipe.seed)) if data.streaming else None
    train_pairs = pairs["train"] if stream is None else stream
    augment = main_first(
        accelerator,
        lambda: make_augmenter(data.augment, recipe.seed, data.languages, lambda: some_pairs(train_pairs, recipe.seed)),
    )
    copies = None
    if checkpoint is not None:
        with advising(FROM_ANOTHER):
            tokenizers = on_all(accelerator, lambda: load_tokenizers(str(checkpoint)))
            model = on_all(accelerator, lambda: load_translator(str(checkpoint), dtype=torch.get_default_dtype()))
        if tokenizers[0].init_kwargs.get("reserved"):
            copies = on_main(
                accelerator,
                lambda: learned_copies(some_pairs(train_pairs, recipe.seed), recipe.seed, always=True),
            )
    else:
        # Without languages, a model that the run starts from stays what it was.
        task = task_of(config) if recipe.model.start_from else data.pipeline_task
        tokenizers, copies = on_main(accelerator, lambda: make_tokenizers(recipe, adopted, train_pairs, task, augment))
        model = on_all(accelerator, lambda: make_model(recipe, tokenizers, config))
    _check_sentences(model.config, tokenizers[0], pairs)
    model.generation_config = generation_settings(model, recipe.evaluation)
    use_fast_layers(model)
    before = read_progress(checkpoint) if checkpoint else None
    tokenizer = PairTokenizer(
        *tokenizers,
        data.max_source_tokens,
        data.max_target_tokens,
        cleans_sources=before is None or before.clean_sources,  # a resumed run keeps the tokens that it began with
        copies=copies,
    )
    unchanged = replace(tokenizer, copies=copies and Copies(copies.seed, {}))  # but for kept words

    def tokenized(split: str) -> Dataset:
        by = tokenizer if split == "train" else unchanged
        return main_first(accelerator, lambda: tokenize_pairs(pairs[split], by, split, workers))

    collate = make_collator(recipe, accelerator, tokenizers[0].pad_token_id)
    if stream is not None:
        readers = before.position["readers"] if before else readers
        batches: GlobalBatches = StreamBatches(stream, tokenizer, recipe, collate, accelerator, readers, augment)
    else:
        weights = np.asarray(pairs["train"]["weight"][:]) if data.mix else None
        train = tokenized("train")
        augmented = AugmentedPairs(pairs["train"], train, tokenizer, augment) if augment else None
        batches = EpochBatches(train, recipe, collate, accelerator, weights, augmented)
        # For a warning by `scratch translate`; Transformers saves settings of any name.
        longest_source = int(batches.lengths[0].max())
        model.generation_config.longest_training_source = longest_source  # type: ignore[attr-defined]
        _check_length_limit(recipe, int(batches.lengths[1].max()))
    return RunData(pairs, tokenizers, batches, tokenized("validation")), model


def config_to_train(recipe: Recipe, checkpoint: Path | None) -> ScratchConfig:
    """The architecture of the model to train, before data and tokenizers are known."""
    if checkpoint is not None:
        saved = load_config(str(checkpoint))
        assert isinstance(saved, ScratchConfig)
        return saved
    section = recipe.model
    if not section.start_from:
        return planned_config(recipe)
    try:
        config = load_config(section.start_from)
    except ValueError as error:
        raise UserError(f"model.start_from: {error}") from error
    if not isinstance(config, ScratchConfig):
        raise UserError(
            f"model.start_from: {section.start_from} is a {config.model_type} model; a run starts from a "
            f"{ScratchConfig.model_type} model"
        )
    check_fields(section.overrides, "model.overrides")
    for name, value in section.overrides.items():
        setattr(config, name, value)
    task = recipe.data.pipeline_task
    if recipe.data.languages and task != task_of(config):  # without languages, the model stays what it was
        config.custom_pipelines = pipelines_for(task)
    fields = {name: getattr(config, name) for name in ScratchConfig.fields()}
    check_fields(fields, f"model.start_from: {section.start_from}")
    return config


# -- checks before any data is read ------------------------------------------------------------------------------------


def check_before_reading(recipe: Recipe, config: ScratchConfig, accelerator: Accelerator) -> None:
    """
    Raise UserError for what would fail after minutes of preparation, or exhaust the machine.

    Args:
        config: the config of the model to train.
    """
    check_files(recipe.data)
    make_augmenter(recipe.data.augment, recipe.seed)
    check_alignments(recipe)
    check_metrics(recipe)
    check_positions(recipe, config)
    _check_memory(config, accelerator)


def check_alignments(recipe: Recipe) -> None:
    """Raise UserError if the recipe asks for alignments of data without gold links."""
    if recipe.evaluation.alignments and gold_links_of(recipe, "validation") is None:
        source = source_of("validation", recipe.data, recipe.seed)
        raise UserError(
            f"evaluation.alignments: {source.name if source else 'held-out validation pairs'}: no gold links say which "
            "words translate each other, as in the embedded corpus; set evaluation.alignments=false"
        )


def check_metrics(recipe: Recipe) -> None:
    """Raise ModuleNotFoundError or UserError if something that the recipe's metrics take is not on this machine."""
    for key in recipe.evaluation.scored(final=True):
        preparation_of(key, recipe.data.names[1], recipe.evaluation.canonical)


def gold_links_of(recipe: Recipe, split: str) -> list[Links] | None:
    """The links of a split's pairs that the data know; None if they know none."""
    source = source_of(split, recipe.data, recipe.seed)
    return None if source is None else source.gold_links()


def check_positions(recipe: Recipe, config: ScratchConfig) -> None:
    """Raise UserError if the recipe allows sequences longer than learned positions."""
    limit = config.max_position_embeddings
    allowed = {
        "data.max_source_tokens": recipe.data.max_source_tokens,
        "data.max_target_tokens": recipe.data.max_target_tokens,
        "evaluation.max_new_tokens": recipe.evaluation.max_new_tokens,
    }
    for key, length in allowed.items():
        if config.position_embedding_type == "learned" and length > limit:
            raise UserError(f"learned positions end at max_position_embeddings ({limit}), but {key} allows {length}")


def _check_memory(config: ScratchConfig, accelerator: Accelerator) -> None:
    parameters, memory = count_parameters(config), memory_of(accelerator)
    copies = 1.0
    if accelerator.device.type == "cpu":  # processes share the memory
        copies = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if is_sharded(accelerator):
        copies /= accelerator.num_processes
    needed = BYTES_A_PARAMETER * parameters * copies
    if needed > memory:
        raise UserError(
            f"model: {parameters:,} parameters take {needed / 2**30:,.1f} GiB to train on {accelerator.device.type} "
            f"(weights, gradients, moments), and {memory / 2**30:,.1f} GiB are available: take a smaller d_model or "
            "vocabulary, or fewer layers, or shard the model (docs/scaling.md)"
        )


def count_parameters(config: ScratchConfig) -> int:
    """A model's number of parameters, extrapolated from one with a layer on each side that takes no memory."""
    shallow = ScratchConfig(**{name: getattr(config, name) for name in ScratchConfig.fields()})
    shallow.encoder_layers = shallow.decoder_layers = 1
    with torch.device("meta"):
        model = ScratchForConditionalGeneration(shallow)
    total = model.num_parameters()
    if not config.share_layers:
        depths = {model.get_encoder(): config.encoder_layers, model.get_decoder(): config.decoder_layers}
        for stack, depth in depths.items():
            total += (depth - 1) * sum(weight.numel() for weight in stack.layers.parameters())
    return total


def memory_of(accelerator: Accelerator) -> int:
    """Bytes of memory on a process's device; on CPUs, of the machine or container, shared by its processes."""
    if accelerator.device.type == "cuda":
        return torch.cuda.get_device_properties(accelerator.device).total_memory
    limit = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.is_file() else "max"
    return min(psutil.virtual_memory().total, int(limit) if limit.isdigit() else math.inf)


# -- tokenizers, model, batches ----------------------------------------------------------------------------------------


def adopted_tokenizers(recipe: Recipe) -> Tokenizers | None:
    """The source and target tokenizers that the recipe names, one object if shared; None if it asks for new ones."""
    if recipe.model.start_from:
        if recipe.tokenizer.existing:
            raise UserError(
                "tokenizer.existing: with model.start_from, a model keeps its own tokenizer; set it to null"
            )
        source, target = load_tokenizers(recipe.model.start_from)
        _check_features(recipe, source, f"model.start_from: {recipe.model.start_from}")
        return source, target
    if recipe.tokenizer.existing:
        name = recipe.tokenizer.existing
        source = adopt_tokenizer(name)
        _check_features(recipe, source, f"tokenizer.existing: {name}")
        return source, adopt_tokenizer(f"{name}/{TARGET_FOLDER}") if adopts_two(recipe) else source
    return None


def _check_features(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    if recipe.data.feature_columns and tokenizer(f"a{SEPARATOR}b").input_ids == tokenizer("ab").input_ids:
        raise UserError(
            f"{name} has a tokenizer that drops the control character after each feature (data.feature_columns); train "
            "a new model with a new tokenizer"
        )


def some_pairs(train: Dataset | PairStream, seed: int) -> list[tuple[str, str]]:
    """Sources and targets of training pairs: to count kept words, copied words and sentences, and for augmentation."""
    batches = sample_pairs(train, _SAMPLED, seed)
    return [pair for batch in batches for pair in zip(batch[SOURCE], batch[TARGET], strict=True)]


def learned_copies(pairs: list[tuple[str, str]], seed: int, always: bool = False) -> Copies | None:
    """
    What puts reserved characters into the training pairs of which these are a sample.

    Args:
        always: a model that goes on learning has learned to copy them; otherwise, None if too few pairs would have any.
    """
    found = [kept_on_both_sides(*pair) for pair in pairs]
    kept, differ = sum(bool(links) for links, _ in found), sum(not is_whole for _, is_whole in found)
    logger.info(
        f"data: {kept:,} of {len(pairs):,} training pairs have kept words, such as {{name}} or addresses, on both "
        f"sides; in {differ:,} pairs the kept words of the sides differ"
    )
    if kept >= _FEW_KEPT * len(pairs):
        return Copies(seed, {})
    copies = Copies(seed, *find_copied_words(pairs))
    some = pairs[:: max(1, len(pairs) // _COUNTED)]
    copied = COPIED * sum(bool(copies.possible(*pair)) for pair in some) / len(some)
    if kept / len(pairs) + copied < _LEARNED and not always:
        logger.info("data: too few training pairs have words that can be copied for a model to learn it: all is text")
        return None
    logger.info(f"data: some of {len(copies.words):,} words are copied in {copied:.0%} of the training pairs")
    return copies


def splits_lines(sources: Sequence[str], language: str) -> bool:
    """Whether hardly any of the source lines in training has several sentences."""
    several = sum(bool(beginnings(text, language, KEPT.spans(text))) for text in sources)
    splits = several < _SEVERAL * len(sources)
    logger.info(
        f"data: {several:,} of {len(sources):,} training sources have several sentences; lines will be translated "
        f"{'sentence by sentence' if splits else 'as one'}"
    )
    return splits


def warn_about_pairs(pairs: Sequence[tuple[str, str]], languages: tuple[str, str]) -> None:
    """
    Warn if many of the training pairs of which these are a sample are copies, in another script than their language, or
    have targets that lack placeholders. Only the script is looked at: to tell languages takes an extra of this package.
    """
    some = [(clean(source), clean(target)) for source, target in pairs[:: -(-len(pairs) // _COUNTED) or 1]]
    sentences = [pair for pair in some if len(pair[0]) >= _SENTENCE]
    found = {}
    if not is_same_language(*languages):
        copied = sum(source.casefold() == target.casefold() for source, target in sentences)
        found["of the training pairs, the target is a copy of the source"] = copied, len(some)
    scripts = list(map(script_of, languages))
    foreign = sum(any(map(is_in_another_script, pair, scripts)) for pair in sentences)
    found["of the training pairs, a side has no letter in the script of its language"] = foreign, len(some)
    with_words = [pair for pair in some if KEPT.spans(pair[0])]
    if len(with_words) >= _LEARNED * len(some):
        lost = sum(_loses_words(*pair) for pair in with_words)
        found["of the sources with placeholders or addresses, the target lacks some"] = lost, len(with_words)
    for what, (count, total) in found.items():
        if count and count >= _MANY_FAULTY * total:
            logger.warning(f"data: in {count / total:.0%} {what}{SEE_REPORT}")


def _loses_words(source: str, target: str) -> bool:
    """Whether a target lacks kept words of its source, whatever letters are beside them; %1$s is %s."""
    words = Counter(_POSITION.sub("", source[slice(*span)]) for span in KEPT.spans(source))
    target = _POSITION.sub("", target)
    return any(target.count(word) < count for word, count in words.items())


def make_tokenizers(
    recipe: Recipe, adopted: Tokenizers | None, train: Dataset | PairStream, task: str, augment: Augmenter | None
) -> tuple[Tokenizers, Copies | None]:
    """
    The tokenizers of a new run, adopted or trained, and what puts reserved characters into its pairs, if they have
    tokens for these. The config of the source tokenizer gets the facts of `TextRules`, as the saved one has them.

    Args:
        task: the model's.
        augment: see `train_tokenizers`.
    """
    section, copies, translates = recipe.tokenizer, None, task == TRANSLATION
    pairs = some_pairs(train, recipe.seed) if translates else []
    if adopted is not None:
        reserves = bool(adopted[0].init_kwargs.get("reserved"))
    else:
        kinds = {section.kind, section.target_kind or section.kind}
        reserves = kinds <= set(RESERVES) and section.vocab_size > 2 * len(RESERVED)
    if translates and recipe.data.kept_words and reserves:
        copies = learned_copies(pairs, recipe.seed, always=bool(recipe.model.start_from))
    tokenizers = adopted or train_tokenizers(recipe, train, copies is not None, augment)
    facts = tokenizers[0].init_kwargs
    facts |= zip(("source_lang", "target_lang"), recipe.data.languages or (), strict=False)
    if translates and recipe.data.languages:
        warn_about_pairs(pairs, recipe.data.languages)
    if translates:
        facts["splits_lines"] = splits_lines([source for source, _ in pairs], facts.get("source_lang") or "")
    if copies is None and facts.get("reserved"):
        facts["reserved"] = 0
    return tokenizers, copies


def train_tokenizers(
    recipe: Recipe, train: Dataset | PairStream, reserves: bool = False, augment: Augmenter | None = None
) -> Tokenizers:
    """
    The source and target tokenizers, one object if they share a vocabulary, trained on a sample of a data set or on the
    beginning of a stream.

    Args:
        reserves: see `train_tokenizer`.
        augment: changes the pairs, so that words as the model will see them, such as those in capitals, become tokens.
    """
    section = recipe.tokenizer
    made = []
    kinds = (section.kind, section.target_kind or section.kind)
    for columns, kind in zip([[SOURCE, TARGET]] if section.shared else [[SOURCE], [TARGET]], kinds, strict=False):
        rows, total = max(1, section.max_sentences // len(columns)), "the stream's first"
        if isinstance(train, Dataset):
            total = f"{min(rows, len(train)) * len(columns):,}"
            if len(train) > rows:
                sampled = f"{rows:,} of {len(train):,} pairs (seed {recipe.seed})"
                logger.info(f"tokenizer: training on a sample of {sampled}")
        batches = sample_pairs(train, rows, recipe.seed)
        if augment is not None:
            batches = _changed(batches, augment)
        sentences = ([text for column in columns for text in side_of(batch, column)] for batch in batches)
        tokenizer = train_tokenizer(sentences, section.vocab_size, kind, section.pattern, reserves)
        logger.info(f"tokenizer: {len(tokenizer):,} tokens from {total} sentences ({', '.join(columns)})")
        made.append(tokenizer)
    return made[0], made[-1]


def _changed(
    batches: Iterator[Mapping[str, Sequence[str]]], augment: Augmenter
) -> Iterator[Mapping[str, Sequence[str]]]:
    first = 0
    for batch in batches:
        yield augment(batch, [(0, first + row) for row in range(len(batch[SOURCE]))])
        first += len(batch[SOURCE])


def make_model(recipe: Recipe, tokenizers: Tokenizers, config: ScratchConfig) -> PreTrainedModel:
    """
    A new model, or the one that the recipe starts from.

    Args:
        config: from `config_to_train`; in a new model, the vocabulary sizes come from the tokenizers.

    Raises:
        UserError: a tokenizer has more tokens than the model's embedding has rows.
    """
    source, target = tokenizers
    sizes = {"vocab_size": vocabulary_size(source), "decoder_vocab_size": vocabulary_size(target)}
    if recipe.model.start_from:
        model = load_translator(recipe.model.start_from, config=config, dtype=torch.get_default_dtype())
    else:
        second = sizes["decoder_vocab_size"] if source is not target else None
        fields = fields_of_new_model(recipe, sizes["vocab_size"], second)
        with as_user_error("model: ", ValueError):
            config = ScratchConfig(
                **fields,
                pad_token_id=source.pad_token_id,
                bos_token_id=target.bos_token_id,
                eos_token_id=target.eos_token_id,
                unk_token_id=source.unk_token_id,
                decoder_start_token_id=target.bos_token_id,
                custom_pipelines=pipelines_for(recipe.data.pipeline_task),
            )
        model = ScratchForConditionalGeneration(config)
    rows = {"vocab_size": model.config.vocab_size, "decoder_vocab_size": model.config.target_vocab_size}
    for name, size in sizes.items():
        if size > rows[name]:
            raise UserError(
                f"the tokenizer has {size:,} tokens, but the model's {name} is {rows[name]:,}: leave {name} out, or "
                "make the tokenizer smaller"
            )
    return model


def generation_settings(model: PreTrainedModel, section: EvaluationSection) -> GenerationConfig:
    """
    How the model is to decode. A hypothesis's log-probability is divided by length^length_penalty; the paper's 0.6
    belongs to ((5 + length) / 6)^0.6 (Wu et al. 2016), which is nearly the same for sentences.

    Beam search ends with the num_beams-th hypothesis, as in CTranslate2. Searching on changes BLEU by chance alone
    (docs/lab/quality.md); what it does to further outputs was not measured, so where they are scored, it goes on.
    """
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    fields = {name: getattr(model.config, name) for name in names}
    kept = {name: getattr(model.generation_config, name, None) for name in _KEPT}
    fields |= {name: value for name, value in kept.items() if value is not None}
    if section.num_beams > 1:
        fields |= {"num_beams": section.num_beams, "length_penalty": section.length_penalty}
        fields["early_stopping"] = not any(METRICS[key].top for key in section.scored(final=True))
    return GenerationConfig(max_new_tokens=section.max_new_tokens, do_sample=False, **fields)


def make_collator(recipe: Recipe, accelerator: Accelerator, pad_token_id: int) -> PairCollator | BinCollator:
    """How the pairs of a micro-batch are laid out: padded on a CPU, where every token costs time; in bins on a GPU."""
    optimization = recipe.optimization
    if not uses_bins(recipe, accelerator):
        return PairCollator(pad_token_id)
    tokens = optimization.tokens_per_batch // (accelerator.num_processes * optimization.gradient_accumulation_steps)
    return BinCollator(pad_token_id, rows=max(1, tokens // (_SHAPES * BinCollator.length)))


def _check_sentences(
    config: PreTrainedConfig, source_tokenizer: PreTrainedTokenizerBase, pairs: dict[str, Dataset]
) -> None:
    """
    UserError, before hours of training rather than after, if a sentence exceeds learned positions, or the pattern of a
    tokenizer gives up on it.
    """
    limit = config.max_position_embeddings if config.position_embedding_type == "learned" else None
    if limit is None and not has_whole_symbols(source_tokenizer):
        return
    for split in set(pairs) - {"train"}:
        with as_user_error(f"the {split} split: ", ValueError):
            tokenize(
                source_tokenizer,
                texts(pairs[split])[0],
                limit,
                range(1, len(pairs[split]) + 1),
                features_of(pairs[split]),
            )


def _check_length_limit(recipe: Recipe, longest: int) -> None:
    if (limit := recipe.evaluation.max_new_tokens) < longest:
        logger.warning(
            f"outputs end after evaluation.max_new_tokens ({limit}), but the longest training target has "
            f"{longest} tokens: longer outputs will be cut"
        )
