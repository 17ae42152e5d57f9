"""
Puts noise of seven kinds, or of nine others, into a fifth of a corpus, and prints how much of each kind `scratch corpus
clean` finds with the rules that it comes with, how many of the pairs that it drops are noise, and the same for
OpusFilter's default filters.

    python benchmarks/cleaning.py train.en train.de en de --foreign foreign.txt --write FOLDER
        --opusfilter ENVIRONMENT/bin/python

--others: the nine others. Some checks were made for these kinds, with another draw from Multi30k.
--foreign: sentences in further languages, one a line; by default, messages from the catalogues of this machine.
--write: also writes the texts to train on: clean.*, dirty.*, cleaned.* and, for each kind, what was dropped.
--opusfilter: a Python in whose environment opusfilter is installed (3.3.1 was tried).
"""

import argparse
import gettext
import json
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from modeling_scratch.apps.corpora.checks import check_pairs
from modeling_scratch.apps.corpora.rules import read_rules

Pair = tuple[str, str]
OWN_CHECK = {
    "shuffled lines": "misaligned",
    "another language": "language",
    "copies": "copy",
    "cut targets": "truncated",
    "broken encoding": "encoding",
    "near-duplicates": "near_duplicate",
    "lost placeholders": "placeholders",
}
OTHERS = {
    "swapped sides": "language",
    "targets twice in a row": "repetition",
    "half the target untranslated": "untranslated",
    "cut sources": "truncated",
    "a sentence more in the target": "truncated",
    "the target's middle is missing": "truncated",
    "random letters": "language",
    "markup in the target": "encoding",
    "the same line as target": "misaligned",
}
LINE = "Alle Rechte vorbehalten. Impressum | Datenschutz"
PLACEHOLDERS = ["{name}", "%s", "%(count)d", "{{ user }}", "${path}", "%1$s", "{0}"]
LANGUAGES = ["fr", "nl", "es", "it", "cs", "pl", "sv", "pt_BR"]  # of messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("source_language")
    parser.add_argument("target_language")
    parser.add_argument("--foreign", type=Path)
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--noise", type=float, default=0.2, help="the share of all pairs")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--half", type=int, choices=[0, 1], help="only every second pair, from this one on")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--opusfilter", type=Path)
    parser.add_argument("--show", type=int, default=0, help="examples of what is missed, and of good pairs dropped")
    options = parser.parse_args()
    languages = options.source_language, options.target_language
    clean = list(zip(*map(lines_of, (options.source, options.target)), strict=True))
    if options.half is not None:
        clean = clean[options.half :: 2]
    if options.others:
        dirty, kinds = with_other_noise(clean, options.noise, options.seed)
    else:
        foreign = lines_of(options.foreign) if options.foreign else messages(languages)
        dirty, kinds = with_noise(clean, options.noise, foreign, options.seed)
    counts = Counter(filter(None, kinds))
    print(f"{len(dirty):,} pairs, {sum(counts.values()) / len(dirty):.1%} of them noise, seed {options.seed}")
    begun = time.process_time()
    rules = read_rules().drop
    reasons: list[list[str]] = [[] for _ in dirty]
    for batch in check_pairs(lambda: dirty, languages, names=rules):
        for finding in batch.findings(rules):
            reasons[finding.line - 1].append(finding.check)
    seconds = time.process_time() - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"scratch corpus clean: {len(dirty) / seconds:,.0f} pairs a second of one core, {memory:,.0f} MB")
    others = opusfilter(options.opusfilter, dirty, languages) if options.opusfilter else None
    print_table(dirty, kinds, reasons, others)
    print_checks(kinds, reasons)
    if others:
        print_checks(kinds, others)
    if options.show:
        show(dirty, kinds, reasons, options.show)
    if options.write:
        kept = [pair for pair, found in zip(dirty, reasons, strict=True) if not found]
        by_opusfilter = [pair for pair, found in zip(dirty, others or [], strict=False) if not found]
        for name, pairs in (("clean", clean), ("dirty", dirty), ("cleaned", kept), ("opusfilter", by_opusfilter)):
            write(options.write, name, pairs, languages)


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def messages(languages: tuple[str, str]) -> list[str]:
    """Messages of five words or more from this machine's catalogues, in languages other than these."""
    found = []
    for language in LANGUAGES:
        if language.split("_")[0] in languages:
            continue
        own = set()
        for path in sorted(Path("/usr/share/locale").glob(f"{language}/LC_MESSAGES/*.mo")):
            with path.open("rb") as file:
                catalog = gettext.GNUTranslations(file)._catalog
            own |= {" ".join(text.split()) for key, text in catalog.items() if text and text != key}
        found.append(random.Random(0).sample(sorted(text for text in own if 5 <= len(text.split()) <= 30), 500))
    return [text for texts in zip(*found, strict=True) for text in texts]


def with_noise(pairs: list[Pair], share: float, foreign: list[str], seed: int) -> tuple[list[Pair], list[str | None]]:
    """
    The pairs with noise, and the kind of noise of each. A further twentieth of the pairs has a placeholder on both
    sides. Near-duplicates are put at the end, so that the first of two is the good one.
    """
    draw = random.Random(seed)
    dirty, kinds = list(pairs), list[str | None]([None] * len(pairs))
    places = draw.sample(range(len(pairs)), len(pairs))
    size = round(len(pairs) * share / len(OWN_CHECK))

    def take(count: int, can: Callable[[Pair], bool] = lambda _: True) -> list[int]:
        taken = [place for place in places if can(pairs[place])][:count]
        places[:] = [place for place in places if place not in set(taken)]
        return taken

    def change(kind: str, taken: list[int], changed: Callable[[Pair], Pair]) -> None:
        for place in taken:
            dirty[place], kinds[place] = changed(dirty[place]), kind

    change("broken encoding", take(size, lambda pair: not pair[1].isascii()), lambda pair: broken(pair, draw))
    shuffled = take(size)
    for place, other in zip(shuffled, shuffled[1:] + shuffled[:1], strict=True):
        dirty[place], kinds[place] = (pairs[place][0], pairs[other][1]), "shuffled lines"
    strays = draw.sample(foreign, min(size, len(foreign)))
    for place, text in zip(take(len(strays)), strays, strict=True):
        dirty[place], kinds[place] = (pairs[place][0], text), "another language"
    change("copies", take(size), lambda pair: (pair[0], pair[0]))
    change("cut targets", take(size, lambda pair: len(pair[1].split()) > 5), lambda pair: (pair[0], cut(pair[1], draw)))
    for place in take(len(pairs) // 20):
        dirty[place] = with_placeholder(dirty[place], draw, both=True)
    change("lost placeholders", take(size), lambda pair: with_placeholder(pair, draw, both=False))
    for place in take(size):
        dirty.append((nearly(pairs[place][0], draw), nearly(pairs[place][1], draw)))
        kinds.append("near-duplicates")
    return dirty, kinds


def with_other_noise(pairs: list[Pair], share: float, seed: int) -> tuple[list[Pair], list[str | None]]:
    """As `with_noise`, with the kinds of OTHERS, for pairs with eight words or more on each side."""
    draw = random.Random(seed)
    dirty, kinds = list(pairs), list[str | None]([None] * len(pairs))
    long = [place for place, pair in enumerate(pairs) if min(len(side.split()) for side in pair) >= 8]
    size = min(round(len(pairs) * share), len(long))
    for number, place in enumerate(draw.sample(long, size)):
        kind = list(OTHERS)[number % len(OTHERS)]
        dirty[place], kinds[place] = other_noise(kind, pairs[place], draw.choice(pairs), draw), kind
    return dirty, kinds


def other_noise(kind: str, pair: Pair, another: Pair, draw: random.Random) -> Pair:
    source, target = pair
    words, own = target.split(), source.split()
    return {
        "swapped sides": (target, source),
        "targets twice in a row": (source, f"{target} {target}"),
        "half the target untranslated": (source, " ".join(own[: len(own) // 2] + words[len(words) // 2 :])),
        "cut sources": (cut(source, draw), target),
        "a sentence more in the target": (source, f"{target} {another[1]}"),
        "the target's middle is missing": (source, " ".join(words[: len(words) // 4] + words[-len(words) // 4 :])),
        "random letters": (source, "".join(draw.choice("abcdefghijklmnopqrstuvwxyz ") for _ in target)),
        "markup in the target": (source, f"<p>{target}</p>&nbsp;"),
        "the same line as target": (source, LINE),
    }[kind]


def broken(pair: Pair, draw: random.Random) -> Pair:
    """The target after it was read in a wrong encoding, which may have lost letters."""
    way = draw.randrange(4)
    if way < 2:
        return pair[0], pair[1].encode().decode(("cp1252", "latin-1")[way], errors="replace")
    lost = "\ufffd" if way == 2 else "?"
    return pair[0], "".join(letter if letter.isascii() else lost for letter in pair[1])


def cut(text: str, draw: random.Random) -> str:
    words = text.split()
    return " ".join(words[: max(2, round(len(words) * draw.uniform(0.3, 0.7)))])


def with_placeholder(pair: Pair, draw: random.Random, both: bool) -> Pair:
    """A pair with a placeholder between words of its source, and of its target."""
    word, texts = draw.choice(PLACEHOLDERS), []
    for text, has in zip(pair, (True, both), strict=True):
        words = text.split()
        place = draw.randrange(len(words)) if words else 0
        texts.append(" ".join([*words[:place], *[word] * has, *words[place:]]))
    return texts[0], texts[1]


def nearly(text: str, draw: random.Random) -> str:
    """A text with other capitals, other punctuation or a typo."""
    way, words = draw.randrange(4), text.split()
    if way == 0:
        return text.lower()
    if way == 1:
        return text.rstrip(".!?") if text[-1:] in ".!?" else f"{text}."
    if way == 2:
        return f"{text} !"
    place = max(range(len(words)), key=lambda word: len(words[word]), default=None)
    if place is not None and len(words[place]) > 3:
        middle = draw.randrange(1, len(words[place]) - 2)
        word = words[place]
        words[place] = word[:middle] + word[middle + 1] + word[middle] + word[middle + 2 :]
    return " ".join(words)


def print_table(dirty, kinds, reasons, others) -> None:
    """How much of each kind is found, and how much of what is dropped is noise, by each of the two programs."""
    print(f"\n{'noise':32}{'pairs':>7}{'found':>8}{'by its check':>14}{'OpusFilter':>12}")
    for kind, check in (OWN_CHECK | OTHERS).items():
        if kind not in kinds:
            continue
        places = [place for place, own in enumerate(kinds) if own == kind]
        row = [sum(bool(reasons[place]) for place in places), sum(check in reasons[place] for place in places)]
        row += [sum(bool(others[place]) for place in places)] if others else []
        shares = [f"{count / max(len(places), 1):.1%}" for count in row]
        print(
            f"{kind:32}{len(places):7,}"
            + "".join(f"{share:>{width}}" for share, width in zip(shares, (8, 14, 12), strict=False))
        )
    for name, found in (("scratch corpus clean", reasons), ("OpusFilter", others)):
        if found:
            dropped = [bool(own) for own in found]
            noise = sum(drop and kind is not None for drop, kind in zip(dropped, kinds, strict=True))
            good = len(kinds) - sum(kind is not None for kind in kinds)
            print(
                f"{name}: drops {sum(dropped):,}, of which {noise / max(sum(dropped), 1):.1%} are noise; finds "
                f"{noise / max(sum(kind is not None for kind in kinds), 1):.1%} of the noise; drops "
                f"{(sum(dropped) - noise) / good:.2%} of the good pairs"
            )


def print_checks(kinds, reasons) -> None:
    """By check: how many pairs it drops, and how many of these are noise of any kind."""
    print(f"\n{'check':32}{'drops':>8}{'noise':>8}{'alone':>8}{'noise':>8}")
    for check in dict.fromkeys(name for names in reasons for name in names):
        rows = [[kind for kind, names in zip(kinds, reasons, strict=True) if check in names]]
        rows.append([kind for kind, names in zip(kinds, reasons, strict=True) if names == [check]])
        cells = [f"{len(row):8,}{sum(kind is not None for kind in row) / max(len(row), 1):8.1%}" for row in rows]
        print(f"{check:32}{''.join(cells)}")


def show(dirty, kinds, reasons, count: int) -> None:
    draw = random.Random(0)
    for kind in filter(None, dict.fromkeys(kinds)):
        missed = [pair for pair, own, found in zip(dirty, kinds, reasons, strict=True) if own == kind and not found]
        for pair in draw.sample(missed, min(count, len(missed))):
            print(f"missed, {kind}: {pair}")
    wrong = [(pair, found) for pair, own, found in zip(dirty, kinds, reasons, strict=True) if found and not own]
    for pair, found in draw.sample(wrong, min(5 * count, len(wrong))):
        print(f"good, but {found}: {pair}")


_OPUSFILTER = """
import json, sys
import py3langid.langid
from opusfilter import autogen, filters
sides = [open(path, encoding="utf-8").read().split("\\n")[:-1] for path in sys.argv[1:3]]
pairs, found = list(zip(*sides)), [[] for _ in sides[0]]
chosen = autogen.DefaultParameterFilters(langs=sys.argv[3:5], scripts=sys.argv[5:7])
chosen.set_filter_thresholds()
for entry in chosen.filters:
    (name, parameters), = entry.items()
    label = name + "." + parameters["name"] if "name" in parameters else name
    each = getattr(filters, name)(**parameters)
    for place, score in enumerate(each.score(pairs)):
        if not each.accept(score):
            found[place].append(label)
print(json.dumps(found))
"""


def opusfilter(python: Path, pairs: list[Pair], languages: tuple[str, str]) -> list[list[str]]:
    """The filters of `opusfilter-autogen --method defaults` that drop each pair."""
    begun = time.perf_counter()
    with TemporaryDirectory() as folder:
        paths = write(Path(folder), "pairs", pairs, languages)
        command = [python, "-c", _OPUSFILTER, *paths, *languages, "Latin", "Latin"]
        printed = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
    seconds = time.perf_counter() - begun
    print(f"OpusFilter's defaults: {len(pairs) / seconds:,.0f} pairs a second")
    return json.loads(printed.splitlines()[-1])


def write(folder: Path, name: str, pairs: list[Pair], languages: tuple[str, str]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{language}" for language in languages]
    for side, path in enumerate(paths):
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return paths


if __name__ == "__main__":
    sys.exit(main())
