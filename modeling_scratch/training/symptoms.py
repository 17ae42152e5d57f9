"""Warns of training that goes wrong, as far as evaluations show it. docs/learn/symptoms.md explains each symptom."""

import logging
import math
from collections import Counter
from collections.abc import Sequence

logger = logging.getLogger(__name__)

PAGE = "docs/learn/symptoms.md"
_MANY = 0.5  # of the outputs
_GUESSING = 0.8  # of the loss of a uniform distribution; models that learn are far below after warm-up
_GOOD_LOSS, _LOW_BLEU = 0.5, 1.0  # the same share; BLEU from 0 to 100
_LONGEST_UNIT, _REPEATS = 60, 5  # characters that are repeated at the end of an output, and how often


def find_symptom(
    loss: float,
    vocab_size: int,
    sources: Sequence[str] = (),
    outputs: Sequence[str] = (),
    references: Sequence[str] = (),
    bleu: float | None = None,
) -> tuple[str, str] | None:
    """
    What looks wrong in an evaluation after warm-up: a section of PAGE, and a sentence for the log. None: nothing.

    Args:
        loss: cross-entropy per target token, in nats.
        vocab_size: the target's.
        sources, outputs, references: as texts; no outputs: not translated.
        bleu: of the outputs, from 0 to 100; None: not computed.
    """
    guessing, count = math.log(vocab_size), len(outputs)
    rows = list(zip(sources, outputs, references, strict=True)) if outputs else []
    many = max(1, _MANY * count)
    if (copies := sum(source == text != reference for source, text, reference in rows)) > many:
        return "the-source-is-copied", f"{copies} of {count} outputs are copies of their source"
    if loss > _GUESSING * guessing:
        return "loss-stuck-at-ln-v", f"the loss is near that of guessing, ln({vocab_size:,}) = {guessing:.2f}"
    if (blank := sum(not text.strip() for text in outputs)) > many:
        return "blank-output", f"{blank} of {count} outputs are empty"
    most_frequent = Counter(outputs).most_common(1)[0][0] if outputs else ""
    alike = [(source, reference) for source, text, reference in rows if text == most_frequent]
    if alike and all(len(set(side)) > many for side in zip(*alike, strict=True)):
        return "one-output-for-all", f"{len(alike)} of {count} outputs are the same: {most_frequent[:80]!r}"
    loops = sum(_ends_in_a_loop(text) and not _ends_in_a_loop(reference) for _, text, reference in rows)
    if loops > many:
        return "one-word-repeated", f"{loops} of {count} outputs repeat a few words to the end"
    if bleu is not None and bleu < _LOW_BLEU and loss < _GOOD_LOSS * guessing:
        return "good-loss-and-bad-bleu", f"BLEU is {bleu:.2f}, although the loss is {loss:.2f}"
    return None


def _ends_in_a_loop(text: str) -> bool:
    longest = min(_LONGEST_UNIT, len(text) // _REPEATS)
    return any(text.endswith(text[-length:] * _REPEATS) for length in range(1, longest + 1))


def warn_of_symptom(found: tuple[str, str] | None, known: list[str]) -> None:
    """Log a symptom that is not among those known, and add it to them."""
    if found is not None and found[0] not in known:
        known.append(found[0])
        logger.warning(f"{found[1]}; {PAGE}#{found[0]} has the causes")
