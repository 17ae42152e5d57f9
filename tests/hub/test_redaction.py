"""Tokens in what is printed and logged, as gateways spell them."""

import logging
import re
import time

import pytest
from loopback_client import ADA
from loopback_server import spellings

from modeling_scratch.redaction import RedactingFilter, redact, redacted_traceback


@pytest.fixture(autouse=True)
def logged_in(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", ADA)


@pytest.mark.parametrize("name", spellings(ADA))
def test_a_token_is_redacted_however_it_is_spelled(name):
    spelled = spellings(ADA)[name]
    said = redact(f"GET /whoami: 'authorization={spelled}' was refused")
    # All that is left of it are characters of base64 that hold what stands beside the token.
    assert re.fullmatch(r"GET /whoami: 'authorization=\w{0,8}<token>\w?=?' was refused", said)


def test_what_is_no_token_stays():
    for text in ("hf_hub_download(repo_id)", "sha256 " + "0123456789abcdef" * 4, ADA[:9], "ada%2Fmodel", "a\n  b"):
        assert redact(text) == text
    assert redact("somebody's hf_0123456789abcdefghij") == "somebody's <token>"
    for page in ("aGZf", "\\", "h\n", "%25", "&#0", "\n", "h" + "\n" * 50):
        start = time.perf_counter()
        redact(page * (200_000 // len(page)))
        assert time.perf_counter() - start < 5, page  # linear: no page of a gateway is too long


def test_tracebacks_and_logs_hold_no_token(caplog):
    try:
        try:
            raise KeyError(f"the cause: {ADA}")
        except KeyError as cause:
            raise ValueError(f"the error: {spellings(ADA)['percent']}") from cause
    except ValueError as error:
        text = redacted_traceback(error)
        caplog.handler.addFilter(filter := RedactingFilter())
        logging.getLogger("huggingface_hub.test").warning("'%s' thrown", ADA, exc_info=error)
        caplog.handler.removeFilter(filter)
    for shown in (text, caplog.text):
        assert "the cause: <token>" in shown
        assert "the error: <token>" in shown
        assert "redacted_traceback" not in shown
        assert ADA not in shown
    assert "'<token>' thrown" in caplog.text
