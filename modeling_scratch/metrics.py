"""
The scores of translations. `METRICS` is the one table: evaluation, recipes, records, cards and curves follow it, so a
new metric is a new entry here and nothing else.

Only the standard library is imported here, since recipes and figures read the table where sacreBLEU is not installed.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

logger = logging.getLogger(__name__)

# For the 95 % intervals: a tenth of a second for 1,000 sentences, and 80 kB for each sentence.
RESAMPLES = 1000
_MOST_RESAMPLED = 10_000  # sentences; an interval of more is narrow, and its memory is not

_MOST_SECONDS = 300  # what a metric may take when nobody asked for it

Texts = Sequence[str]
References = Sequence[Sequence[str]]  # of each sentence, one or several


@dataclass(frozen=True)
class Score:
    """
    Args:
        value: of the whole corpus.
        signature: how it was computed; scores of the same signature can be compared.
        interval: half the width of the 95 % interval; None: not known.
    """

    value: float
    signature: str
    interval: float | None = None


@dataclass(frozen=True)
class Metric:
    """
    Args:
        title: what people call it.
        hub_id: its name on hf.co/metrics, for a card's metadata.
        description: what it measures and how the text is prepared, for a card; a few words.
        higher_is_better: the direction.
        range: lowest and highest value of its axis, which all scores share; None: as high as need be.
        compute: the score of (sources, translations, references, number of bootstrap resamples or 0).
        seconds: for a slow metric, about how long (translations, references) can take. It is left out while training,
            and of final scores too if that is long, unless the recipe chooses the best weights by it.
    """

    title: str
    hub_id: str
    description: str
    higher_is_better: bool
    range: tuple[float, float | None]
    compute: Callable[[Texts, Texts, References, int], Score]
    seconds: Callable[[Texts, References], float] | None = None


def _by_sacrebleu(name: str, sources: Texts, translations: Texts, references: References, resamples: int) -> Score:
    """A corpus score by sacreBLEU's defaults. Its bootstrap is seeded with 12345, or SACREBLEU_SEED."""
    import sacrebleu.metrics
    from sacrebleu.significance import PairedTest

    metric = getattr(sacrebleu.metrics, name)()
    streams = [list(stream) for stream in zip_longest(*references)]  # the first references, the second ones, ...
    if not resamples:
        return Score(metric.corpus_score(translations, streams).score, str(metric.get_signature()))
    # Of one system alone, since corpus_score's bootstrap fails where some resamples score 0 and others do not.
    signatures, results = PairedTest([("", translations)], {name: metric}, streams, "bs", resamples)()
    ((key, signature),) = signatures.items()
    (result,) = results[key]
    return Score(result.score, str(signature), float(result.ci))


def _ter_seconds(translations: Texts, references: References) -> float:
    """
    For translations that are mostly wrong; good ones take a fifth. 1,000 sentences of 12 words took 0.3 s, of 35 words
    7 to 14 s, of 80 words minutes.
    """
    pairs = ((text, each) for text, several in zip(translations, references, strict=True) for each in several)
    return sum(1e-6 * (len(text.split()) * len(each.split())) ** 1.5 for text, each in pairs)


METRICS: dict[str, Metric] = {
    "bleu": Metric(
        title="BLEU",
        hub_id="sacrebleu",  # the Hub's `bleu` is another one: of tokens, from 0 to 1
        description="sacreBLEU's, of words, cased, 0 to 100",
        higher_is_better=True,
        range=(0, 100),
        compute=partial(_by_sacrebleu, "BLEU"),
    ),
    "chrf": Metric(
        title="chrF",
        hub_id="chrf",
        description="sacreBLEU's, of characters, cased, 0 to 100",
        higher_is_better=True,
        range=(0, 100),
        compute=partial(_by_sacrebleu, "CHRF"),
    ),
    "ter": Metric(
        title="TER",
        hub_id="ter",
        description="sacreBLEU's, edits for every 100 words of the reference, case ignored",
        higher_is_better=False,
        range=(0, None),
        compute=partial(_by_sacrebleu, "TER"),
        seconds=_ter_seconds,
    ),
}


def higher_is_better(key: str) -> bool:
    """The direction of a recipe's `evaluation.metric`, which may be the loss."""
    return key in METRICS and METRICS[key].higher_is_better


def score(
    sources: Texts,
    translations: Texts,
    references: Sequence[str | Sequence[str]],
    final: bool = True,
    chosen: str | None = None,
) -> dict[str, float | str]:
    """
    Score a corpus of detokenized text.

    Args:
        references: of each sentence one, or a list of several.
        final: with slow metrics and 95 % intervals too, which are not worth their time while a model trains.
        chosen: the metric that chooses the best weights; it is computed however slow it is.

    Returns:
        By metric, as `bleu`: its score; `bleu_signature`; and `bleu_interval`, half the width of the interval, if there
        is one.

    Raises:
        ValueError: the texts are not as many as each other, or a sentence has no reference.
    """
    references = [[each] if isinstance(each, str) else list(each) for each in references]
    if not len(sources) == len(translations) == len(references):
        raise ValueError(f"{len(sources)} sources, {len(translations)} translations and {len(references)} references")
    if not all(references):
        raise ValueError(f"sentence {references.index([])} has no reference")
    resamples = RESAMPLES if final and 1 < len(translations) <= _MOST_RESAMPLED else 0
    found: dict[str, float | str] = {}
    for key, metric in METRICS.items():
        if key != chosen and metric.seconds is not None:
            if not final:
                continue
            if (seconds := metric.seconds(translations, references)) > _MOST_SECONDS:
                logger.warning(f"{metric.title} is left out: of sentences so long it may take {seconds / 60:.0f} min")
                continue
        result = metric.compute(sources, translations, references, resamples)
        found |= {key: result.value, f"{key}_signature": result.signature}
        found |= {} if result.interval is None else {f"{key}_interval": result.interval}
    return found


def describe_score(record: dict[str, Any], key: str) -> str:
    """A score of a record, as "38.23 ± 0.91"; without the interval if the record has none."""
    interval = record.get(f"{key}_interval")
    return f"{record[key]:.2f}" + ("" if interval is None else f" ± {interval:.2f}")
