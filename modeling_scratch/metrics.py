"""
The table of metrics, and how to score translations.

Evaluation, recipes, records, cards and curves all read `METRICS`, so a new metric needs only a new entry there.
This module imports only the standard library, so that recipes and figures can read the table without sacreBLEU.
"""

import json
import logging
import math
import os
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from importlib.metadata import version
from itertools import chain, zip_longest
from typing import Any, NamedTuple
from unicodedata import normalize

from .errors import UserError
from .files import temporary_folder
from .languages import WITHOUT_SPACES, base_language, mostly_without_spaces
from .model.text import INVISIBLE

logger = logging.getLogger(__name__)

# Bootstrap resamples for the 95 % intervals; they take 0.1 s per 1,000 sentences and 80 kB per sentence.
RESAMPLES = 1000
_SEED = 12345  # of our own bootstrap, as sacreBLEU's
MOST_RESAMPLED = 10_000  # sentences; for more, the interval would be narrow and take too much memory
_ROUNDING = 0.01  # BLEU points by which another release may score the same translations differently
# Ends of signatures:
NORMALIZED = "|normalized:NFC, nothing invisible"  # `normalized` changed a text. Scores can be compared all the same
SINGLE_SPACES = "|white space:single spaces"  # reducing white space to single spaces changed a text
SPLIT = "|lines:split"  # the sentences of a line were translated one by one
GROUPED = "|references:all of a source"  # `grouped_by_source` grouped some references

Texts = Sequence[str]
References = Sequence[Sequence[str]]  # one or more per sentence


@dataclass(frozen=True)
class Score:
    """
    Args:
        value: the score of the whole corpus.
        signature: how it was computed; scores with the same signature can be compared.
        interval: half the width of the 95 % interval; None: unknown.
    """

    value: float
    signature: str
    interval: float | None = None


class Preparation(NamedTuple):
    """How texts are prepared for scoring (None: the text is not valid), and what this adds to the signature."""

    prepare: Callable[[str], str | None]
    signature: str


@dataclass(frozen=True)
class Metric:
    """
    Args:
        title: its name in tables and figures.
        hub_id: its name in a card's metadata: that on hf.co/metrics if it is there.
        description: what it measures and how the text is prepared, in a few words, for a card.
        higher_is_better: the direction.
        range: the lowest and highest value, also on the axis of a plot; None: no upper limit.
        compute: computes the score from (sources, translations, references, number of bootstrap resamples or 0). None:
            the metric does not score translations, and `score` leaves it out.
        on_request: compute it only if the recipe names it in `evaluation.metrics`, `metric` or `also`.
        is_whole: it compares whole outputs, in the form that `evaluation.canonical` names.
        top: it scores this many outputs of each source, of those that differ and are valid, and `compute` takes lists
            of them, best first. None: it scores only the best output.
        prepare: for a language, how each translation and reference is prepared.
        options: for a language and the references, further arguments of `compute`.
        by_pair: it scores every translation with its own reference, as published scores are computed. Other metrics,
            and all metrics of pairs that are not translations, score what `grouped_by_source` returns.
    """

    title: str
    hub_id: str
    description: str
    higher_is_better: bool
    range: tuple[float, float | None]
    compute: Callable[[Texts, Sequence, References, int], Score] | None
    on_request: bool = False
    is_whole: bool = False
    top: int | None = None
    prepare: Callable[[str], Preparation] | None = None
    options: Callable[[str, References], dict[str, Any]] | None = None
    by_pair: bool = False


def _by_sacrebleu(
    name: str, sources: Texts, translations: Texts, references: References, resamples: int, **options: Any
) -> Score:
    """A corpus score with sacreBLEU's defaults or `options`. The bootstrap's seed is 12345 or SACREBLEU_SEED."""
    import sacrebleu.metrics
    from sacrebleu.significance import PairedTest

    metric = getattr(sacrebleu.metrics, name)(**options)
    streams = [list(stream) for stream in zip_longest(*references)]  # all first references, all second ones, ...
    if not resamples:
        return Score(metric.corpus_score(translations, streams).score, str(metric.get_signature()))
    # A "paired" test of a single system: corpus_score's own bootstrap fails if only some resamples score 0.
    signatures, results = PairedTest([("", translations)], {name: metric}, streams, "bs", resamples)()
    ((key, signature),) = signatures.items()
    result: Any = results[key][0]
    return Score(result.score, str(signature), float(result.ci))


def bleu_options(language: str, references: References) -> dict[str, str]:
    """
    How sacreBLEU splits a language into words: by default at spaces and punctuation; a language without spaces into
    characters; Chinese by sacreBLEU's own rules. If the language code does not tell, the script of the references does:
    Wu and Dzongkha are without spaces too, and a code may name no language.
    """
    base = base_language(language)
    if base in ("zh", "yue"):
        return {"tokenize": "zh"}
    if base in WITHOUT_SPACES:
        return {"tokenize": "char"}
    script = mostly_without_spaces(chain.from_iterable(references))
    return {} if script is None else {"tokenize": "zh" if script == "Han" else "char"}


def _ter_options(language: str, references: References) -> dict[str, bool]:
    """Chinese and Japanese characters count as words."""
    is_asian = base_language(language) == "ja" or bleu_options(language, references) == {"tokenize": "zh"}
    return {"normalized": True, "asian_support": True} if is_asian else {}


@cache
def _moses(language: str) -> Preparation:
    """Lower-case, normalize punctuation and tokenize with the Moses scripts, as fairseq's BLEU scores assume."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return Preparation(
        lambda text: tokenizer.tokenize(normalizer.normalize(text.lower()), return_str=True),
        f"|lower-cased, normalized and tokenized:sacremoses-{version('sacremoses')}.{language}",
    )


@cache
def _smiles(language: str) -> Preparation:
    """
    RDKit's canonical SMILES, the same for every order of atoms and of molecules. Spaces, which some data sets have
    between tokens, are ignored.
    """
    from rdkit import Chem, __version__, rdBase

    @lru_cache(maxsize=100_000)  # several metrics ask for the same
    def canonical(text: str) -> str | None:
        with rdBase.BlockLogs():  # otherwise it prints a message for each text that is not valid
            molecule = Chem.MolFromSmiles("".join(text.split()))
            return Chem.MolToSmiles(molecule) if molecule and molecule.GetNumAtoms() else None

    return Preparation(canonical, f"|canonical:RDKit-{__version__}")


CANONICAL: dict[str, Callable[[str], Preparation]] = {"smiles": _smiles}  # the choices of `evaluation.canonical`


def _by_sequence(
    count: Callable[[Any, Sequence[str]], tuple[float, float]],
    signature: str,
    sources: Texts,
    translations: Sequence,
    references: References,
    resamples: int,
) -> Score:
    """
    A ratio over the whole corpus, times 100, such as edits for every 100 tokens of the references.

    Args:
        count: for an output (or several) and its references, returns numerator and denominator.
        signature: how they are counted.
    """
    return _ratio([count(*pair) for pair in zip(translations, references, strict=True)], signature, resamples)


def _ratio(counted: Sequence[tuple[float, float]], signature: str, resamples: int) -> Score:
    """100 times the sum of the first numbers over the sum of the second ones; the interval is from resampling."""
    import numpy as np

    pairs = np.array(counted, dtype=float)

    def share(pairs: "np.ndarray") -> float:
        found, of = pairs.sum(axis=0)
        return 100 * float(found / of) if of else 100 * float(found > 0)  # all references are empty

    if not resamples:
        return Score(share(pairs), signature)
    generator, size = np.random.default_rng(_SEED), len(pairs)
    shares = [share(pairs[generator.integers(size, size=size)]) for _ in range(resamples)]
    low, high = np.percentile(shares, [2.5, 97.5])
    return Score(share(pairs), f"{signature}|bs:{resamples}|seed:{_SEED}", float(high - low) / 2)


def _by_share(is_counted: Callable[[Any, Sequence[str]], bool], *rest: Any) -> Score:
    """The share of outputs for which a function of output and references is true; otherwise as `_by_sequence`."""
    return _by_sequence(lambda output, references: (is_counted(output, references), 1.0), *rest)


def _edits(split: Callable[[str], Sequence], translation: str, references: Sequence[str]) -> tuple[float, float]:
    """Insertions, deletions and substitutions that turn an output into the nearest reference, and its length."""
    from rapidfuzz.distance import Levenshtein

    output = split(translation)
    return min((Levenshtein.distance(output, tokens), len(tokens)) for tokens in map(split, references))


def _token_f1(translation: str, references: Sequence[str]) -> tuple[float, float]:
    """The harmonic mean of precision and recall of the tokens at spaces, each counted as often as it occurs."""
    tokens = Counter(translation.split())

    def f1(reference: str) -> float:
        expected = Counter(reference.split())
        total = tokens.total() + expected.total()
        return 2 * (tokens & expected).total() / total if total else 1.0

    return max(map(f1, references)), 1.0


# unbabel-comet 2.2.7 does not run with Transformers 5 (nor does `evaluate`'s module, which imports it), so it has an
# environment of its own, and only its command is called.
COMET = "Unbabel/wmt22-comet-da"
_COMET_CHECKPOINT = "checkpoints/model.ckpt"
# Repositories on the Hub and what `comet-score` reads of them.
_COMET_FILES = {
    COMET: ("hparams.yaml", _COMET_CHECKPOINT),
    "xlm-roberta-large": ("config.json", "tokenizer.json", "tokenizer_config.json", "sentencepiece.bpe.model"),
}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _comet_preparation(language: str) -> Preparation:
    """`comet-score` reads a text from each line. UserError if it or a file of its model is not on this machine."""
    from huggingface_hub import try_to_load_from_cache

    if shutil.which("comet-score") is None:
        raise UserError(
            "comet: the command comet-score is not installed; it needs an environment of its own: "
            "uv tool install --python 3.11 unbabel-comet --with 'setuptools<81'"
        )
    for name, files in _COMET_FILES.items():
        if not all(isinstance(try_to_load_from_cache(name, file), str) for file in files):
            raise UserError(f"comet: {name} is not on this machine; to fetch it: hf download {name} {' '.join(files)}")
    return Preparation(_one_line, "")


def _by_comet(sources: Texts, translations: Texts, references: References, resamples: int) -> Score:
    """100 times the mean of the scores of `comet-score`. Of several references, only the first counts."""
    import torch
    from huggingface_hub import try_to_load_from_cache

    columns = {
        "sources": [_one_line(source) for source in sources],
        "translations": translations,
        "references": [first for first, *_ in references],
    }
    with temporary_folder() as folder:
        command = ["comet-score", "--quiet", "--model", str(try_to_load_from_cache(COMET, _COMET_CHECKPOINT))]
        command += ["--gpus", str(int(torch.cuda.is_available())), "--to_json", str(folder / "scores.json")]
        for name, texts in columns.items():
            path = folder / name
            path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
            command += [f"--{name}", str(path)]
        ended = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
        if ended.returncode:
            *_, last = ended.stderr.strip().split("\n")
            raise UserError(f"comet: comet-score failed: {last}")
        (rows,) = json.loads((folder / "scores.json").read_text(encoding="utf-8")).values()
    return _ratio([(row["COMET"], 1.0) for row in rows], f"model:{COMET}|references:first", resamples)


_BLEU = Metric(
    title="BLEU",
    hub_id="sacrebleu",  # the Hub's `bleu` is a different one: over tokens, from 0 to 1
    description="sacreBLEU's, of words, cased, 0 to 100",
    higher_is_better=True,
    range=(0, 100),
    compute=partial(_by_sacrebleu, "BLEU"),
    options=bleu_options,
    by_pair=True,
)

METRICS: dict[str, Metric] = {
    "bleu": _BLEU,
    "chrf": Metric(
        title="chrF",
        hub_id="chrf",
        description="sacreBLEU's, of characters, cased, 0 to 100",
        higher_is_better=True,
        range=(0, 100),
        compute=partial(_by_sacrebleu, "CHRF"),
        by_pair=True,
    ),
    "ter": Metric(
        title="TER",
        hub_id="ter",
        description="sacreBLEU's, edits for every 100 words of the reference, case ignored",
        higher_is_better=False,
        range=(0, None),
        compute=partial(_by_sacrebleu, "TER"),
        on_request=True,  # it is slow: 1,000 sentences of 80 words take minutes
        options=_ter_options,
        by_pair=True,
    ),
    "lowercased": replace(
        _BLEU,
        title="BLEU, lower-cased",
        description="sacreBLEU's, of words, case ignored, 0 to 100",
        compute=partial(_by_sacrebleu, "BLEU", lowercase=True),
        on_request=True,
    ),
    "tokenized": replace(
        _BLEU,
        title="BLEU, lower-cased and tokenized",
        description="of words lower-cased and tokenized by sacremoses, as in fairseq and multi-bleu, 0 to 100",
        compute=partial(_by_sacrebleu, "BLEU", tokenize="none", force=True),
        options=None,
        on_request=True,
        prepare=_moses,
    ),
    "bleu_of_tokens": replace(
        _BLEU,
        title="BLEU of tokens",
        description="of tokens between spaces, cased, as in CodeXGLUE, 0 to 100",
        compute=partial(_by_sacrebleu, "BLEU", tokenize="none", force=True),
        options=None,
        on_request=True,
    ),
    "exact_match": Metric(
        title="exact match",
        hub_id="exact_match",
        description="share of outputs that equal the reference, 0 to 100",
        higher_is_better=True,
        range=(0, 100),
        compute=partial(_by_share, lambda output, references: output in references, "equal to the reference"),
        on_request=True,
        is_whole=True,
    ),
    "wer": Metric(
        title="WER",
        hub_id="wer_of_words",  # the Hub's `wer` counts edits of the words of a sentence
        description="share of outputs that differ from the reference, as in pronunciation and inflection, 0 to 100",
        higher_is_better=False,
        range=(0, 100),
        compute=partial(_by_share, lambda output, references: output not in references, "different from the reference"),
        on_request=True,
        is_whole=True,
    ),
    **{
        f"top_{top}": Metric(
            title=f"top-{top} accuracy",
            hub_id=f"top_{top}_accuracy",
            description=f"share of sources whose reference is at rank {top} or better of the beam's different outputs, "
            "0 to 100",
            higher_is_better=True,
            range=(0, 100),
            compute=partial(
                _by_share,
                lambda outputs, references: not set(outputs).isdisjoint(references),
                f"equal to the reference, rank:{top} or better",
            ),
            on_request=True,
            is_whole=True,
            top=top,
        )
        for top in (1, 3, 5, 10)
    },
    "invalid_smiles": Metric(
        title="invalid SMILES",
        hub_id="invalid_smiles",
        description="share of outputs that RDKit cannot read as SMILES, 0 to 100",
        higher_is_better=False,
        range=(0, 100),
        compute=partial(_by_share, lambda output, references: output is None, "not valid"),
        on_request=True,
        prepare=_smiles,
    ),
    "token_error_rate": Metric(
        title="token error rate",
        hub_id="wer",
        description="edits for every 100 tokens of the reference; tokens are between spaces",
        higher_is_better=False,
        range=(0, None),
        compute=partial(_by_sequence, partial(_edits, str.split), "edits of tokens between spaces"),
        on_request=True,
    ),
    "cer": Metric(
        title="CER",
        hub_id="cer",
        description="edits for every 100 characters of the reference",
        higher_is_better=False,
        range=(0, None),
        compute=partial(_by_sequence, partial(_edits, str), "edits of characters"),
        on_request=True,
    ),
    "token_f1": Metric(
        title="token F1",
        hub_id="f1",
        description="mean F1 of the tokens between spaces, without their order, 0 to 100",
        higher_is_better=True,
        range=(0, 100),
        compute=partial(_by_sequence, _token_f1, "F1 of tokens between spaces"),
        on_request=True,
    ),
    "comet": Metric(
        title=f"COMET {COMET.rpartition('/')[2]}",
        hub_id="comet",
        description=f"of the model {COMET}, which has learned from people's judgments, times 100",
        higher_is_better=True,
        range=(0, 100),
        compute=_by_comet,
        on_request=True,
        prepare=_comet_preparation,
        by_pair=True,
    ),
    "aer": Metric(
        title="AER",
        hub_id="aer",
        description="alignment error rate of the word links of cross-attention, on the references, 0 to 100",
        higher_is_better=False,
        range=(0, 100),
        compute=None,
        on_request=True,
    ),
}


def asked_for(
    final: bool = True, chosen: str | None = None, also: Collection[str] = (), metrics: Collection[str] | None = None
) -> list[str]:
    """The keys of the metrics that `score` computes for these arguments."""

    def is_asked_for(key: str, metric: Metric) -> bool:
        is_usual = not metric.on_request if metrics is None else key in metrics
        return metric.compute is not None and (is_usual or key == chosen or (final and key in also))

    return [key for key, metric in METRICS.items() if is_asked_for(key, metric)]


def preparation_of(key: str, language: str, canonical: str | None) -> Preparation:
    """
    How a metric prepares texts.

    Raises:
        ModuleNotFoundError: a library that this takes is not installed.
        UserError: a program or a model that the metric takes is not on this machine.
    """
    metric = METRICS[key]
    if metric.is_whole and canonical is not None:
        return CANONICAL[canonical](language)
    return metric.prepare(language) if metric.prepare else Preparation(str, "")


def check_beams(keys: Collection[str], beams: int, advice: str) -> None:
    """Raise UserError, which ends in the advice for a number, if a metric scores more outputs than there are beams."""
    for key in keys:
        top = METRICS[key].top or 1
        if top > beams:
            raise UserError(f"{key} scores {top} outputs of each source, and the beam has {beams}: {advice}={top}")


def tells_nothing(key: str, value: float) -> bool:
    """Whether a value of `evaluation.metric` is the worst possible score, which cannot rank models."""
    if key not in METRICS:
        return False
    worst = METRICS[key].range[0 if METRICS[key].higher_is_better else 1]
    return worst is not None and value == worst


def can_tell(key: str, references: Texts, language: str) -> bool:
    """
    Whether a recipe's `evaluation.metric` can tell good translations from bad ones. It cannot if the references
    themselves get the worst score: BLEU counts matches of four words, so for shorter texts it is 0, unless a model
    rambles.
    """
    if key not in METRICS or METRICS[key].compute is None:
        return True
    found = score(references, references, references, final=False, chosen=key, language=language)
    return not tells_nothing(key, float(found[key]))


def rank(record: dict[str, Any], key: str) -> tuple[float, float]:
    """
    An evaluation's rank by `evaluation.metric`, which may be the loss, or by the record's own "chosen_by"; lower is
    better. Among the lowest possible scores, the loss decides.
    """
    key = record.get("chosen_by", key)
    loss = math.inf if record.get("loss") is None else record["loss"]  # not finite, or not in an older checkpoint
    value = loss if key == "loss" else record[key]
    is_higher_better = key in METRICS and METRICS[key].higher_is_better
    return -value if is_higher_better else value, loss if tells_nothing(key, value) else 0.0


def grouped_by_source(sources: Sequence[Any], references: Texts) -> tuple[list[int], list[list[str]]]:
    """
    Make one item of all pairs of a source that has several references, such as a word with several pronunciations.
    Copies of a pair whose source has only one reference stay items of their own.

    Returns:
        For each item, the place of its first pair, and all its references.
    """
    of_source: dict[Any, dict[str, None]] = defaultdict(dict)
    for source, given in zip(sources, references, strict=True):
        of_source[source][given] = None
    first: dict[Any, int] = {}
    places = [
        place
        for place, source in enumerate(sources)
        if first.setdefault(source, place) == place or len(of_source[source]) == 1
    ]
    return places, [list(of_source[sources[place]]) for place in places]


def normalized(*streams: Texts) -> tuple[list[list[str]], str]:
    """
    Texts in NFC without invisible characters, and what this adds to signatures: nothing if it changes nothing, so that
    scores of ordinary text keep sacreBLEU's signature.

    Canonically equivalent strings are the same text, and a tokenizer may write another one than the reference has: NFC
    itself decomposes letters of Hindi and Bangla, and reorders marks of Arabic and Hebrew. Models neither read nor
    write invisible characters.
    """
    changed = [[normalize("NFC", _visible(text)) for text in texts] for texts in streams]
    return changed, "" if changed == [list(texts) for texts in streams] else NORMALIZED


def _visible(text: str) -> str:
    """Without invisible characters, and without the white space that these kept from being stripped."""
    return text if (visible := INVISIBLE.sub("", text)) == text else visible.strip()


def score(
    sources: Texts,
    translations: Sequence[str | Sequence[str]],
    references: Sequence[str | Sequence[str]],
    final: bool = True,
    chosen: str | None = None,
    also: Collection[str] = (),
    language: str = "en",
    metrics: Collection[str] | None = None,
    canonical: str | None = None,
    single_spaces: bool = False,
) -> dict[str, float | str]:
    """
    Score a corpus of detokenized text, as `normalized` returns it.

    Args:
        translations: one per sentence, or a list of several, best first.
        references: one per sentence, or a list of several.
        final: include 95 % intervals and `also`, which take too long during training.
        chosen: the metric that chooses the best weights.
        also: on-request metrics to include in final scores.
        language: of translations and references, for metrics that tokenize.
        metrics: to include always; None: all that are not on request.
        canonical: the form, a key of `CANONICAL`, in which whole outputs are compared; one that is not valid is wrong.
        single_spaces: reduce white space to single spaces, for a model that writes no others.

    Returns:
        For each metric, such as `bleu`: the score `bleu`, its `bleu_signature`, and, if known, `bleu_interval`, half
        the width of the 95 % interval.

    Raises:
        ValueError: the numbers of texts differ, or a sentence has no reference.
    """
    outputs, references = (
        [[text] if isinstance(text, str) else list(text) for text in texts] for texts in (translations, references)
    )
    if not len(sources) == len(outputs) == len(references):
        raise ValueError(f"{len(sources)} sources, {len(outputs)} translations and {len(references)} references")
    if not outputs:
        raise ValueError("there is nothing to score")
    for name, texts in (("translation", outputs), ("reference", references)):
        if not all(texts):
            raise ValueError(f"sentence {texts.index([])} has no {name}")
    streams, suffix = normalized(*outputs, *references)
    spaced = [[" ".join(text.split()) for text in texts] for texts in streams] if single_spaces else streams
    spaces = "" if spaced == streams else SINGLE_SPACES
    streams = spaced
    outputs, references = streams[: len(outputs)], streams[len(outputs) :]
    resamples = RESAMPLES if final and 1 < len(outputs) <= MOST_RESAMPLED else 0
    found: dict[str, float | str] = {}
    unread: dict[int, list[str]] = {}  # metrics, by the number of references that they cannot read
    for key in asked_for(final, chosen, also, metrics):
        metric, prepared = METRICS[key], preparation_of(key, language, canonical)
        theirs = [[text for text in map(prepared.prepare, several) if text is not None] for several in references]
        if final and (lost := theirs.count([])):
            unread.setdefault(lost, []).append(key)
        ours: list[Any] = [prepared.prepare(first) for first, *_ in outputs]
        if metric.top is not None:
            distinct = (dict.fromkeys(map(prepared.prepare, several)) for several in outputs)
            ours = [[text for text in several if text is not None][: metric.top] for several in distinct]
        options = metric.options(language, theirs) if metric.options else {}
        assert metric.compute is not None
        result = metric.compute(sources, ours, theirs, resamples, **options)
        end = suffix if metric.by_pair else suffix + spaces  # metrics of translations ignore how much white space it is
        found |= {key: result.value, f"{key}_signature": result.signature + prepared.signature + end}
        found |= {} if result.interval is None else {f"{key}_interval": result.interval}
    for lost, keys in unread.items():
        logger.warning(
            f"{', '.join(keys)}: {lost:,} of {len(references):,} references are not valid, so their outputs are wrong"
        )
    return found


def bleu_significance(
    first: list[str],
    other: list[str],
    references: list[str],
    language: str,
    recorded: Sequence[float | None] = (None, None),
    sources: Texts | None = None,
) -> tuple[float, float, str]:
    """
    The BLEU of `other` minus that of `first`, its p-value by sacreBLEU's paired bootstrap, and the test's signature.
    The bootstrap's seed is 12345, or SACREBLEU_SEED.

    Args:
        recorded: the BLEU of both when they were scored; None: not known.
        sources: by which to group the references (see `grouped_by_source`); None: each pair is scored alone.

    Raises:
        UserError: there are too few or too many sentences, or the references are not those that were scored.
    """
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    if len(first) != len(references):
        raise UserError(f"there are {len(first):,} translations and now {len(references):,} references")
    if not 1 < len(first) <= MOST_RESAMPLED:
        raise UserError(f"resampling takes 2 to {MOST_RESAMPLED:,} sentences, and there are {len(first):,}")
    places, given = grouped_by_source(range(len(first)) if sources is None else sources, references)
    streams, suffix = normalized([first[place] for place in places], [other[place] for place in places], *given)
    first, other, *normal = streams
    options: dict[str, Any] = dict(bleu_options(language, normal))
    systems: list[Any] = [("first", first), ("other", other)]
    by_number = [list(stream) for stream in zip_longest(*normal)]  # all first references, all second ones, ...
    signatures, results = PairedTest(systems, {"BLEU": BLEU(**options)}, by_number, "bs", RESAMPLES)()
    scores: Any = results["BLEU"]
    before, after = scores
    for score, known in zip((before.score, after.score), recorded, strict=True):
        if known is not None and abs(score - known) > _ROUNDING:
            raise UserError(
                f"BLEU was {known:.2f} and is now {score:.2f}: the test set has changed since it was scored, or "
                "scoring has"
            )
    # sacreBLEU gives identical translations the lowest p-value there is.
    p_value = 1.0 if after.score == before.score else float(after.p_value)
    return float(after.score - before.score), p_value, str(signatures["BLEU"]) + suffix


def scores_in(record: dict[str, Any]) -> list[str]:
    """The metrics in a record; ["loss"] if there are none."""
    return [key for key in METRICS if key in record] or ["loss"]


def title_of(key: str) -> str:
    """The title of a metric or of the loss."""
    return METRICS[key].title if key in METRICS else "Loss"


def describe_heads(record: dict[str, Any]) -> list[str]:
    """The attention heads whose alignments a record scores; [] if it scores none."""
    heads = record.get("alignment_heads")
    return [f"alignment heads, [layer, head] from 0: {heads or 'all'}"] if "alignment_heads" in record else []


def describe_calibration(measured: dict[str, Any]) -> str:
    """Which shares of sentences a calibrated confidence calls doubtful, with its precision and recall."""
    named = {"validation": "validation sentences", "glued": "outputs for two sentences that translate one"}
    shares = [
        f"{100 * share:.0f} % of {named.get(kind, f'those that are {kind}')}"
        for kind, share in measured["doubtful"].items()
    ]
    return f"doubtful are {', '.join(shares)}; precision {measured['precision']:.2f}, recall {measured['recall']:.2f}"


def describe_confidence(record: dict[str, Any]) -> list[str]:
    """How the scores of a record grow if only the outputs with the highest confidence are kept; [] if it is unknown."""
    if (found := record.get("confidence")) is None:
        return []
    kept = ", ".join(f"{100 * share:.0f} % {score:.2f}" for share, score in found["kept"])
    title = title_of(found["metric"])
    return [f"doubtful: {100 * found['doubtful']:.1f} %; {title} of those with the highest confidence: {kept}"]


def describe_noise(record: dict[str, Any]) -> list[str]:
    """A line for each kind of noise of a record: scores, and their differences from those without it; [] if none."""
    return [
        f"{name}: "
        + ", ".join(
            f"{title_of(key)} {scores[key]:.2f} ({change:+.2f})" for key, change in scores["differences"].items()
        )
        for name, scores in record.get("noise", {}).items()
    ]


def describe_score(record: dict[str, Any], key: str) -> str:
    """A record's score, such as "38.23 ± 0.91"; without the interval if the record has none."""
    interval = record.get(f"{key}_interval")
    return f"{record[key]:.2f}" + ("" if interval is None else f" ± {interval:.2f}")
