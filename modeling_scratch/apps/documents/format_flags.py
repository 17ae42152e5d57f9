"""The placeholders that a flag of a PO message declares, such as c-format."""

import re
from dataclasses import dataclass
from itertools import count

from .catalogs import CONVERSION


@dataclass(frozen=True)
class Placeholders:
    """
    The placeholders of a programming language.

    Args:
        pattern: matches a placeholder, whose number or name is the group "argument"; without one, it stands for the
            next argument. It also matches what stands for a special character (the group "escape", such as %%), and a
            special character on its own (the group "bare"). Two may enclose words (the groups "open" and "close").
        has_numbers: whether %s may become %2$s.
        is_text_if_bare: whether a special character on its own shows that the message is not a format, whatever its
            flag says: the flag is a guess of xgettext, and msgfmt does not check the translation of such a message.
        allows_bare: whether a message with a special character on its own can be read.
        is_markup: whether all placeholders are kept as they are. Those of Java may have branches with text.
    """

    pattern: re.Pattern[str]
    has_numbers: bool = False
    is_text_if_bare: bool = False
    allows_bare: bool = True
    is_markup: bool = True

    def can_read(self, text: str) -> bool:
        return self.allows_bare or not any(match["bare"] for match in self.pattern.finditer(text))

    def arguments(self, text: str) -> list[str] | None:
        """
        The placeholders of a text, each with its number or name: in a fixed order, unless only some have a number,
        since the meaning of the others may depend on these. None: it is not a format.
        """
        # "% %" is that of this message; "%%" may stand anywhere.
        matches = [match for match in self.pattern.finditer(text) if len(match["escape"] or "") != 2]
        if self.is_text_if_bare and any(match["bare"] for match in matches):
            return None
        raws = [match.group() for match in matches]
        if any(map(_is_next, matches)) and any(re.search("[0-9]", match["argument"] or "") for match in matches):
            return raws
        numbers = count(1)
        return sorted(
            f"{raw[0]}{next(numbers)}${raw[1:]}" if _is_next(match) else raw
            for raw, match in zip(raws, matches, strict=True)
        )

    def values(self, text: str) -> list[str]:
        """The placeholders of a text that stand for arguments, as they are written."""
        names = ("escape", "bare", "open", "close")
        matches = self.pattern.finditer(text) if self.arguments(text) is not None else ()
        return [match.group() for match in matches if not any(match.groupdict().get(name) for name in names)]

    def can_number(self, text: str) -> bool:
        """Whether the placeholders of a text may get numbers to stand in another order."""
        found = (match.group() for match in self.pattern.finditer(text) if _is_next(match))
        return self.has_numbers and all(re.fullmatch(f"%{CONVERSION}", placeholder) for placeholder in found)

    def in_order(self, written: str, source: str) -> str:
        """A translation whose placeholders without a number or name stand in the order of the source."""
        places, wanted = (
            [match for match in self.pattern.finditer(text) if _is_next(match)] for text in (written, source)
        )
        if sorted(place.group() for place in places) != sorted(placeholder.group() for placeholder in wanted):
            return written
        parts, done = [], 0
        for place, placeholder in zip(places, wanted, strict=True):
            parts += [written[done : place.start()], placeholder.group()]
            done = place.end()
        return "".join(parts) + written[done:]


def _is_next(match: re.Match[str]) -> bool:
    """Whether a placeholder stands for the next argument."""
    groups = match.groupdict()
    is_quote = groups.get("open") == "%<" or bool(groups.get("close"))
    return not (match["escape"] or match["bare"] or match["argument"] or is_quote)


# Flags, width and precision may all be digits: none gives back what it has read (*+), so that the time is linear.
_NUMBER = r"[0-9]++\$"
_WIDTH = r"(?:[0-9]++|\*(?:[0-9]++\$)?)?"
_PRECISION = r"(?:\.(?:\*(?:[0-9]++\$)?|[0-9]*+))?"
_SIZE = r"(?:I64|wf?[0-9]++|[hlLqjzt])*+"


def _printf(
    conversions: str,
    argument: str = _NUMBER,
    flags: str = "[-+ 0#]*+",
    size: str = _SIZE,
    escapes: str = "%",
    has_numbers: bool = False,
    is_text_if_bare: bool = False,
) -> Placeholders:
    """Placeholders after printf of C."""
    middle = f"{flags}{_WIDTH}{_PRECISION}{size}"
    pattern = rf"(?P<escape>%{middle}[{escapes}])|%(?P<argument>{argument})?{middle}(?:{conversions})|(?P<bare>%)"
    return Placeholders(re.compile(pattern), has_numbers, is_text_if_bare)


def _other(placeholder: str, bare: str = r"(?!)", escape: str = r"(?!)", **options: bool) -> Placeholders:
    return Placeholders(re.compile(rf"(?P<escape>{escape})|{placeholder}|(?P<bare>{bare})"), **options)


_C = _printf(
    r"[diouxXbBeEfFgGaAcCsSpn@]|<PRI[diouxX][A-Z0-9]+>",
    flags="[-+ 0#'I]*+",
    escapes="%m",
    has_numbers=True,
    is_text_if_bare=True,
)
# With text in braces in the braces, as in {:>{width}}; a name or a number comes first.
_BRACES = _other(r"\{(?P<argument>[^{}:!]++)?[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\}", r"[{}]", r"\{\{|\}\}")
_PERCENT_DIGITS = _other(r"%(?P<argument>L?(?:n|[0-9]{1,2}))")
# The simple ones; a loop or a choice such as ~{ or ~[ is a "~" on its own.
_TILDE = _other(
    r"~(?P<argument>(?!))?(?:[-+]?[0-9]++|,|'[^~])*+[@:]*+[aAbBcCdDeEfFgGoOpPrRsSwWxX$%&|]",
    "~",
    "~~",
    allows_bare=False,
)

# By what precedes "-format" in a flag. These are the languages of gettext, in the order of its format_language
# (gettext-tools/src/message.c), and their placeholders as its format-*.c read them. D, OCaml, and what gettext does not
# know yet, are missing: messages with such flags are not translated.
LANGUAGES = {
    "c": _C,
    "objc": _C,
    "c++": _BRACES,
    "python": _printf("[diouxXeEfFgGcrsa]", r"\([^()]*\)", size="[hlL]?", is_text_if_bare=True),
    "python-brace": _BRACES,
    "java": _other(r"\{(?P<argument>\s*[0-9]+)\s*(?:,\s*[a-z]+)?", "[{}]", "''|'[^']*(?:'|$)", is_markup=False),
    "java-printf": _printf(
        "[bBhHsScCdoxXeEfgGaA]|[tT][A-Za-z]", r"[0-9]++\$|<", "[-#+ 0,(]*+", "", "%n", has_numbers=True
    ),
    "csharp": _BRACES,
    "javascript": _printf("[bcdeEfFgGijoOsuxX]", size="", has_numbers=True),
    "scheme": _TILDE,
    "lisp": _TILDE,
    "elisp": _printf("[sSdioxXcfeg]", size="", has_numbers=True),
    "librep": _printf("[sSdxXoc]", flags=r"[-+ 0^]*+", size="", has_numbers=True),
    "rust": _BRACES,
    "go": _other(
        r"%(?P<argument>(?!))?[-+# 0]*+(?:\[[0-9]++\])?(?:[0-9]++|\*)?"
        r"(?:\.(?:\[[0-9]++\])?(?:[0-9]++|\*)?)?(?:\[[0-9]++\])?"
        "[vTtcUsqeEfFgGOdobxX]",
        "%",
        "%%",
    ),
    # %<name>d, %-5<name>d, %{name}
    "ruby": _other(
        r"%(?P<argument>[-+ 0#]*+(?:[0-9]++\$|[0-9]*+(?:<[^<>]*+>|(?P<whole>\{[^{}]*+\}))))?"
        rf"(?(whole)|[-+ 0#]*+{_WIDTH}{_PRECISION}[spcdiuoxXbBfgGeEaA])",
        "%",
        f"%[-+ 0#]*+{_WIDTH}{_PRECISION}%",
    ),
    "sh": _other(r"\$(?P<argument>[A-Za-z_][A-Za-z0-9_]*|\{[^{}]*\})", r"\$"),
    "sh-printf": _printf("[csdiouxXeEfFgGaA]", size="", has_numbers=True),
    "awk": _printf("[cdiouxXfFeEgGs]", size="", has_numbers=True),
    "lua": _printf("[cdeEfgGiouxXsqaAp]", size=""),
    "object-pascal": _printf("[duxefgnmspDUXEFGNMSP]", r"(?:[0-9]*|\*):", "-?", ""),
    "modula2": _printf("[cdiouxXeEfFgGsp]", size=""),
    "smalltalk": _other("%(?P<argument>[1-9])", "%", "%%"),
    "qt": _PERCENT_DIGITS,
    "qt-plural": _PERCENT_DIGITS,
    "kde": _other("%(?P<argument>[0-9]+)"),
    "kde-kuit": _other("%(?P<argument>[0-9]+)"),
    # %1%, %|2$5|
    "boost": _other(
        r"%(?P<argument>(?P<whole>[0-9]++%)|\|?[0-9]++\$)?"
        rf"(?(whole)|\|?[-+ 0#'_=hl]*+{_WIDTH}{_PRECISION}[hlL]*(?:[cCsSidouxXeEfgGptn]\|?|T.\|?|\|))",
        "%",
        "%%",
    ),
    "tcl": _printf("[diuoxXcsfeEgG]", has_numbers=True),
    "perl": _printf(
        "[cs_piDduUbBoOxXeEfFgGn]",
        r"[1-9][0-9]*+\$",
        r"[-+ 0#]*+(?:\*?v|\*[0-9]+\$v)?",
        "(?:ll|I64|I32|[hlLqVI])?",
        has_numbers=True,
    ),
    "perl-brace": _other(r"\{(?P<argument>[A-Za-z_][A-Za-z0-9_]*)\}"),
    "php": _printf("[bcdeEfFgGosuxX]", flags="(?:[-+ 0]|'[^%])*+", size="", has_numbers=True),
    # %qT, %<quoted%>, %r coloured%R
    "gcc-internal": _other(
        r"(?P<open>%[<r{])|(?P<close>%[>R}])"
        r"|%(?P<argument>[0-9]+\$)?[qlwzt+#]*(?:\.(?:[0-9]+|\*(?:[0-9]+\$)?))?[A-Za-z@{]",
        "%",
        "%[%']",
    ),
    "gfc-internal": _other(r"(?P<open>%<)|(?P<close>%>)|%(?P<argument>[0-9]+\$)?[lqwz+#]*[A-Za-z]", "%", "%[%']"),
    "ycp": _other("%(?P<argument>[0-9])", "%", "%%"),
}
