"""Translate sentences and score the translations: BLEU and chrF by sacreBLEU, as an evaluate.Metric."""

from collections.abc import Callable
from typing import Any

import datasets
import evaluate
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from sacrebleu.metrics import BLEU, CHRF
from torch import nn
from tqdm.auto import tqdm
from transformers import GenerationConfig, PreTrainedTokenizerBase

from .data import load_pairs, texts
from .preparation import load_translator, main_first, on_main
from .recipe import Recipe
from .tokenizer import load_tokenizers
from .translation_pipeline import batches_by_length, generate_batch

_CITATION = """\
@inproceedings{post-2018-call, title = "A Call for Clarity in Reporting {BLEU} Scores", author = "Post, Matt",
booktitle = "Proceedings of WMT", year = "2018", url = "https://aclanthology.org/W18-6319"}"""


class TranslationScores(evaluate.Metric):
    """Corpus BLEU and chrF of detokenized, cased text, with the sacreBLEU signatures that make them comparable."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.__doc__,
            citation=_CITATION,
            inputs_description="predictions and references: one string each a sentence",
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            ),
        )

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, float | str]:
        bleu, chrf = BLEU(), CHRF()  # 13a tokenization, cased; chrF2
        return {
            "bleu": bleu.corpus_score(predictions, [references]).score,
            "chrf": chrf.corpus_score(predictions, [references]).score,
            "bleu_signature": str(bleu.get_signature()),
            "chrf_signature": str(chrf.get_signature()),
        }


def score(predictions: list[str], references: list[str]) -> dict[str, float | str]:
    """`bleu` and `chrf` (0 to 100) of a corpus, and their signatures."""
    # keep_in_memory: processes that score at once must not share a cache file.
    return TranslationScores(keep_in_memory=True).compute(predictions=predictions, references=references)


def generation_settings(num_beams: int, length_penalty: float, max_new_tokens: int, tokens: dict) -> GenerationConfig:
    """
    How a translator decodes. `length_penalty` divides a hypothesis's log-probability by length^penalty; the paper's
    0.6 is of ((5 + length) / 6)^0.6 (Wu et al. 2016), nearly the same for sentences.
    """
    beam = {"num_beams": num_beams, "length_penalty": length_penalty, "early_stopping": False} if num_beams > 1 else {}
    return GenerationConfig(max_new_tokens=max_new_tokens, do_sample=False, **beam, **tokens)


@torch.inference_mode()
def translate(
    model: nn.Module,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    sentences: list[str],
    batch_size: int = 64,
    accelerator: Accelerator | None = None,
    progress: Callable | None = tqdm,
    **generation,
) -> list[str] | None:
    """
    Translate sentences, in batches of like length. With several processes each batch is translated by one of them, and
    each sentence is in one batch: the batches, so the translations, do not depend on how many there are.

    Args:
        model: not wrapped (see Accelerator.unwrap_model).
        batch_size: sentences a batch.
        accelerator: splits the batches among its processes; None: all here.
        progress: wraps the batches of this process; None: silent.
        generation: for `model.generate`.

    Returns:
        The translations in the order of the sentences.
    """
    rank, processes = (accelerator.process_index, accelerator.num_processes) if accelerator else (0, 1)
    ids = source_tokenizer(sentences, add_special_tokens=True).input_ids if sentences else []
    batches = batches_by_length([len(row) for row in ids], batch_size)[rank::processes]
    translated: list[tuple[int, str]] = []
    for batch in progress(batches, desc="translating", leave=False, disable=None) if progress else batches:
        sequences, _ = generate_batch(model, [ids[index] for index in batch], **generation)
        texts = target_tokenizer.batch_decode(sequences[:, 0], skip_special_tokens=True)
        translated += zip(batch, texts, strict=True)
    if processes > 1:
        translated = gather_object(translated)
    return [text for _, text in sorted(translated)]


def score_model(recipe: Recipe, name: str, split: str, accelerator: Accelerator) -> dict[str, Any]:
    """
    Score an existing model folder or Hub name on a split of the recipe's data, without training and without writing.

    Returns:
        bleu, chrf, their signatures, the number of sentences, and the translations.
    """
    only = None if split == "validation" else split  # a validation split may have to be held out of training
    pairs = main_first(accelerator, lambda: load_pairs(recipe.data, recipe.seed, only))[split]
    tokenizers = load_tokenizers(name)
    model = load_translator(name).to(accelerator.device)
    sources, references = texts(pairs)
    with accelerator.autocast():
        translations = translate(
            model, *tokenizers, sources, batch_size=recipe.evaluation.batch_size, accelerator=accelerator
        )
    scores = on_main(accelerator, lambda: score(translations, references))
    return {"split": split, "sentences": len(sources), "translations": translations, **scores}
