"""Access tokens never appear in what is printed or logged."""

import logging

import pytest
from loopback_hub import ADA

from modeling_scratch.errors import RedactingFilter, redact, redacted_traceback


@pytest.fixture(autouse=True)
def logged_in(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", ADA)


def test_tokens_are_redacted_by_shape_and_by_value(monkeypatch):
    refused = "GET /whoami: 'authorization={}' was refused"
    assert redact(refused.format(ADA)) == refused.format("<token>")
    assert redact("somebody's hf_0123456789abcdefghij") == "somebody's <token>"
    monkeypatch.setenv("HF_TOKEN", "of_another_shape")
    assert redact(refused.format("of_another_shape")) == refused.format("<token>")


def test_other_text_is_left_unchanged():
    for text in ("hf_hub_download(repo_id)", "sha256 " + "0123456789abcdef" * 4, ADA[:9], "ada%2Fmodel", "a\n  b"):
        assert redact(text) == text


def test_tracebacks_and_logs_contain_no_token(caplog):
    try:
        try:
            raise KeyError(f"the cause: {ADA}")
        except KeyError as cause:
            raise ValueError(f"the error: {ADA}") from cause
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
