"""The plural forms of languages, as gettext declares them: nplurals=2; plural=(n != 1);"""

import gettext
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from ...languages import base_language

# What msginit writes: gettext's own table (gettext-tools/src/plural-table.c of gettext 1.0). CLDR, from which Babel has
# the plural forms of all other languages, sometimes has more forms, such as one for millions in Spanish.
_SLAVIC = "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
_PLURALS = {
    "nplurals=1; plural=0;": "ja ko vi",
    "nplurals=2; plural=(n != 1);": "bg ca da de el en eo es et fi fo he hu it nb nl nn no pt sv tr",
    "nplurals=2; plural=(n > 1);": "fr pt_BR",
    f"nplurals=3; plural=({_SLAVIC});": "be hr ru sr uk",
    "nplurals=3; plural=(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2;": "cs sk",
    f"nplurals=3; plural=({_SLAVIC.replace('n%10==1 && n%100!=11', 'n==1')});": "pl",
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2);": "lt",
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);": "lv",
    "nplurals=3; plural=n==1 ? 0 : (n==0 || (n%100 > 0 && n%100 < 20)) ? 1 : 2;": "ro",
    "nplurals=3; plural=n==1 ? 0 : n==2 ? 1 : 2;": "ga",
    "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);": "sl",
}
_NUMBERS = range(1001)  # enough to know a plural form: all rules repeat after at most 100, except one for millions
# A placeholder of a number by its type: %d, %<PRIu64>, Qt's %n, Lisp's ~D, Java's {0,number}; not %td, a day in Java,
# or %vd, a version in Perl. And words in names of counts, as in {n}, %(file_count)s, ${numFiles}.
_NUMBER_TYPE = re.compile(r"[%~][^{}]*(?:(?<![tTv])[diuDU]|<PRI[diu][A-Z0-9]+>)|%L?n|\{\s*\w+\s*,\s*number\b.*")
_COUNTS = {"n", "num", "count", "counter", "quantity"}
_IS_VALUE = re.compile(r"%(?!%).+|[#$%@]?\{.*\}|\$\w+\$?|:[a-z]\w*", re.DOTALL)


def plural_forms_of(target: str | None) -> str | None:
    """The plural forms of a language, as the header declares them; None: unknown."""
    from babel.messages.plurals import PLURALS  # from an extra of this package

    known = {tag: f"nplurals={count}; plural={rule};" for tag, (count, rule) in PLURALS.items()}
    known |= {language: forms for forms, languages in _PLURALS.items() for language in languages.split()}
    tag = (target or "").replace("-", "_")
    return known.get(tag) or known.get(base_language(tag))


@lru_cache
def form_of_most(language: str) -> str:
    """The plural form of CLDR that most whole numbers have: "many" in Polish, "other" in English."""
    from babel import Locale, UnknownLocaleError  # from an extra of this package

    try:
        form_of = Locale.parse(language, sep="-").plural_form
    except (ValueError, UnknownLocaleError):
        return "other"
    return Counter(map(form_of, _NUMBERS)).most_common(1)[0][0]


def count_of(declared: str) -> int | None:
    """How many forms a declaration says there are; None: it does not say."""
    count = re.search(r"nplurals\s*=\s*([0-9]{1,2})", declared)
    return int(count[1]) if count else None


@lru_cache
def numbers_of(declared: str) -> dict[int, set[int]]:
    """The numbers that each plural form stands for. As in gettext, a rule that cannot be read is that of English."""
    rule = re.search(r"\bplural\s*=([^;\n]+)", declared)
    numbers: dict[int, set[int]] = {}
    try:
        form_of = gettext.c2py(rule[1] if rule else "n != 1")
        for number in _NUMBERS:
            numbers.setdefault(int(form_of(number)), set()).add(number)
    except (ValueError, ArithmeticError):
        return numbers_of("")
    return numbers


def is_value(kept: str) -> bool:
    """Whether a kept word is a placeholder, rather than an address, a tag, an escape or the name of something."""
    return _IS_VALUE.fullmatch(kept) is not None


def _is_number(placeholder: str) -> bool:
    name = re.match(r"\W*([A-Za-z_]\w*)", placeholder)
    words = re.findall("[A-Z]?[a-z]+|[A-Z]+", name[1]) if name else []
    return _NUMBER_TYPE.fullmatch(placeholder) is not None or any(word.lower() in _COUNTS for word in words)


def translated_text(
    numbers: set[int], singular: Sequence[str], plural: Sequence[str], is_typed: bool = False
) -> Literal["singular", "plural"] | None:
    """
    The text of which a plural form is the translation; None: neither can be right.

    A text without the number, such as "One bowl" or "A bowl for {name}", is right only for the number 1, but some forms
    stand for several: that of 1 in Russian also for 21, in French also for 0. There, the singular must show the number
    ("%d bowl"), or else the plural ("%d bowls"). A placeholder of both texts is the number only if its type or its name
    says so, since {0} and %s may be anything; one of the plural alone is, since a singular may leave out nothing else.

    Args:
        numbers: the numbers that the form stands for.
        singular, plural: the placeholders of the two texts.
        is_typed: whether all placeholders for numbers have a type that says so.
    """
    one, many = (Counter(filter(_is_number, found)) for found in (singular, plural))
    is_added = not is_typed and bool(Counter(plural) - Counter(singular))
    if numbers == {1} or (1 in numbers and 2 not in numbers and one and one == many):
        return "singular"
    # A form for 1 and 2 is that of a language without plural.
    is_shown = is_added or (bool(many) and one <= many)
    return "plural" if is_shown or 1 not in numbers or 2 in numbers else None
