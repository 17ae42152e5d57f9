"""
Pipelines that Transformers 5 no longer has: pipeline("translation", model=NAME, trust_remote_code=True), and for models
of other pairs "text2text-generation", find this file through `custom_pipelines` in a checkpoint's config.json.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice, repeat
from numbers import Integral
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from transformers import AutoTokenizer, Pipeline, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from .batched_generation import as_translations, generate_batch, setting_of, tokenize, with_spare
from .confidence import FILE, Confidence
from .configuration_scratch import TEXT2TEXT, task_of
from .kept_words import KEPT  # noqa: F401  # Transformers up to 5.8 copies only what this file imports
from .sentences import beginnings  # noqa: F401
from .text import (
    DEFAULT_BATCH_TOKENS,
    Reading,
    Sentences,
    TextRules,
    batches_by_length,
    check_inputs,
    has_whole_symbols,
    left_as_it_is,
)
from .translations import Translation, Translations

TARGET_FOLDER = "target_tokenizer"

SENTENCES_AHEAD = 1024  # read of a stream at a time, to make batches of similar length
_BATCHES_AHEAD = 16  # the same if the size of batches is given

# Arguments of `generate` with one row per sentence: since batches are sorted by length, rows would get mixed up.
_PER_SENTENCE = {"input_ids", "attention_mask", "position_ids", "inputs_embeds", "encoder_outputs", "past_key_values"}
_PER_SENTENCE |= {"decoder_input_ids", "decoder_attention_mask", "decoder_position_ids", "decoder_inputs_embeds"}
_PER_SENTENCE |= {"cache"}


def load_target_tokenizer(
    name: str, config: PreTrainedConfig, source: PreTrainedTokenizerBase, subfolder: str = "", **options
) -> PreTrainedTokenizerBase:
    """
    The target's tokenizer. A model has two vocabularies if `decoder_vocab_size` is set and the embeddings are not
    shared; otherwise this is the source's tokenizer.

    Args:
        name: the folder or Hub name that the model was loaded from; "" for a model built in memory.
        options: for `from_pretrained`: revision, cache_dir, token, local_files_only.

    Raises:
        OSError: the model has two vocabularies, and the target's tokenizer cannot be loaded.
        ValueError: the model has two vocabularies and was built in memory.
    """
    if config.decoder_vocab_size is None or config.share_encoder_decoder_embeddings:
        return source
    sizes = f"the model has two vocabularies ({config.vocab_size:,} and {config.decoder_vocab_size:,} tokens)"
    if not name:
        raise ValueError(f"{sizes}: give the target's tokenizer as target_tokenizer")
    folder = f"{subfolder}/{TARGET_FOLDER}" if subfolder else TARGET_FOLDER
    try:
        if not Path(name).is_dir():  # if the Hub does not answer, AutoTokenizer carries on without this file
            hf_hub_download(name, f"{folder}/tokenizer_config.json", **options)
        # Given a config, AutoTokenizer neither looks for one in that folder nor asks whether to trust its code.
        options |= {"config": PreTrainedConfig(), "trust_remote_code": False}
        return AutoTokenizer.from_pretrained(name, subfolder=folder, **options)
    except Exception as error:  # the Hub client and its dependencies raise many types
        reason = " ".join(str(error).split())
        raise OSError(
            f"{name}: {sizes}, and the target's tokenizer could not be loaded from {folder}: {reason}. Save it there, "
            "or give it as target_tokenizer"
        ) from error


class ScratchTranslationPipeline(Pipeline):
    """
    Translates text. Sentences of similar length are batched together, and results come in the order of the inputs.
    Whitespace around a sentence is ignored, any other counts as one space, and invisible characters are not read. A
    sentence without a letter or a digit, such as "...", is not translated: it is its own translation, with a score of 0
    and a confidence of 1. (Models of whole symbols, and of pairs that are not translations, read every text but a blank
    one.)

    ```python
    translator = pipeline("translation", model="runs/embedded", trust_remote_code=True)
    translator("The cat sleeps.")  # [{"translation_text": "Die Katze schläft."}]
    translator(["The cat sleeps.", "We run."], num_beams=4, num_return_sequences=2)  # two dicts for each
    for (best,) in translator(line for line in file):  # reads ahead, but not the whole file
        print(best["translation_text"])
    translator("sleep", features="V;PST")  # for models that were trained with features
    ```

    `trust_remote_code=True` runs the code stored with the model. Where this project is installed,
    `pipeline("translation", model=..., pipeline_class=ScratchTranslationPipeline)` runs the installed code. For a model
    in memory, use `ScratchTranslationPipeline(model=model, tokenizer=tokenizer)`.

    A model of pairs that are not translations has the task "text2text-generation" and results in "generated_text":

    ```python
    generator = pipeline("text2text-generation", model="runs/dates", trust_remote_code=True)
    generator("June 12th, 1918")  # [{"generated_text": "1918-06-12"}]
    ```

    Args:
        model: a ScratchForConditionalGeneration.
        tokenizer: the source's.
        target_tokenizer: None: the source's; with two vocabularies, the one stored with the model (same revision).
        task: None: the one that the model's config names.
        batch_size: sentences per batch; None: as many as `batch_tokens` allows.
        batch_tokens: source tokens per batch including padding, if `batch_size` is not given; None: 4096.
        sentences: "split": translate each sentence of an input by itself, and join the translations; "line": each input
            as a whole. None: as training stored with the tokenizer, "split" where hardly any source line has several.
        features: conditions on the output, separated by semicolons, as in the model's training data: a string for all
            sentences, or an iterable with one for each. None: no features.
        return_scores: add each translation's "score", the natural logarithm of its probability under the model, the end
            token included. None: only if there are several translations per sentence. (Beam search ranks by score /
            length^length_penalty. Samples are ranked by score, if there are scores.)
        return_confidence: add each translation's "confidence", from 0 to 1: below 0.5, the sentence is unlike what the
            model has learnt, or longer than anything that it was trained on, or its translation is too short or long
            for it. Training calibrates it.
        device, dtype: as in every pipeline.
        generation: all other arguments, here or in a call, go to `model.generate`: num_beams, length_penalty,
            max_new_tokens, do_sample, num_return_sequences, generation_config and so on. They override the model's
            generation config. The length is limited to what learned positions allow. Arguments with one row per
            sentence, such as decoder_input_ids, are refused, because batches are sorted by length; for the same reason
            prefix_allowed_tokens_fn gets an index within the batch.

    Raises:
        ValueError: there is no tokenizer, or just one for a model in memory with two vocabularies.
        OSError: the target's tokenizer cannot be loaded.
    """

    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        task: str | None = None,
        batch_size: int | None = None,
        **kwargs,
    ):
        if tokenizer is None:
            raise ValueError("give the source's tokenizer: AutoTokenizer.from_pretrained of the model's folder or name")
        if target_tokenizer is None:
            options = getattr(model, "hub_options", {})
            target_tokenizer = load_target_tokenizer(model.name_or_path, model.config, tokenizer, **options)
        self.target_tokenizer = target_tokenizer
        kwargs.pop("local_files_only", None)  # from `pipeline`; already in the model's hub_options
        self.batch_size = batch_size
        # In a config that it is given, `pipeline` replaces names with classes, which can neither be saved nor found.
        for entry in (getattr(model.config, "custom_pipelines", None) or {}).values():
            if "pt" in entry:
                entry["pt"] = [getattr(name, "__name__", name) for name in entry["pt"]]
        super().__init__(model=model, tokenizer=tokenizer, task=task or task_of(model.config), **kwargs)

    @cached_property
    def confidence(self) -> Confidence | None:
        """What training wrote to confidence.json; None if the model has none, or is in memory."""
        return Confidence.load(self.model.name_or_path, **getattr(self.model, "hub_options", {}))

    @property
    def _key(self) -> str:
        """The key of a text in the results."""
        return "generated_text" if self.task == TEXT2TEXT else "translation_text"

    def save_pretrained(self, save_directory: str | Path, push_to_hub: bool = False, **kwargs) -> None:
        """
        Save the model with its code, the tokenizer, and the target's tokenizer if it differs.

        Raises:
            ValueError: push_to_hub is True, which would push them one by one; the method of that name pushes them
                together.
        """
        if push_to_hub:
            raise ValueError(
                "save_pretrained(push_to_hub=True) would push model and tokenizers one by one; call push_to_hub(name)"
            )
        super().save_pretrained(save_directory, **kwargs)
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(Path(save_directory) / TARGET_FOLDER)
        if self.confidence is not None:  # which the model's own code, if it is older, does not save
            (Path(save_directory) / FILE).write_text(self.confidence.text(), encoding="utf-8")

    def _sanitize_parameters(self, **settings) -> tuple[dict, dict, dict]:
        """The inherited constructor calls this with the arguments that it does not know itself."""
        self.settings = settings
        return {}, {}, {}

    def __call__(
        self,
        inputs: str | Iterable[str],
        batch_size: int | None = None,
        num_workers: int | None = None,
        **kwargs,
    ) -> list | Iterator[list]:
        """
        Args:
            inputs: a sentence, a list of sentences, or any other iterable (a generator, a data set of strings).
            batch_size, kwargs: as in the class; they override what was given there.
            num_workers: accepted as in every pipeline, but has no effect.

        Returns:
            For one sentence, a list of its translations, {"translation_text": ..., "score": ...}, best first
            ("generated_text" in text2text-generation). For a list, a list of such lists, or of the dicts if there is
            one translation per sentence. For any other iterable, an iterator over such lists, which reads at most 1,024
            sentences ahead (with `batch_size`, at most 16 batches).

        Raises:
            ValueError: an input is not a string, or has more tokens than the model takes; a setting is not valid; or
                confidences are asked for, and the model has no confidence.json.
        """
        forward = self.settings | kwargs
        if (sentences := forward.pop("sentences", None)) not in (None, "line", "split"):
            raise ValueError(f"sentences is {sentences!r}; it must be 'line' or 'split'")
        if wrong := sorted(_PER_SENTENCE & forward.keys()):
            raise ValueError(
                f"{', '.join(wrong)}: the pipeline sorts sentences by length, so the rows would go to other "
                "sentences; call model.generate"
            )
        batch_size = self.batch_size if batch_size is None else batch_size
        tokens, features = forward.pop("batch_tokens", None), forward.pop("features", None) or ""
        several = setting_of(self.model, forward, "num_return_sequences")
        for name, number in {"batch_size": batch_size, "batch_tokens": tokens, "num_return_sequences": several}.items():
            if number is not None and (not isinstance(number, Integral) or number < 1):
                raise ValueError(f"{name} is {number!r}; it must be a whole number, at least 1")
        if batch_size is not None:
            tokens = None
        elif tokens is None:
            tokens = DEFAULT_BATCH_TOKENS
        several = several or 1
        if forward.get("return_scores") is None:
            forward["return_scores"] = several > 1
        if forward.setdefault("return_confidence", False) and self.confidence is None:
            raise ValueError(f"return_confidence: the model has no {FILE}, which training writes; leave it out")
        limits = {"batch_size": batch_size, "batch_tokens": tokens}
        translate = partial(self._translate, limits=limits, several=several, forward=forward, sentences=sentences)
        for_all = isinstance(features, str)
        if isinstance(inputs, str):
            return translate([inputs], [features] if for_all else list(features))[0]
        if isinstance(inputs, Sequence) and not isinstance(inputs, bytes):
            results = translate(list(inputs), [features] * len(inputs) if for_all else list(features))
            return results if several > 1 else [result[0] for result in results]
        if not isinstance(inputs, Iterable) and hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__"):
            inputs = map(inputs.__getitem__, range(len(inputs)))  # a torch Dataset
        if isinstance(inputs, Mapping | bytes) or not isinstance(inputs, Iterable):
            raise ValueError(f"the input is of type {type(inputs).__name__}; give a string or an iterable of strings")
        ahead = SENTENCES_AHEAD
        if batch_size is not None:
            ahead = batch_size * _BATCHES_AHEAD if batch_size > 1 else 1  # one by one: each before the next is read
        return self._stream(iter(inputs), repeat(features) if for_all else iter(features), ahead, translate)

    @staticmethod
    def _stream(inputs: Iterator[str], features: Iterator[str], ahead: int, translate: partial) -> Iterator[list[dict]]:
        first = 0
        while window := list(islice(inputs, ahead)):
            yield from translate(window, list(islice(features, len(window))), first=first)
            first += len(window)

    def _translate(
        self,
        texts: list[str],
        features: list[str],
        limits: dict[str, int | None],
        several: int,
        forward: dict[str, Any],
        sentences: Sentences | None,
        first: int = 0,
    ) -> list[list[dict[str, Any]]]:
        """Translate texts, `several` times each. `first` is the number of the first one among the inputs."""
        check_inputs(texts, features, first)
        read = Reading(texts, self.rules, sentences=sentences)
        ids = self.preprocess(read.inputs, [first + owner for owner in read.owners], read.of_inputs(features))
        translations = [[Translation(left_as_it_is(text))] * several for text in read.inputs]
        for batch in batches_by_length([len(row) for row in ids], **limits):
            given = {"ids": [ids[index] for index in batch], "inputs": [read.inputs[index] for index in batch]}
            outputs = self.forward(given, **forward)
            for index, row in zip(batch, self.postprocess(outputs), strict=True):
                translations[index] = row
        results = []
        for row in read.restored(translations):
            results.append([{self._key: translation.text} for translation in row])
            for result, translation in zip(results[-1], row, strict=True):
                if forward["return_scores"]:
                    result["score"] = translation.score
                if forward["return_confidence"]:
                    result["confidence"] = 1.0 if translation.confidence is None else translation.confidence
        return results

    @property
    def rules(self) -> TextRules:
        """How the model reads texts."""
        is_translation, settings = self.task != TEXT2TEXT, self.tokenizer.init_kwargs
        return TextRules.of(settings, is_translation, has_whole_symbols(self.tokenizer))

    def preprocess(
        self, inputs: list[str], numbers: list[int] | None = None, features: list[str] | None = None
    ) -> list[list[int]]:
        """The token ids of each input of a `Reading`; see `tokenize`."""
        limit = self.model.config.max_position_embeddings
        return tokenize(self.tokenizer, inputs, limit, numbers, features, self.rules.takes_any)

    def _forward(
        self, batch: dict[str, Any], return_scores: bool, return_confidence: bool, **generation
    ) -> dict[str, Any]:
        generation, several = with_spare(self.model, self.rules, generation)
        sequences, scores = generate_batch(self.model, batch["ids"], return_scores or return_confidence, **generation)
        confidence = self.confidence if return_confidence else None
        made = {"sequences": sequences, "scores": scores, "confidence": confidence, "several": several}
        return batch | made

    def postprocess(self, outputs: dict[str, Any]) -> Translations:
        """The translations of each input in a batch, best first."""
        found = outputs["inputs"], outputs["ids"], outputs["sequences"], outputs["scores"], outputs["several"]
        return as_translations(self.model, self.target_tokenizer, *found, self.rules, outputs["confidence"])
