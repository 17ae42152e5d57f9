"""The description of the API: for programs at /spec, in OpenAPI's format, and for people at /docs."""

import json
import shlex
from html import escape
from typing import Any

_TEXT, _NUMBER, _YES_OR_NO = {"type": "string"}, {"type": "number"}, {"type": "boolean"}
_TEXTS = {"type": "array", "items": _TEXT}
_ONE_OR_MORE = {"oneOf": [_TEXT, _TEXTS]}
_FILE = {"type": "string", "format": "binary"}
_FORM, _JSON, _PARTS = "application/x-www-form-urlencoded", "application/json", "multipart/form-data"

# The parameters of requests: their schema and meaning.
_SOURCE = (_TEXT, "the language of the text: a code of /languages, or auto to detect it")
_TARGET = (_TEXT, "the language of the translation: a code of /languages")
_KEY = (_TEXT, "your API key, if this service needs one")
_DETECTION = {"language": _TEXT, "confidence": _NUMBER}
# Each endpoint: method, path, summary, parameters (required ones first), how many are required, schema of the answer.
_ENDPOINTS: list[tuple[str, str, str, dict[str, tuple[dict, str]], int, dict[str, Any]]] = [
    (
        "post",
        "/translate",
        "Translate a text, or a list of texts",
        {
            "q": (_ONE_OR_MORE, "the text, or a list of texts"),
            "source": _SOURCE,
            "target": _TARGET,
            "format": (_TEXT, "one of {formats}; text if it is not given"),
            "alternatives": ({"type": "integer"}, "how many other translations to return at most"),
            "keep": (_ONE_OR_MORE, "words that stay as they are"),
            "sentences": (_TEXT, "split: each sentence is translated by itself; line: each line of text as a whole"),
            "features": (_TEXT, "features of all sentences, for a model that was trained with them"),
            "api_key": _KEY,
        },
        3,
        {
            "translatedText": _ONE_OR_MORE,
            "detectedLanguage": {"type": "object", "properties": _DETECTION},
            "alternatives": _TEXTS,
            "confidence": _NUMBER,
            "doubt": _TEXT,
        },
    ),
    (
        "post",
        "/translate_file",
        "Translate a file ({files})",
        {"file": (_FILE, "the file"), "source": _SOURCE, "target": _TARGET, "api_key": _KEY},
        3,
        {"translatedFileUrl": _TEXT, "detectedLanguage": {"type": "object", "properties": _DETECTION}},
    ),
    (
        "post",
        "/detect",
        "Detect the language of a text",
        {"q": (_TEXT, "the text"), "api_key": _KEY},
        1,
        _DETECTION,
    ),
    (
        "post",
        "/suggest",
        "Suggest a better translation",
        {
            "q": (_TEXT, "the text"),
            "s": (_TEXT, "its better translation"),
            "source": (_TEXT, "the language of the text"),
            "target": _TARGET,
            "api_key": _KEY,
        },
        4,
        {"success": _YES_OR_NO},
    ),
    ("get", "/languages", "List the languages", {}, 0, {"code": _TEXT, "name": _TEXT, "targets": _TEXTS}),
    (
        "get",
        "/frontend/settings",
        "Show the settings of the service",
        {},
        0,
        {
            "apiKeys": _YES_OR_NO,
            "charLimit": {"type": "integer"},
            "filesTranslation": _YES_OR_NO,
            "frontendTimeout": {"type": "integer"},
            "keyRequired": _YES_OR_NO,
            "language": {"type": "object"},
            "suggestions": _YES_OR_NO,
            "supportedFilesFormat": _TEXTS,
        },
    ),
    ("get", "/health", "Show whether the service is whole", {}, 0, {"status": _TEXT}),
]
_LISTS = {"/detect", "/languages"}  # whose answers are lists
_ERROR = {"type": "object", "properties": {"error": _TEXT}}


def specification(version: str, formats: list[str], endings: list[str], without: set[str]) -> dict[str, Any]:
    """
    The API as an OpenAPI document.

    Args:
        formats: what /translate takes.
        endings: of the files that /translate_file takes.
        without: paths that the service does not serve.
    """
    words = {"formats": ", ".join(formats), "files": ", ".join(endings)}
    paths: dict[str, Any] = {}
    for method, path, summary, parameters, needed, answer in _ENDPOINTS:
        schema: dict[str, Any] = {"type": "object", "properties": answer}
        schema = {"type": "array", "items": schema} if path in _LISTS else schema
        operation: dict[str, Any] = {
            "summary": summary.format(**words),
            "responses": {"200": _described("the answer", schema), "default": _described("what is wrong", _ERROR)},
        }
        if parameters:
            properties = {
                name: kind | {"description": meaning.format(**words)} for name, (kind, meaning) in parameters.items()
            }
            body = {"type": "object", "required": list(parameters)[:needed], "properties": properties}
            kinds = (_PARTS,) if "file" in parameters else (_JSON, _FORM, _PARTS)
            operation["requestBody"] = {"required": True, "content": {kind: {"schema": body} for kind in kinds}}
        if path not in without:
            paths[path] = {method: operation}
    # LibreTranslate's clients recognise a service by this title.
    return {"openapi": "3.1.0", "info": {"title": "LibreTranslate", "version": version}, "paths": paths}


def _described(what: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": what, "content": {_JSON: {"schema": schema}}}


_STYLE = (
    ":root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 "
    "1rem}table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.3rem .6rem .3rem "
    "0;border-bottom:1px solid #8884}pre{white-space:pre-wrap;padding:.6rem;border:1px solid #8888;border-radius:.3rem}"
)


def documentation(spec: dict[str, Any], address: str, example: dict[str, str]) -> str:
    """
    An OpenAPI document as a page.

    Args:
        address: of the service, without a final slash.
        example: the parameters of a request to /translate.
    """
    sections = []
    for path, operations in spec["paths"].items():
        ((method, operation),) = operations.items()
        content = operation.get("requestBody", {}).get("content", {})
        body = next((media["schema"] for media in content.values()), {"properties": {}, "required": []})
        rows = "".join(
            f"<tr><th scope=row><code>{name}</code><td>{'' if name in body['required'] else 'optional: '}"
            f"{escape(parameter['description'])}"
            for name, parameter in body["properties"].items()
        )
        answer = operation["responses"]["200"]["content"][_JSON]["schema"]
        fields = ", ".join(f"<code>{name}</code>" for name in answer.get("items", answer)["properties"])
        returns = f"a list of objects with {fields}" if "items" in answer else f"an object with {fields}"
        sections.append(
            f"<h2><code>{method.upper()} {path}</code></h2><p>{escape(operation['summary'])}."
            + (f"<table>{rows}</table>" if rows else "")
            + f"<p>Returns {returns}."
        )
    data = shlex.quote(json.dumps(example, ensure_ascii=False))
    call = f"curl -H 'Content-Type: application/json' -d {data} {shlex.quote(f'{address}/translate')}"
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=width=device-width>"
        f"<title>API</title><style>{_STYLE}</style><main><h1>API</h1>"
        "<p>This service has the API of LibreTranslate, so LibreTranslate's clients work with it. Requests are JSON or "
        "forms. An error is an object with <code>error</code>. For programs, there is a <a href=spec>description in "
        f"OpenAPI's format</a>. An example:<pre>{escape(call)}</pre>{''.join(sections)}</main></html>"
    )
