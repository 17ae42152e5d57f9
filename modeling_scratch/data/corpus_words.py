"""The words of the embedded corpus, and the German endings that its grammar adds to them."""

from functools import cache
from typing import NamedTuple

# Word lists: semicolons separate the entries.
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
# English subject and object; German nominative, accusative, dative; "s" or "p" for the verb's number. "I" and "you" are
# left out: the lists above lack their verb forms.
PRONOUNS = "he him er ihn ihm s; she her sie sie ihr s; we us wir uns uns p; they them sie sie ihnen p"
ADVERBS = (
    "today heute; tomorrow morgen; here hier; often oft; now jetzt; sometimes manchmal; soon bald; every_day täglich"
)
FRONTED = "today heute; tomorrow morgen; here hier; often oft; now jetzt; sometimes manchmal"
# English, and the German stem that takes the endings below; "-": a number, without an article.
SINGULAR_ARTICLES = "the d; the d; a ein; a ein; this dies; my mein; no kein"
PLURAL_ARTICLES = "the d; the d; these dies; my mein; our unser; no kein; two -"
PREPOSITIONS = "in in d; behind hinter d; near neben d; with mit d; without ohne a; for für a"
CONJUNCTIONS = "because weil; although obwohl; if wenn; while während; before bevor"
THAT_VERBS = "says sagt say sagen; knows weiß know wissen; believes glaubt believe glauben; hopes hofft hope hoffen"

# Endings by case (n, a, d) and gender or plural (m, f, n, p), from the section "Deklination" of any German grammar.
DEFINITE = {"n": dict(m="er", f="ie", n="as", p="ie"), "a": dict(m="en", f="ie", n="as", p="ie")}
DEFINITE["d"] = dict(m="em", f="er", n="em", p="en")  # d + ending: der, die, das, den, dem
STRONG = {"n": dict(m="er", f="e", n="es", p="e"), "a": dict(m="en", f="e", n="es", p="e")}
STRONG["d"] = dict(m="em", f="er", n="em", p="en")  # dies + ending, and adjectives without an article
WEAK = {"n": dict(m="e", f="e", n="e", p="en"), "a": dict(m="en", f="e", n="e", p="en")}
WEAK["d"] = dict(m="en", f="en", n="en", p="en")  # adjectives after der and dies
# ein, mein and kein take no ending here, and the adjective after them takes the strong one.
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


@cache
def table(text: str) -> list[list[str]]:
    """The entries of a word list, each split into words."""
    return [entry.replace("\n", " ").split() for entry in text.split(";")]


NOUNS = {
    "people": [Noun(*row) for row in table(PEOPLE)],
    "things": [Noun(*row) for row in table(THINGS)],
    "places": [Noun(*row) for row in table(PLACES)],
}
ALL_VERBS = [
    Verb(*(word.replace("_", " ") for word in row[:3]), "" if row[3] == "-" else row[3], *row[4:])
    for row in table(VERBS)
]
