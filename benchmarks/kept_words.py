"""
Translates sentences into which one to four kept words of 35 kinds were put between words, and the same sentences
without them: how many kept words come back once and unchanged, in how many sentences the model wrote all of them
without help, chrF without them, and how much longer it takes.

    python benchmarks/kept_words.py FOLDER SOURCES REFERENCES
"""

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

import sacrebleu

from modeling_scratch.inference.translate import Translator
from modeling_scratch.model.kept_words import KEPT
from modeling_scratch.model.translations import Translations, best_texts

KINDS = [
    *("{name}", "{ count }", "{0:,.2f}", "{}", "{{ user.name }}", "${total}", "#{item}", "%{price}", "{% tag %}"),
    *("{n, number}", "{n, plural, one {# file} other {# files}}", "%s", "%1$s", "%.2f", "%(name)s", "%@", "%1", "%L1"),
    *("%name%", "$NAME$", ":name", "@:key.word", "$t(key)", '<x id="1"/>', "[X4X]", "https://example.org/a_b?c=d#e"),
    *("www.example.org", "anna@example.org", "@anna", "#tag", ":smile:", "v1.2.3", "`a b`", "[^1]", "%<PRIu64>"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("sources", type=Path)
    parser.add_argument("references", type=Path)
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    draw = random.Random(1)
    sides = [path.read_text(encoding="utf-8").splitlines() for path in (options.sources, options.references)]
    pairs = [pair for pair in zip(*sides, strict=True) if not any(map(KEPT.spans, pair))][: options.sentences]
    plain, references = map(list, zip(*pairs, strict=True))
    texts = [with_words(text, [draw.choice(KINDS) for _ in range(draw.randint(1, 4))], draw) for text in plain]
    translator = Translator.load([options.folder])
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    found: dict[str, Translations] = {}
    for _ in range(options.rounds):
        for name, sentences in (("without", plain), ("with", texts)):
            begun = time.perf_counter()
            found[name] = translator.translate(sentences, scores=None)
            seconds[name].append(time.perf_counter() - begun)
    made = best_texts(found["with"])
    wrong = [pair for pair in zip(texts, made, strict=True) if words_of(pair[0]) != words_of(pair[1])]
    for text, output in wrong[:5]:
        print(f"not all once: {text} -> {output}", file=sys.stderr)
    whole = sum(not row[0].lost_words for row in found["with"])
    ratios = [first / second for first, second in zip(seconds["with"], seconds["without"], strict=True)]
    rest = [
        sacrebleu.corpus_chrf(list(map(without_words, rows)), [references]).score
        for rows in (made, best_texts(found["without"]))
    ]
    print(f"sentences with kept words, each back once and unchanged: {len(texts) - len(wrong)} of {len(texts)}")
    print(f"written by the model without help: {whole / len(texts):.1%}")
    print(f"chrF without them: {rest[0]:.2f}; of the sentences that have none: {rest[1]:.2f}")
    print(f"time, as a multiple of that without kept words: {statistics.median(ratios):.2f}")


def with_words(text: str, words: list[str], draw: random.Random) -> str:
    """A sentence with words put before some of its own."""
    parts = text.split()
    for word in words:
        parts.insert(draw.randrange(len(parts)), word)
    return " ".join(parts)


def words_of(text: str) -> list[str]:
    return sorted(text[start:end] for start, end in KEPT.spans(text))


def without_words(text: str) -> str:
    for start, end in reversed(KEPT.spans(text)):
        text = text[:start] + text[end:]
    return " ".join(text.split())


if __name__ == "__main__":
    main()
