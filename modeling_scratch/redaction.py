"""Keeps tokens out of output and logs."""

import logging
import re
import traceback

from huggingface_hub import get_token

TOKEN = re.compile(r"hf_[A-Za-z0-9]{10,}")


def redact(text: str) -> str:
    """The text without anything that is, or looks like, a token."""
    token = get_token()
    return TOKEN.sub("<token>", text.replace(token, "<token>") if token else text)


def without_tokens(text: str) -> str:
    """A text to publish, without anything that looks like a token."""
    return TOKEN.sub("hf_...", text)


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
