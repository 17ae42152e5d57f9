"""Warns of training that goes wrong, as far as evaluations show it. docs/learn/symptoms.md explains each symptom."""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence

logger = logging.getLogger(__name__)

PAGE = "docs/learn/symptoms.md"
_MANY = 0.5  # of the outputs
_GUESSING = 0.8  # of the loss of a uniform distribution; models that learn are far below after warm-up
_GOOD_LOSS, _LOW_BLEU = 0.5, 1.0  # the same share; BLEU from 0 to 100
_LONGEST_UNIT, _REPEATS = 60, 5  # characters that are repeated at the end of an output, and how often


def find_symptoms(
    loss: float,
    vocab_size: int,
    sources: Sequence[str] = (),
    outputs: Sequence[str] = (),
    references: Sequence[str] = (),
    bleu: float | None = None,
) -> Iterator[tuple[str, str]]:
    """
    What looks wrong in an evaluation after warm-up: a section of PAGE, and a sentence for the log.

    Args:
        loss: cross-entropy per target token, in nats.
        vocab_size: the target's.
        sources, outputs, references: as texts; empty: not translated.
        bleu: of the outputs, from 0 to 100; None: not computed.
    """
    guessing = math.log(vocab_size)
    if loss > _GUESSING * guessing:
        yield (
            "loss-stuck-at-ln-v",
            f"the loss is near that of guessing, ln({vocab_size:,}) = {math.log(vocab_size):.2f}",
        )
        return
    if not outputs:
        return
    many = _MANY * len(outputs)
    blank = sum(not text.strip() for text in outputs)
    (most_frequent, same), *_ = Counter(outputs).most_common(1)
    inputs = {source for source, text in zip(sources, outputs, strict=True) if text == most_frequent}
    expected = {reference for reference, text in zip(references, outputs, strict=True) if text == most_frequent}
    rows = list(zip(sources, outputs, references, strict=True))
    copied = sum(source == text != reference for source, text, reference in rows)
    looping = sum(_ends_in_a_loop(text) and not _ends_in_a_loop(reference) for _, text, reference in rows)
    if blank > many:
        yield "blank-output", f"{blank} of {len(outputs)} outputs are empty"
    elif same > many and min(len(inputs), len(expected)) > many:
        yield "one-output-for-all", f"{same} of {len(outputs)} outputs are the same: {most_frequent[:80]!r}"
    elif copied > many:
        yield "the-source-is-copied", f"{copied} of {len(outputs)} outputs are copies of their source"
    elif looping > many:
        yield "one-word-repeated", f"{looping} of {len(outputs)} outputs repeat a few words to the end"
    elif bleu is not None and bleu < _LOW_BLEU and loss < _GOOD_LOSS * guessing:
        yield "good-loss-and-bad-bleu", f"BLEU is {bleu:.2f}, although the loss is {loss:.2f}"


def _ends_in_a_loop(text: str) -> bool:
    longest = min(_LONGEST_UNIT, len(text) // _REPEATS)
    return any(text.endswith(text[-length:] * _REPEATS) for length in range(1, longest + 1))


def warn_of_symptoms(found: Iterator[tuple[str, str]], known: list[str]) -> None:
    """Log each symptom that is not among those known, and add it to them."""
    for name, sentence in found:
        if name not in known:
            known.append(name)
            logger.warning(f"{sentence}; {PAGE}#{name} has the causes")
