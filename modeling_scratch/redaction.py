"""Keeps tokens out of output and logs, in whatever encoding a gateway on the way to the Hub may echo them."""

import base64
import logging
import re
import traceback
from functools import lru_cache

from huggingface_hub import get_token

TOKEN = re.compile(r"hf_[A-Za-z0-9]{10,}")

# What line breaks, quoting, indents or HTML may put between two characters. All repeats are bounded: a pattern that
# takes quadratic time would hang on a long page.
_BREAK = r"(?:\s|\\[nrt]|=\r?\n|%0[AD]|\u200b|\u00ad|<wbr/?>){0,40}"


def _spelled(text: str) -> str:
    """A regular expression for a text as it is, percent-encoded, JSON- or HTML-escaped, or broken into lines."""
    characters = []
    for character in text:
        code = ord(character)
        forms = [re.escape(character), rf"%(?:25){{0,4}}{code:02x}"]
        forms += [rf"\\{{1,8}}u00{code:02x}", rf"\\{{1,8}}x{code:02x}"]
        forms += [rf"&#0{{0,6}}{code};", rf"&#x0{{0,6}}{code:x};"]
        forms += {"+": ["-"], "/": ["_", r"\\{1,8}/"], "_": ["&lowbar;"]}.get(character, [])  # URL-safe base64, escapes
        characters.append(f"(?:{'|'.join(forms)})")
    return _BREAK.join(characters)


def _cores(token: str) -> list[str]:
    """The base64 of a token at each of the three alignments, without the characters that depend on its neighbors."""
    cores = []
    for shift in range(3):
        whole = base64.b64encode(b"\0" * shift + token.encode()).decode().rstrip("=")
        cores.append(whole[(0, 2, 3)[shift] : len(whole) - 1])
    return cores


@lru_cache(maxsize=8)
def _pattern(token: str) -> re.Pattern:
    encoded = "|".join(_spelled(core) for core in _cores(token))
    plain = "|".join((_spelled(token), _spelled(token.encode().hex())))
    return re.compile(rf"(?:{encoded})[\w+/-]?={{0,2}}|{plain}", re.IGNORECASE)


def redact(text: str) -> str:
    """The text without anything that is, or looks like, a token."""
    token = get_token()
    return TOKEN.sub("<token>", _pattern(token).sub("<token>", text) if token else text)


def redacted_traceback(error: BaseException) -> str:
    """The traceback of an error and its causes, redacted."""
    return redact("".join(traceback.format_exception(error)))


class RedactingFilter(logging.Filter):
    """A filter for handlers that redacts what they write, tracebacks included."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), None
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text, record.exc_info = redacted_traceback(record.exc_info[1]).rstrip(), None
        return True
