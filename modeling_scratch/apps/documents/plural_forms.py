"""The plural forms of languages, as gettext declares them: nplurals=2; plural=(n != 1);"""

import gettext
import re
from functools import lru_cache

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
_NUMBERS = range(1001)  # that decide what a plural form stands for; all rules repeat after at most 100, except millions


def plural_forms_of(target: str | None) -> str | None:
    """The plural forms of a language, as the header declares them; None: unknown."""
    from babel.messages.plurals import PLURALS  # from an extra of this package

    known = {tag: f"nplurals={count}; plural={rule};" for tag, (count, rule) in PLURALS.items()}
    known |= {language: forms for forms, languages in _PLURALS.items() for language in languages.split()}
    tag = (target or "").replace("-", "_")
    return known.get(tag) or known.get(base_language(tag))


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
