"""
Translation as a pipeline of Transformers, which version 5 has none for: pipeline("translation", model=NAME,
trust_remote_code=True) finds this file by the `custom_pipelines` of a checkpoint's config.json.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, Pipeline, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import cached_file

TARGET_FOLDER = "target_tokenizer"
DEFAULT_BATCH_TOKENS = 4096

# A stream is read ahead by so much, to make batches of like length.
_SENTENCES_AHEAD = 1024
_BATCHES_AHEAD = 16

_LOGITS_AT_ONCE = 2**24  # when scoring: 64 MiB


def batches_by_length(
    lengths: Sequence[int], batch_size: int | None = None, batch_tokens: int | None = None
) -> list[list[int]]:
    """
    Indices in batches of like length, the longest first, so that what does not fit into memory fails at once.

    Args:
        lengths: in tokens.
        batch_size: the most sentences a batch; None: no bound.
        batch_tokens: the most tokens a batch, padding included, unless one sentence is longer; None: no bound.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        batch = batches[-1] if batches else []
        longest = lengths[batch[0]] if batch else 0
        many = batch_size is not None and len(batch) == batch_size
        wide = batch_tokens is not None and (len(batch) + 1) * longest > batch_tokens
        if not batch or many or wide:
            batches.append([index])
        else:
            batch.append(index)
    return batches


def _setting(model: PreTrainedModel, generation: dict[str, Any], name: str) -> Any:
    """What `generate` takes for a setting: the argument, or as the given or the model's generation config has it."""
    given = [generation.get(name)]
    given += [getattr(config, name, None) for config in (generation.get("generation_config"), model.generation_config)]
    return next((value for value in given if value is not None), None)


@torch.no_grad()
def generate_batch(
    model: PreTrainedModel, ids: list[list[int]], return_scores: bool | None = False, **generation
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    Translate one batch of tokenized sentences, without dropout.

    Args:
        ids: the source's tokens, a list for each sentence.
        return_scores: None: if there are several translations a sentence.
        generation: for `model.generate`.

    Returns:
        The target's tokens, (batch_size, num_return_sequences, target_length), the decoder's start included; and their
        scores, (batch_size, num_return_sequences), or None. A score is the natural logarithm of the probability that
        the model gives to the translation, its end included, however it was searched for or sampled.
    """
    rows = [torch.tensor(row) for row in ids]
    source = {
        # What stands in padding has no effect.
        "input_ids": pad_sequence(rows, batch_first=True, padding_value=model.config.pad_token_id or 0),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in rows], batch_first=True),  # 1: attend
    }
    source = {name: tensor.to(model.device) for name, tensor in source.items()}
    training = model.training
    model.eval()
    try:
        output = model.generate(**source, **generation)
        sequences = getattr(output, "sequences", output)  # (batch_size * num_return_sequences, target_length)
        scores = None
        if return_scores or (return_scores is None and len(sequences) > len(ids)):
            scores = _log_probabilities(model, source, sequences, _setting(model, generation, "eos_token_id"))
            scores = scores.view(len(ids), -1)
    finally:
        model.train(training)
    return sequences.reshape(len(ids), -1, sequences.shape[-1]), scores


def _log_probabilities(
    model: PreTrainedModel, source: dict[str, torch.Tensor], sequences: torch.Tensor, eos: int | list[int] | None
) -> torch.Tensor:
    """
    Natural logarithms of the probabilities of whole translations, (translations,). Read off a second pass: what
    `generate` can report of its own are processed logits, and the whole vocabulary's for every step at once.

    Args:
        source: input_ids and attention_mask, (batch_size, source_length).
        sequences: (translations, target_length), the same number for each source.
        eos: what ends a translation; what stands after it is not counted.
    """
    targets = sequences[:, 1:]
    ends = torch.isin(targets, torch.tensor([] if eos is None else eos, dtype=targets.dtype, device=targets.device))
    counted = ends.cumsum(dim=1) - ends.long() == 0  # up to the first end
    encoded = model.get_encoder()(**source).last_hidden_state
    row_of = torch.arange(len(sequences), device=sequences.device) // (len(sequences) // len(encoded))
    at_once = max(1, _LOGITS_AT_ONCE // (max(1, targets.shape[1]) * model.config.target_vocab_size))
    found = []
    for rows in torch.arange(len(sequences), device=sequences.device).split(at_once):
        logits = model(
            attention_mask=source["attention_mask"][row_of[rows]],
            encoder_outputs=BaseModelOutput(last_hidden_state=encoded[row_of[rows]]),
            decoder_input_ids=sequences[rows, :-1],
            use_cache=False,
        ).logits.float()  # (rows, target_length - 1, target vocabulary)
        tokens = -torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets[rows], reduction="none")
        found.append((tokens * counted[rows]).sum(dim=1))
    return torch.cat(found)


def load_target_tokenizer(name: str, **options) -> PreTrainedTokenizerBase | None:
    """
    The target's tokenizer of a model folder or Hub name, or None where source and target share one.

    Args:
        options: as `from_pretrained` takes them: revision, cache_dir, and so on.

    Raises:
        OSError: the Hub was asked and refused.
    """
    found = cached_file(
        name,
        "tokenizer_config.json",
        subfolder=TARGET_FOLDER,
        _raise_exceptions_for_missing_entries=False,
        **options,
    )
    if found is None:
        return None
    # Given a config, AutoTokenizer does not look for one in that folder, nor ask whether its code is trusted.
    return AutoTokenizer.from_pretrained(name, subfolder=TARGET_FOLDER, config=PreTrainedConfig(), **options)


class SourceTooLong(ValueError):
    """A sentence has more tokens than the model takes: `index` among the inputs, `length` and `limit` in tokens."""

    def __init__(self, index: int, length: int, limit: int):
        super().__init__(
            f"input {index} has {length} tokens, but the model takes {limit} (max_position_embeddings): nothing is "
            "cut; give it in parts"
        )
        self.index, self.length, self.limit = index, length, limit


class ScratchTranslationPipeline(Pipeline):
    """
    Text in, text out. Batches are of like length, and results in the order of the inputs; an empty sentence's
    translation is empty.

    ```python
    translator = pipeline("translation", model="runs/embedded", trust_remote_code=True)
    translator("The cat sleeps.")  # [{"translation_text": "Die Katze schläft."}]
    translator(["The cat sleeps.", "We run."], num_beams=4, num_return_sequences=2)  # a list of two dicts for each
    for (best,) in translator(line for line in file):  # read ahead, never whole
        print(best["translation_text"])
    ```

    `trust_remote_code=True` runs the code that lies beside the model. Where this project is installed,
    `pipeline("translation", model=..., pipeline_class=ScratchTranslationPipeline)` runs the installed code, and a model
    in memory is translated with by `ScratchTranslationPipeline(model=model, tokenizer=tokenizer)`.

    Args:
        model: a ScratchForConditionalGeneration.
        tokenizer: the source's.
        target_tokenizer: None: from the folder or repository (and revision) that the model was loaded from, if it has
            one, or else the source's.
        batch_size: sentences a batch; None: as many as `batch_tokens` allows.
        batch_tokens: source tokens a batch, padding included, where `batch_size` is not given; 4096 if None.
        return_scores: add each translation's "score": the natural logarithm of its probability by the model, its end
            included. None: if there are several a sentence. (Beam search ranks by score / length^length_penalty.)
        device, dtype: as of every pipeline.
        generation: what else is given, here or in a call, is for `model.generate`: num_beams, length_penalty,
            max_new_tokens, do_sample, num_return_sequences, generation_config and so on. The rest is as the model's
            generation config has it.

    Raises:
        ValueError: there is no tokenizer, or only one for two vocabularies.
    """

    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        task: str = "translation",
        **kwargs,
    ):
        if tokenizer is None:
            raise ValueError("give the source's tokenizer: AutoTokenizer.from_pretrained of the model's folder or name")
        if target_tokenizer is None:
            config, options = model.config, getattr(model, "hub_options", {})
            found = load_target_tokenizer(model.name_or_path, **options) if model.name_or_path else None
            target_tokenizer = tokenizer if found is None else found
            if target_tokenizer is tokenizer and config.target_vocab_size != config.vocab_size:
                raise ValueError(
                    f"the model has two vocabularies ({config.vocab_size:,} and {config.target_vocab_size:,} tokens), "
                    f"but {model.name_or_path or 'a model in memory'} has no folder {TARGET_FOLDER}; give the target's "
                    "tokenizer as target_tokenizer"
                )
        self.target_tokenizer = target_tokenizer
        super().__init__(model=model, tokenizer=tokenizer, task=task, **kwargs)

    def save_pretrained(self, save_directory: str | Path, **kwargs) -> None:
        """The model with its code, the tokenizer, and the target's where it is another one."""
        super().save_pretrained(save_directory, **kwargs)
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(Path(save_directory) / TARGET_FOLDER)

    def _sanitize_parameters(
        self, batch_tokens: int | None = None, return_scores: bool | None = None, **generation
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        batching = {} if batch_tokens is None else {"batch_tokens": batch_tokens}
        return batching, generation | ({} if return_scores is None else {"return_scores": return_scores}), {}

    def __call__(
        self,
        inputs: str | Iterable[str],
        batch_size: int | None = None,
        progress: Callable[[int], Any] | None = None,
        **kwargs,
    ) -> list | Iterator[list]:
        """
        Args:
            inputs: a sentence, a list of them, or any other iterable (a generator, a data set of strings).
            batch_size: as of the class, and so are `kwargs`; here they count before those given to the class.
            progress: called after each batch with the number of sentences in it.

        Returns:
            For one sentence a list of its translations, {"translation_text": ..., "score": ...} each, the best first.
            For a list such a list each; with one translation a sentence, the dicts alone. For another iterable an
            iterator over what one sentence gives, which reads ahead (1,024 sentences, or 16 batches of `batch_size`)
            and no further.

        Raises:
            ValueError: an input is not a string; a setting is not valid.
            SourceTooLong: an input has more tokens than the model takes.
        """
        batching, forward, _ = self._sanitize_parameters(**kwargs)
        batching, forward = self._preprocess_params | batching, self._forward_params | forward
        batch_size = self._batch_size if batch_size is None else batch_size
        limits = {"batch_size": batch_size, "batch_tokens": batching.get("batch_tokens", DEFAULT_BATCH_TOKENS)}
        for name, limit in limits.items():
            if limit is not None and limit < 1:
                raise ValueError(f"{name} is {limit}; it must be at least 1")
        if batch_size is not None:
            limits["batch_tokens"] = None
        translate = partial(self._translate, limits=limits, forward=forward, progress=progress)
        if isinstance(inputs, str):
            return translate([inputs])[0]
        if isinstance(inputs, Sequence):
            several = (_setting(self.model, forward, "num_return_sequences") or 1) > 1
            results = translate(list(inputs))
            return results if several else [result[0] for result in results]
        if isinstance(inputs, Mapping):
            raise ValueError("a dict is no input; give a string or an iterable of strings")
        if not isinstance(inputs, Iterable):  # a torch Dataset
            inputs = map(inputs.__getitem__, range(len(inputs)))
        ahead = _SENTENCES_AHEAD if batch_size is None else 1 if batch_size == 1 else batch_size * _BATCHES_AHEAD
        return self._stream(iter(inputs), ahead, translate)

    @staticmethod
    def _stream(inputs: Iterator[str], ahead: int, translate: Callable[..., list[list]]) -> Iterator[list[dict]]:
        first = 0
        while window := list(islice(inputs, ahead)):
            yield from translate(window, first=first)
            first += len(window)

    def _translate(
        self,
        sentences: list[str],
        limits: dict[str, int | None],
        forward: dict[str, Any],
        progress: Callable[[int], Any] | None,
        first: int = 0,
    ) -> list[list[dict[str, Any]]]:
        """Translate sentences, of which the first is number `first` of the inputs."""
        ids = self.preprocess(sentences, first)
        empty = {"translation_text": ""}
        if forward.get("return_scores", (_setting(self.model, forward, "num_return_sequences") or 1) > 1):
            empty["score"] = 0.0
        results = [[dict(empty)] for _ in sentences]
        filled = [index for index, row in enumerate(ids) if row]
        if progress and len(filled) < len(ids):
            progress(len(ids) - len(filled))
        for batch in batches_by_length([len(ids[index]) for index in filled], **limits):
            batch = [filled[index] for index in batch]
            outputs = self.forward({"ids": [ids[index] for index in batch]}, **forward)
            for index, result in zip(batch, self.postprocess(outputs), strict=True):
                results[index] = result
            if progress:
                progress(len(batch))
        return results

    def preprocess(self, sentences: list[str], first: int = 0) -> list[list[int]]:
        """The tokens of each sentence; none of one that is empty or blank."""
        for index, sentence in enumerate(sentences, start=first):
            if not isinstance(sentence, str):
                raise ValueError(f"input {index} is of type {type(sentence).__name__}; it must be a string")
        filled = [index for index, sentence in enumerate(sentences) if sentence.strip()]
        ids: list[list[int]] = [[] for _ in sentences]
        if filled:
            tokenized = self.tokenizer([sentences[index] for index in filled], truncation=False, verbose=False)
            limit = self.model.config.max_position_embeddings
            for index, row in zip(filled, tokenized.input_ids, strict=True):
                if len(row) > limit:
                    raise SourceTooLong(first + index, len(row), limit)
                ids[index] = row
        return ids

    def _forward(self, batch: dict[str, list[list[int]]], return_scores: bool | None = None, **generation) -> dict:
        sequences, scores = generate_batch(self.model, batch["ids"], return_scores, **generation)
        return {"sequences": sequences, "scores": scores}

    def postprocess(self, outputs: dict[str, torch.Tensor | None]) -> list[list[dict[str, Any]]]:
        """The translations of each sentence of a batch, the best first."""
        sequences, scores = outputs["sequences"], outputs["scores"]
        texts = self.target_tokenizer.batch_decode(sequences.flatten(0, 1), skip_special_tokens=True)
        results = [{"translation_text": text} for text in texts]
        if scores is not None:
            for result, score in zip(results, scores.flatten().tolist(), strict=True):
                result["score"] = score
        several = sequences.shape[1]
        return [results[start : start + several] for start in range(0, len(results), several)]
