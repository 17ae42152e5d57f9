"""The embedded corpus: English sentences and their German translations, made by a small grammar, nothing downloaded.

Translating it takes more than exchanging words: articles and adjectives agree in gender, number and case, the finite
verb stands second in a main clause and last in a subordinate one, separable verbs split, participles and infinitives
go to the end, and each English sentence has exactly one German one.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

# Word lists: one entry a line, read by the functions below.
# English singular, plural | German singular, plural | gender (m, f, n)
PEOPLE = """man men Mann Männer m; woman women Frau Frauen f; child children Kind Kinder n; dog dogs Hund Hunde m;
cat cats Katze Katzen f; horse horses Pferd Pferde n; friend friends Freund Freunde m;
queen queens Königin Königinnen f; girl girls Mädchen Mädchen n; teacher teachers Lehrer Lehrer m;
mouse mice Maus Mäuse f; bird birds Vogel Vögel m; daughter daughters Tochter Töchter f;
brother brothers Bruder Brüder m; sister sisters Schwester Schwestern f"""
THINGS = """book books Buch Bücher n; letter letters Brief Briefe m; lamp lamps Lampe Lampen f;
apple apples Apfel Äpfel m; table tables Tisch Tische m; flower flowers Blume Blumen f;
key keys Schlüssel Schlüssel m; picture pictures Bild Bilder n; bottle bottles Flasche Flaschen f;
ball balls Ball Bälle m; car cars Auto Autos n; coat coats Mantel Mäntel m; shirt shirts Hemd Hemden n;
bag bags Tasche Taschen f; ship ships Schiff Schiffe n"""
PLACES = """garden gardens Garten Gärten m; city cities Stadt Städte f; forest forests Wald Wälder m;
kitchen kitchens Küche Küchen f; house houses Haus Häuser n; village villages Dorf Dörfer n;
school schools Schule Schulen f; park parks Park Parks m; church churches Kirche Kirchen f;
hotel hotels Hotel Hotels n"""
ADJECTIVES = """big groß; small klein; old alt; beautiful schön; young jung; clever klug; strange seltsam;
quiet still; famous berühmt; strong stark"""
THING_ADJECTIVES = """big groß; small klein; old alt; beautiful schön; new neu; red rot; green grün; black schwarz;
white weiß; heavy schwer; strange seltsam; empty leer; cheap billig"""
# English base, third person, participle | German separable prefix, third person, plural (and infinitive), participle,
# auxiliary of the perfect, objects (a: accusative, t: accusative things only, d: dative, b: dative and accusative)
VERBS = """see sees seen - sieht sehen gesehen haben a; find finds found - findet finden gefunden haben a;
love loves loved - liebt lieben geliebt haben a; buy buys bought - kauft kaufen gekauft haben t;
paint paints painted - malt malen gemalt haben a; carry carries carried - trägt tragen getragen haben t;
need needs needed - braucht brauchen gebraucht haben t; hear hears heard - hört hören gehört haben a;
forget forgets forgotten - vergisst vergessen vergessen haben a;
pick_up picks_up picked_up ab holt holen geholt haben a; watch watches watched an sieht sehen gesehen haben a;
throw_away throws_away thrown_away weg wirft werfen geworfen haben t;
bring_along brings_along brought_along mit bringt bringen gebracht haben a;
choose chooses chosen aus sucht suchen gesucht haben t; put_down puts_down put_down hin legt legen gelegt haben t;
help helps helped - hilft helfen geholfen haben d; thank thanks thanked - dankt danken gedankt haben d;
follow follows followed - folgt folgen gefolgt sein d; trust trusts trusted - traut trauen getraut haben d;
listen_to listens_to listened_to zu hört hören gehört haben d;
sleep sleeps slept - schläft schlafen geschlafen haben -; laugh laughs laughed - lacht lachen gelacht haben -;
work works worked - arbeitet arbeiten gearbeitet haben -; run runs run - läuft laufen gelaufen sein -;
sing sings sung - singt singen gesungen haben -; dance dances danced - tanzt tanzen getanzt haben -;
get_up gets_up got_up auf steht stehen gestanden sein -; arrive arrives arrived an kommt kommen gekommen sein -;
give gives given - gibt geben gegeben haben b; show shows shown - zeigt zeigen gezeigt haben b;
send sends sent - schickt schicken geschickt haben b; bring brings brought - bringt bringen gebracht haben b;
sell sells sold - verkauft verkaufen verkauft haben b; lend lends lent - leiht leihen geliehen haben b"""
MODALS = "can kann können; must muss müssen; may darf dürfen; should soll sollen"
# English, nominative, accusative, dative; "s" or "p" for the verb's number; first-person "ich" has its own verb form,
# so only persons whose verb forms the lists above hold take part.
PRONOUNS = "he him er ihn ihm s; she her sie sie ihr s; we us wir uns uns p; they them sie sie ihnen p"
ADVERBS = (
    "today heute; tomorrow morgen; here hier; often oft; now jetzt; sometimes manchmal; soon bald; every_day täglich"
)
FRONTED = "today heute; tomorrow morgen; here hier; often oft; now jetzt; sometimes manchmal"
# The stem that takes the endings below; "-": no article in German, a number.
SINGULAR_ARTICLES = "the d; the d; a ein; a ein; this dies; my mein; no kein"
PLURAL_ARTICLES = "the d; the d; these dies; my mein; our unser; no kein; two -"
PREPOSITIONS = "in in d; behind hinter d; near neben d; with mit d; without ohne a; for für a"
CONJUNCTIONS = "because weil; although obwohl; if wenn; while während; before bevor"
THAT_VERBS = "says sagt say sagen; knows weiß know wissen; believes glaubt believe glauben; hopes hofft hope hoffen"

# Endings by case (n, a, d) and gender or plural (m, f, n, p); section "Deklination" of any German grammar.
DEFINITE = {"n": dict(m="er", f="ie", n="as", p="ie"), "a": dict(m="en", f="ie", n="as", p="ie")}
DEFINITE["d"] = dict(m="em", f="er", n="em", p="en")  # d + ending: der, die, das, den, dem
STRONG = {"n": dict(m="er", f="e", n="es", p="e"), "a": dict(m="en", f="e", n="es", p="e")}
STRONG["d"] = dict(m="em", f="er", n="em", p="en")  # dies + ending, and adjectives without an article
WEAK = {"n": dict(m="e", f="e", n="e", p="en"), "a": dict(m="en", f="e", n="e", p="en")}
WEAK["d"] = dict(m="en", f="en", n="en", p="en")  # adjectives after der and dies
# ein, mein, kein take no ending here, and the adjective after them takes the strong one instead.
BARE_EIN = {("n", "m"), ("n", "n"), ("a", "n")}


class Noun(NamedTuple):
    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: str


class Verb(NamedTuple):
    english: str
    english_third: str
    english_participle: str
    prefix: str
    third: str
    plural: str
    participle: str
    auxiliary: str
    takes: str


def _table(text: str) -> list[list[str]]:
    return [entry.replace("\n", " ").split() for entry in text.split(";")]


NOUNS = {
    "people": [Noun(*row) for row in _table(PEOPLE)],
    "things": [Noun(*row) for row in _table(THINGS)],
    "places": [Noun(*row) for row in _table(PLACES)],
}
ALL_VERBS = [
    Verb(*(word.replace("_", " ") for word in row[:3]), "" if row[3] == "-" else row[3], *row[4:])
    for row in _table(VERBS)
]


@dataclass
class Phrase:
    """A noun phrase: English, its German by case, the number its verb takes, and the gender for a relative pronoun."""

    english: dict[str, str]  # "n": as a subject, otherwise as an object
    german: dict[str, str]
    plural: bool
    gender: str = "p"


class Grammar:
    """Draws sentence pairs from a seeded stream of choices."""

    def __init__(self, seed: int | str):
        self.random = random.Random(seed)

    def pair(self) -> tuple[str, str]:
        """One English sentence and its German translation."""
        kind = self.random.random()
        if kind < 0.5:
            english, german = self.main_clause()
        elif kind < 0.7:
            english, german = self.with_subordinate_clause()
        elif kind < 0.82:
            english, german = self.that_clause()
        else:
            english, german = self.main_clause(relative=True)
        return f"{english[0].upper()}{english[1:]}.", f"{german[0].upper()}{german[1:]}."

    def noun_phrase(self, kind: str, adjectives: float = 0.4, pronouns: float = 0.0) -> Phrase:
        choice = self.random
        if choice.random() < pronouns:
            subject, other, *forms, number = choice.choice(_table(PRONOUNS))
            return Phrase({"n": subject, "o": other}, dict(zip("nad", forms, strict=True)), number == "p")
        noun = choice.choice(NOUNS[kind])
        known = ADJECTIVES if kind == "people" else THING_ADJECTIVES
        adjective = choice.choice(_table(known)) if choice.random() < adjectives else None
        plural = choice.random() < 0.3
        english_article, article = choice.choice(_table(PLURAL_ARTICLES if plural else SINGULAR_ARTICLES))
        form = "p" if plural else noun.gender
        german = {}
        for case in "nad":
            if article == "d":
                determiner, ending = "d" + DEFINITE[case][form], WEAK[case][form]
            elif article == "dies":
                determiner, ending = "dies" + STRONG[case][form], WEAK[case][form]
            elif article == "-":
                determiner, ending = "zwei", STRONG[case][form]
            elif (case, form) in BARE_EIN:
                determiner, ending = article, STRONG[case][form]
            else:
                determiner, ending = article + STRONG[case][form], WEAK[case][form]
            word = noun.german_plural if plural else noun.german
            if plural and case == "d" and word[-1] not in "ns":
                word += "n"
            german[case] = " ".join([determiner, *([adjective[1] + ending] if adjective else []), word])
        words = [*([adjective[0]] if adjective else []), noun.english_plural if plural else noun.english]
        if english_article == "a" and words[0][0] in "aeiou":
            english_article = "an"
        english = " ".join([english_article, *words])
        return Phrase({"n": english, "o": english}, german, plural, form)

    def prepositional_phrase(self) -> tuple[str, str]:
        english, german, case = self.random.choice(_table(PREPOSITIONS))
        phrase = self.noun_phrase("people" if english in ("with", "without", "for") else "places", 0.25)
        text = f"{german} {phrase.german[case]}"
        return f"{english} {phrase.english['o']}", "im " + text[len("in dem ") :] if text.startswith(
            "in dem "
        ) else text

    def predicate(self, subject_plural: bool) -> tuple[str, str, list[str], list[str]]:
        """
        What is said of a subject: English; then German as the finite verb of a main clause, what stands between it and
        the clause's end, and the end: (main-clause end, subordinate-clause end).
        """
        choice = self.random
        verb = choice.choice(ALL_VERBS)
        objects: list[tuple[str, str]] = []
        if verb.takes in "at":
            kind = choice.choice(["things", "people"]) if verb.takes == "a" else "things"
            phrase = self.noun_phrase(kind, pronouns=0.15 if kind == "people" else 0.0)
            objects = [(phrase.english["o"], phrase.german["a"])]
        elif verb.takes == "d":
            phrase = self.noun_phrase("people", pronouns=0.15)
            objects = [(phrase.english["o"], phrase.german["d"])]
        elif verb.takes == "b":
            person, thing = self.noun_phrase("people", 0.25, pronouns=0.15), self.noun_phrase("things", 0.3)
            objects = [(person.english["o"], person.german["d"]), (thing.english["o"], thing.german["a"])]
        adverb = choice.choice(_table(ADVERBS)) if choice.random() < 0.3 else None
        place = self.prepositional_phrase() if choice.random() < 0.3 else None

        tense = choice.random()
        infinitive, participle = verb.prefix + verb.plural, verb.prefix + verb.participle
        if tense < 0.55:
            english_verb = verb.english if subject_plural else verb.english_third
            finite, end = verb.plural if subject_plural else verb.third, verb.prefix
            last = verb.prefix + finite
        elif tense < 0.8:
            modal = choice.choice(_table(MODALS))
            english_verb = f"{modal[0]} {verb.english}"
            finite, end = modal[2] if subject_plural else modal[1], infinitive
            last = f"{infinitive} {finite}"
        else:
            english_verb = f"{'have' if subject_plural else 'has'} {verb.english_participle}"
            forms = {"haben": ("hat", "haben"), "sein": ("ist", "sind")}[verb.auxiliary]
            finite, end = forms[subject_plural], participle
            last = f"{participle} {finite}"

        middle = [german for _, german in objects] + ([adverb[1]] if adverb else []) + ([place[1]] if place else [])
        english = [english_verb, *(text for text, _ in objects), *([place[0]] if place else [])]
        # English adverbs of frequency stand before the verb in other sentences; at the end each has one place.
        english += [adverb[0].replace("_", " ")] if adverb else []
        return " ".join(english), finite, middle, [end, last]

    def main_clause(self, relative: bool = False, fronting: bool = True) -> tuple[str, str]:
        subject = self.noun_phrase("people", pronouns=0.0 if relative else 0.2)
        english_subject, german_subject = subject.english["n"], subject.german["n"]
        if relative:
            english_relative, german_relative = self.relative_clause(subject)
            english_subject, german_subject = (
                f"{english_subject} {english_relative}",
                f"{german_subject}, {german_relative},",
            )
        english, finite, middle, (end, _) = self.predicate(subject.plural)
        if fronting and not relative and self.random.random() < 0.25:
            front = self.random.choice(_table(FRONTED))
            return f"{front[0]} {english_subject} {english}", _join(front[1], finite, german_subject, *middle, end)
        return f"{english_subject} {english}", _join(german_subject, finite, *middle, end)

    def subordinate_clause(self) -> tuple[str, str]:
        """Without its conjunction; the German verb stands last."""
        subject = self.noun_phrase("people", 0.25, pronouns=0.3)
        english, _, middle, (_, last) = self.predicate(subject.plural)
        return f"{subject.english['n']} {english}", _join(subject.german["n"], *middle, last)

    def relative_clause(self, head: Phrase) -> tuple[str, str]:
        """`that ...` with the head as subject, or as accusative object."""
        pronoun = {case: "d" + DEFINITE[case][head.gender] for case in "na"}
        if self.random.random() < 0.6:
            english, _, middle, (_, last) = self.predicate(head.plural)
            return f"that {english}", _join(pronoun["n"], *middle, last)
        verb = self.random.choice([verb for verb in ALL_VERBS if verb.takes == "a"])
        subject = self.noun_phrase("people", 0.2, pronouns=0.4)
        english_verb = verb.english if subject.plural else verb.english_third
        last = verb.prefix + (verb.plural if subject.plural else verb.third)
        return f"that {subject.english['n']} {english_verb}", _join(pronoun["a"], subject.german["n"], last)

    def with_subordinate_clause(self) -> tuple[str, str]:
        conjunction = self.random.choice(_table(CONJUNCTIONS))
        english, german = self.subordinate_clause()
        if self.random.random() < 0.4:  # the clause takes the first place, so the finite verb comes next
            subject = self.noun_phrase("people", 0.25, pronouns=0.2)
            english_predicate, finite, middle, (end, _) = self.predicate(subject.plural)
            return (
                f"{conjunction[0]} {english}, {subject.english['n']} {english_predicate}",
                f"{conjunction[1]} {german}, " + _join(finite, subject.german["n"], *middle, end),
            )
        english_main, german_main = self.main_clause(fronting=False)
        return f"{english_main} {conjunction[0]} {english}", f"{german_main}, {conjunction[1]} {german}"

    def that_clause(self) -> tuple[str, str]:
        third, german_third, base, german_plural = self.random.choice(_table(THAT_VERBS))
        subject = self.noun_phrase("people", 0.25, pronouns=0.3)
        english, german = self.subordinate_clause()
        verb = (base, german_plural) if subject.plural else (third, german_third)
        return f"{subject.english['n']} {verb[0]} that {english}", f"{subject.german['n']} {verb[1]}, dass {german}"


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


HELD_OUT = (500, 500)  # pairs for validation and for testing


def make_corpus(
    train_size: int, validation_size: int, test_size: int, seed: int = 0
) -> dict[str, list[dict[str, str]]]:
    """
    Draw three splits of English-German pairs that share no sentence, in either language.

    Args:
        train_size, validation_size, test_size: pairs in each split.
        seed: equal seeds give equal corpora.

    Returns:
        {"train": ..., "validation": ..., "test": ...}, each a list of {"en": ..., "de": ...}.
    """
    grammar = Grammar(seed)
    pairs: list[dict[str, str]] = []
    seen_english: set[str] = set()
    seen_german: set[str] = set()
    while len(pairs) < train_size + validation_size + test_size:
        english, german = grammar.pair()
        if english in seen_english or german in seen_german:
            continue
        seen_english.add(english)
        seen_german.add(german)
        pairs.append({"en": english, "de": german})
    train, validation = train_size, train_size + validation_size
    return {"train": pairs[:train], "validation": pairs[train:validation], "test": pairs[validation:]}


@cache
def _held_out(seed: int) -> frozenset[str]:
    """The sentences of a stream's validation and test splits."""
    splits = make_corpus(0, *HELD_OUT, seed).values()
    return frozenset(text for pairs in splits for pair in pairs for text in pair.values())


def stream_corpus(parts: list[int], size: int, seed: int) -> Iterator[dict[str, str]]:
    """
    Draw training pairs without end of memory: `size` pairs for each of `parts`, the same ones for equal seeds. None is
    of the validation or test split of `make_corpus(0, *HELD_OUT, seed)`; a pair may come twice.
    """
    held_out = _held_out(seed)
    for part in parts:
        grammar, made = Grammar(f"{seed}, part {part}"), 0
        while made < size:
            english, german = grammar.pair()
            if english not in held_out and german not in held_out:
                made += 1
                yield {"en": english, "de": german}


def write_corpus(folder: Path, train_size: int = 24000, seed: int = 0) -> None:
    """Write the splits as pairs of text files, one sentence a line: train.en, train.de, validation.en, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in make_corpus(train_size, *HELD_OUT, seed).items():
        for language in ("en", "de"):
            text = "".join(f"{pair[language]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
