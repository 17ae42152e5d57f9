"""A page translates as generate() does: ONNX graphs in ONNX Runtime; search, tokenizers and words in Node."""

import base64
import gzip
import hashlib
import json
import logging
import math
import re
import shutil
import sys
from contextlib import contextmanager
from itertools import compress
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tiktoken
import torch
from conftest import ROOT, SHALLOW, every_choice_and_variant
from pages import HAS_RUNTIME, generated, in_node, needs_runtime, node
from search_cases import enliven
from texts import GOES_TO_A_TRANSLATOR, PUT_BACK, SENTENCES_OF, TEXTS
from translators import CORPUS, DOUBTS, calibrate, load, sure_of, two_vocabularies
from typer.testing import CliRunner

from modeling_scratch.apps.convert.generation_settings import read_search
from modeling_scratch.apps.convert.onnx import DECODER, ENCODER, OnnxScorer, export_onnx, quantize_weights
from modeling_scratch.apps.serve.readers import are_foreign, cut_into_sentences
from modeling_scratch.apps.web import export
from modeling_scratch.apps.web.described import describe_origin
from modeling_scratch.apps.web.language_table import language_table
from modeling_scratch.apps.web.site import read_described
from modeling_scratch.apps.web.tokenizers import write_tokenizers
from modeling_scratch.commands.export import app
from modeling_scratch.data.tokenizer import adopt_tokenizer, from_tiktoken
from modeling_scratch.errors import UserError
from modeling_scratch.loading import load_confidence, load_tokenizers, load_translator, save_tokenizers
from modeling_scratch.model.batched_generation import tokenize
from modeling_scratch.model.confidence import FILE, Confidence, NgramSet
from modeling_scratch.model.kept_words import KEPT, hide, in_javascript
from modeling_scratch.model.text import clean

PAGE = Path(export.__file__).parent / "page"
ORIGIN = {"isTranslator": True, "task": None, "examples": [], "facts": []}
PATTERNS = {"sentences": describe_origin("model", [], ORIGIN)["sentences"], "keptWords": in_javascript()}
SENTENCES = [pair["en"] for pair in CORPUS][:6]
# White space of several kinds, and invisible characters.
ODD = f"\ufeff\u00a0 {SENTENCES[0]}".replace("e", "e\u200b").replace(" ", " \u200f\u2003")
WITH_KEPT = f"@anna: {SENTENCES[0].replace(' ', ' {{ a b }} ', 1).removesuffix('.')} {{0}}[X4X]."
# Settings of generate(), and the page's names for them.
SEARCHES = {
    "greedy": ({"num_beams": 1}, {"numBeams": 1}),
    "beams": ({"num_beams": 5}, {"numBeams": 5}),
    "early": ({"num_beams": 3, "early_stopping": True}, {"numBeams": 3, "earlyStopping": True}),
    "never early": (
        {"num_beams": 3, "early_stopping": "never", "length_penalty": 2.0},
        {"numBeams": 3, "earlyStopping": "never", "lengthPenalty": 2.0},
    ),
    "short": ({"num_beams": 4, "length_penalty": -1.0}, {"numBeams": 4, "lengthPenalty": -1.0}),
    "two ends": ({"num_beams": 3, "eos_token_id": [2, 44]}, {"numBeams": 3, "endTokens": [2, 44]}),
    "long": ({"num_beams": 2, "min_new_tokens": 15}, {"numBeams": 2, "minNewTokens": 15}),
    "suppressed": ({"num_beams": 2, "suppress_tokens": [44, 60]}, {"numBeams": 2, "suppressedTokens": [44, 60]}),
    "cut": ({"num_beams": 3, "max_new_tokens": 4}, {"numBeams": 3, "maxNewTokens": 4}),
}


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


# -- ONNX graphs -------------------------------------------------------------------------------------------------------


def assert_onnx_steps_as(model, folder):
    """Several hypotheses of a sentence, reordered between steps, against uncached forward passes."""
    encoder, decoder = (onnxruntime.InferenceSession(folder / name) for name in (ENCODER, DECODER))
    for length in (1, 9):
        ids = torch.randint(4, 61, (1, length), generator=torch.Generator().manual_seed(length))
        (source,) = encoder.run(None, {"input_ids": ids.numpy()})
        layers, _, heads, _, size = source.shape
        past, targets = np.zeros((layers, 1, heads, 0, size), dtype=np.float32), np.array([[1]])
        for step in range(4):
            rows = len(targets)
            log_probs, past, weights = decoder.run(None, {"input_ids": targets[:, -1:], "past": past, "source": source})
            expected = model(
                input_ids=ids.expand(rows, -1), decoder_input_ids=torch.from_numpy(targets), output_attentions=True
            )
            torch.testing.assert_close(
                torch.from_numpy(log_probs), expected.logits[:, -1].log_softmax(-1), rtol=0, atol=2e-4
            )
            attended = torch.stack([layer[:, :, -1] for layer in expected.cross_attentions])
            torch.testing.assert_close(torch.from_numpy(weights), attended, rtol=0, atol=1e-4)
            chosen = np.array([0, 0, 0]) if step == 0 else np.array([2, 0, 1])
            past = past[:, chosen]
            targets = np.concatenate([targets[chosen], [[7 + step], [30 + step], [50 + step]]], axis=1)


def test_onnx_graphs_step_as_the_model_does(model, direction):
    assert_onnx_steps_as(load_translator(str(model)).float(), direction)


@pytest.mark.slow
@every_choice_and_variant
def test_onnx_graphs_of_every_architecture_step_as_the_model_does(fields, make_model, tmp_path):
    model = enliven(make_model(**SHALLOW, **fields), 4)
    export_onnx(model, tmp_path)
    assert_onnx_steps_as(model, tmp_path)


def test_8_bit_onnx_graphs_are_small_and_close_to_the_exact_ones(model, direction, tmp_path):
    search, cases = read_search(load_translator(str(model))), [[list(range(4, 20))], [list(range(40, 50))]]
    for name in (ENCODER, DECODER):
        shutil.copy(direction / name, tmp_path)
        quantize_weights(tmp_path / name)
    exact, rounded = (np.array(OnnxScorer(folder, search)(*cases)) for folder in (direction, tmp_path))
    assert 0 < np.abs(rounded - exact).mean() < 0.1
    assert (tmp_path / DECODER).stat().st_size < 0.6 * (direction / DECODER).stat().st_size


# -- the page ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    """The default architecture."""
    return two_vocabularies()


@pytest.fixture(scope="module")
def without_runtime(tmp_path_factory):
    """A context in which pages are exported with empty files in place of their runtime."""
    folder = tmp_path_factory.mktemp("runtime")
    files = [folder / name for name in (*export.MODULES, export.WASM)]
    for file in files:
        file.touch()

    @contextmanager
    def without_runtime():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(export, "runtime_files", lambda: files)
            patch.setattr(export, "licenses", lambda: "the licenses")
            yield patch

    return without_runtime


@pytest.fixture(scope="module")
def page(model, without_runtime, tmp_path_factory):
    """A page without its runtime."""
    out = tmp_path_factory.mktemp("pages") / "page"
    with without_runtime():
        result = run("web", model, out)
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def whole(page, tmp_path_factory):
    """The files that the page's code reads, unpacked and with plain names, and the runtime if it was fetched."""
    folder, described = tmp_path_factory.mktemp("pages"), read_described(page)
    for part, prefix in zip((described["shared"], *described["directions"]), ("", "model/"), strict=True):
        for name, path in part["files"].items():
            file = folder / prefix / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(gzip.decompress((page / path).read_bytes()))
        part["files"] = {name: f"{prefix}{name}" for name in part["files"]}
    (folder / "model.json").write_text(json.dumps(described))
    if HAS_RUNTIME:
        for path in export.runtime_files():
            shutil.copy(path, folder / "runtime")
    return folder


@pytest.fixture(scope="module")
def direction(whole):
    """The folder of the page's model."""
    return whole / "model"


ENCODED = [text for text in TEXTS if text.strip()]
ENCODED += ["".join(f"a{chr(code)}" for code in (0xAD, 0x61C, 0x180E, *range(0x2000, 0x2070), 0xFE0F, 0xFEFF))]
HEADS = [None, [[0, 1]]]


@pytest.fixture(scope="module")
def in_one_process(whole):
    """All results of the page's translator that the tests need."""
    cases = [[sentence, options] for _, options in SEARCHES.values() for sentence in SENTENCES]
    cases += [[WITH_KEPT, SEARCHES["beams"][1]], ["{0}, %s", {}]]
    cases += [[ODD, {}], *([SENTENCES[0], {"alignmentHeads": heads}] for heads in HEADS)]
    return in_node(whole, ENCODED, cases)


@pytest.fixture(scope="module")
def by_page(in_one_process):
    """The page's translations of every sentence with every search, by the search's name."""
    found = iter(in_one_process["translations"])
    return {name: [next(found) for _ in SENTENCES] for name in SEARCHES}


@needs_runtime
@pytest.mark.parametrize("name", SEARCHES)
def test_translations_are_those_of_generate(name, model, by_page):
    settings, options = SEARCHES[name]
    ends, sure = set(options.get("endTokens", [2])), sure_of(model, SENTENCES, **settings)
    for (best,), found in compress(zip(generated(model, SENTENCES, **settings), by_page[name], strict=True), sure):
        assert found["found"][0] | {"score": 0} == best | {"score": 0, "isCut": best["tokens"][-1] not in ends}


@needs_runtime
def test_alternatives_are_those_of_generate_and_scores_are_their_log_probabilities(model, direction, by_page):
    settings = {"num_beams": 5, "num_return_sequences": 5}
    pairs, sure = zip(generated(model, SENTENCES, **settings), by_page["beams"], strict=True), {"rounding": 1e-4}
    for expected, one in compress(pairs, sure_of(model, SENTENCES, **settings, **sure)):
        assert [output["tokens"] for output in one["found"]] == [output["tokens"] for output in expected]
    scorer, source = OnnxScorer(direction, read_search(load_translator(str(model)))), load_tokenizers(str(model))[0]
    whole = [output for output in by_page["beams"][0]["found"] if not output["isCut"]]
    assert whole
    for output in whole:
        (log_probs,) = scorer([source(SENTENCES[0]).input_ids], [output["tokens"][:-1]])
        assert output["score"] == pytest.approx(sum(log_probs), abs=1e-3)


@needs_runtime
def test_any_text_is_encoded_as_in_python(model, in_one_process):
    source = load_tokenizers(str(model))[0]
    assert in_one_process["ids"] == tokenize(source, ENCODED, None)


@needs_runtime
def test_a_tokenizer_whose_end_token_is_not_in_its_vocabulary_encodes_as_in_python(model, whole, tmp_path):
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257, b" the": 258}
    encoding = tiktoken.Encoding("x", pat_str=r" ?\w+|\W", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 259})
    from_tiktoken(encoding).save_pretrained(tmp_path / "tokenizer")
    tokenizer, texts = adopt_tokenizer(str(tmp_path / "tokenizer")), ["The cat.", "the well-known cats", "the thé"]
    folder = shutil.copytree(model, tmp_path / "model")
    tokenizer.save_pretrained(folder)
    whole = shutil.copytree(whole, tmp_path / "page")
    (tmp_path / "written").mkdir()
    write_tokenizers(str(folder), tmp_path / "written", "a page")
    shutil.copytree(tmp_path / "written", whole / "model", dirs_exist_ok=True)
    expected = [tokenizer(text).input_ids for text in texts]
    assert {ids[-1] for ids in expected} == {tokenizer.eos_token_id}
    assert in_node(whole, texts)["ids"] == expected


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_tokens_are_located_in_the_text_even_if_decoding_adds_spaces():
    script = f"""
        import {{ spans }} from {json.dumps((PAGE / "translator.js").as_uri())};
        const tokens = ["A", "well", "-", "known", "(", "cat", ")", "sleeps", "."], text = "A well-known (cat) sleeps.";
        const tokenizer = {{ decode: (ids) => ids.map((id) => tokens[id]).join(" ") }};
        const found = spans(tokenizer, tokens.map((_, id) => id), text);
        console.log(JSON.stringify([tokens, found.map(([start, end]) => text.slice(start, end).trim())]));
    """
    tokens, found = node("--input-type=module", "-e", script)
    assert found == tokens


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize("language", ["en", None])
def test_the_page_cuts_text_as_the_service_does(language):
    text = "12:30\n***\n1. Buy 3.5 kg. *\n2.1. Ho! 2024?\n1.\n\u2014 \u0663 \U0001f600\n\n  A bird. \u2168 \u00bd"
    model = {"languages": [language] if language else [], "hasSentences": language is not None, "takesAnyText": True}
    model |= PATTERNS
    script = f"""
        import {{ cut }} from {json.dumps((PAGE / "text.js").as_uri())};
        console.log(JSON.stringify(cut({json.dumps(text)}, {json.dumps(model)})));
    """
    parts = node("--input-type=module", "-e", script)
    assert "".join(part for part, _ in parts) == text
    assert [part for part in parts if part[1]] == [
        list(part) for part in cut_into_sentences(text, language, KEPT) if part[1]
    ]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize("takes_any", [True, False])
def test_the_page_sends_to_the_model_what_translators_read(takes_any):
    """The whole line, whether the page cuts it or not; a model of whole symbols without languages reads any text."""
    texts = {text.strip(): goes for text, goes in GOES_TO_A_TRANSLATOR.items() if text.strip()}
    model = {"languages": ["en"], "hasSentences": not takes_any, "takesAnyText": takes_any}
    model |= PATTERNS | {"reserved": 16}
    script = f"""
        import {{ cut }} from {json.dumps((PAGE / "text.js").as_uri())};
        import {{ Translator }} from {json.dumps((PAGE / "translator.js").as_uri())};
        const texts = {json.dumps(list(texts))}, model = {json.dumps(model)};
        const translator = Object.assign(new Translator(), {{ model, kept: new RegExp(model.keptWords, "gu") }});
        translator.encode = () => {{ throw "encoded"; }};
        const found = [texts.map((text) => cut(text, model).some(([, isSentence]) => isSentence)), []];
        for (const text of texts) {{
            found[1].push(await translator.translate(text).then(([best]) => best, (error) => error));
        }}
        console.log(JSON.stringify(found));
    """
    cut, translated = node("--input-type=module", "-e", script)
    assert dict(zip(texts, cut, strict=True)) == {text: goes or takes_any for text, goes in texts.items()}
    as_it_is = {"tokens": [], "score": 0, "isCut": False, "weights": []}
    for (text, goes), found in zip(texts.items(), translated, strict=True):
        reads = goes or (takes_any and clean(text))
        assert found == ("encoded" if reads else {"text": text.strip("\u200b"), **as_it_is})


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_page_puts_spaces_between_sentences_as_the_service_does():
    tags = ["de", "de-AT", "ko", "vi", "ROMANCE", "zh", "zh-TW", "wuu", "hak", "th", "shn", "dz", "ja"]
    spaces = [describe_origin("model", ["en", tag], ORIGIN)["space"] for tag in tags]
    script = f"""
        import {{ placed }} from {json.dumps((PAGE / "text.js").as_uri())};
        const parts = [["A.", true], [" ", false], ["B.", true], ["C.", true]];
        const joined = (space) => placed(parts, space).map(({{ text }}) => text).join("");
        console.log(JSON.stringify({json.dumps(spaces)}.map(joined)));
    """
    assert node("--input-type=module", "-e", script) == ["A. B. C."] * 5 + ["A.B.C."] * 8


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_page_finds_the_sentences_and_puts_kept_words_back_as_in_python():
    script = f"""
        import {{ beginnings }} from {json.dumps((PAGE / "text.js").as_uri())};
        import {{ hide, restored }} from {json.dumps((PAGE / "translator.js").as_uri())};
        const {{ sentences, keptWords }} = {json.dumps(PATTERNS)};
        const cut = ([text, language]) => {{
            const places = [0, ...beginnings(text, language, keptWords, sentences)];
            return places.map((start, index) => text.slice(start, places[index + 1]));
        }};
        const put = ([text, output]) => {{
            const [read, kept] = hide(text, new RegExp(keptWords, "gu"), 16);
            const words = kept.map(({{ start, end }}) => text.slice(start, end));
            const [parts, isWhole] = restored(output, read, words);
            return [read, parts.map(({{ text }}) => text).join(""), isWhole];
        }};
        console.log(JSON.stringify([{json.dumps(SENTENCES_OF)}.map(cut), {json.dumps(PUT_BACK)}.map(put)]));
    """
    cut, put = node("--input-type=module", "-e", script)
    assert [[part.strip() for part in row] for row in cut] == [row[2] for row in SENTENCES_OF]
    reads = [hide(text, KEPT.spans(text)) for text, *_ in PUT_BACK]
    assert put == [
        [read, text if made is None else made, whole]
        for read, (text, _, made, whole) in zip(reads, PUT_BACK, strict=True)
    ]


@needs_runtime
def test_words_are_linked_to_source_words_despite_invisible_characters(in_one_process):
    one, plain = in_one_process["translations"][-3:-1]
    assert one["found"][0]["text"] == plain["found"][0]["text"]
    assert "".join(word["text"] for word in one["words"]) == one["found"][0]["text"]
    words = re.findall(r"\w+", SENTENCES[0])
    explained = [word for word in one["words"] if word["isWord"]]
    assert explained
    for word in explained:
        assert 0.5 < sum(source["weight"] for source in word["from"]) < 1 + 1e-6
        assert {ODD[source["start"] : source["end"]].replace("\u200b", "") for source in word["from"]} <= set(words)


@needs_runtime
def test_kept_words_are_in_each_translation_once_and_come_from_themselves(in_one_process, by_page):
    kept = ["@anna:", "{{ a b }}", "{0}[X4X]"]
    found, alone = in_one_process["translations"][-5:-3]
    assert (alone["found"][0]["text"], alone["words"]) == (
        "{0}, %s",
        [{"text": "{0}, %s", "isWord": False, "from": []}],
    )
    for output, plain in zip(found["found"], by_page["beams"][0]["found"], strict=True):
        text = output["text"]
        assert text.startswith("@anna: ")
        for word in kept:
            assert text.count(word) == 1
            text = text.replace(word, " ")
        assert re.sub(r"\s", "", text) == re.sub(r"\s", "", plain["text"])
    assert "".join(word["text"] for word in found["words"]) == found["found"][0]["text"]
    for word in found["words"]:
        read = {WITH_KEPT[source["start"] : source["end"]] for source in word["from"]}
        assert read == {word["text"]} if word["text"] in kept else read <= set(re.findall(r"\w+", SENTENCES[0]))


@needs_runtime
@pytest.mark.parametrize("number", range(2))
def test_attention_is_the_mean_of_the_alignment_heads(number, model, in_one_process):
    """As computed by a forward pass over the sentence and the page's tokens."""
    one, heads = in_one_process["translations"][-2:][number], HEADS[number]
    translator, source = load_translator(str(model)).float(), load_tokenizers(str(model))[0]
    read = torch.tensor([[1, *one["found"][0]["tokens"][:-1]]])
    outputs = translator(**source(SENTENCES[0], return_tensors="pt"), decoder_input_ids=read, output_attentions=True)
    weights = torch.stack(outputs.cross_attentions)[:, 0]  # (layers, heads, target_length, source_length)
    chosen = weights.flatten(0, 1) if heads is None else torch.stack([weights[layer, head] for layer, head in heads])
    torch.testing.assert_close(torch.tensor(one["attention"]), chosen.mean(0), rtol=0, atol=1e-4)


# -- the page's own script ---------------------------------------------------------------------------------------------

BEAM = {  # made up
    "Der alte Mann gibt dem Kind ein Buch.": 0.5,
    "Der alte Mann schenkt dem Kind ein Buch.": 0.25,
    "Der Mann gibt dem Kind ein Buch.": 0.15,
    "Ein alter Kerl bringt dem Kind ein Buch!": 0.1,
}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize(
    ("shown", "word", "expected"),
    [
        (0, 3, {"gibt": 0.65, "schenkt": 0.25, "bringt": 0.1}),  # replaced by another word
        (1, 3, {"gibt": 0.65, "schenkt": 0.25, "bringt": 0.1}),
        (0, 1, {"alte Mann": 0.75, "Mann": 0.15, "alter Kerl": 0.1}),  # left out
        (0, 7, {"Buch": 1.0}),  # only the punctuation differs
    ],
)
def test_the_wordings_of_a_word_are_what_the_beam_has_in_its_place(shown, word, expected):
    outputs = [{"text": text, "score": math.log(share)} for text, share in BEAM.items()]
    script = f"""
        import {{ wordings }} from {json.dumps((PAGE / "wordings.js").as_uri())};
        console.log(JSON.stringify(wordings({json.dumps(outputs)}, {shown}, {word}, "de")));
    """
    found = node("--input-type=module", "-e", script)["options"]
    assert {option["text"]: option["share"] for option in found} == pytest.approx(expected)
    assert [option["text"] for option in found if option["isShown"]] == [*expected][shown : shown + 1]
    assert all(option["text"] in outputs[option["output"]]["text"] for option in found)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_words_of_another_hypothesis_come_from_what_they_replace():
    best, other, *_ = BEAM
    made = [{"text": text, "isWord": True, "from": [index]} for index, text in enumerate(best.split(" "))]
    spaced = [part for word in made for part in (word, {"text": " ", "isWord": False, "from": []})][:-1]
    script = f"""
        import {{ linked }} from {json.dumps((PAGE / "wordings.js").as_uri())};
        const best = {json.dumps({"text": best, "words": spaced})};
        const found = [best.text, {json.dumps(other)}].map((text) => linked({{ text }}, best, "de"));
        console.log(JSON.stringify(found.map((row) => row.filter(({{ isWord }}) => isWord))));
    """
    for row, text in zip(node("--input-type=module", "-e", script), (best, other), strict=True):
        assert [word["text"] for word in row] == re.findall(r"\w+", text)
        assert [word["from"] for word in row] == [[index] for index in range(8)]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_every_language_of_the_page_says_everything():
    script = f"""
        import {{ STRINGS }} from {json.dumps((PAGE / "strings.js").as_uri())};
        const categories = (language) => new Intl.PluralRules(language).resolvedOptions().pluralCategories;
        const named = Object.keys(STRINGS).map((language) => [language, STRINGS[language], categories(language)]);
        console.log(JSON.stringify(named));
    """
    (_, english, _), *others = node("--input-type=module", "-e", script)
    assert len(others) >= 3
    for language, table, categories in others:
        assert english.keys() - table.keys() <= {"placeholderLines"}, language  # of models without languages
        assert table.keys() <= english.keys(), language
        for name, text in table.items():
            forms, expected = ([*one.values()] if isinstance(one, dict) else [one] for one in (text, english[name]))
            assert not isinstance(text, dict) or {"other"} <= text.keys() <= set(categories), (language, name)
            needed = set(re.findall(r"{\w+}", expected[-1]))
            assert {frozenset(re.findall(r"{\w+}", form)) | {"{n}"} for form in forms} == {frozenset(needed | {"{n}"})}


# -- confidence --------------------------------------------------------------------------------------------------------

CONFIDENCE = (PAGE / "confidence.js").as_uri()
SPOKEN = {
    "ar": ["سيكون الطقس جميلا غدا.", "أين وضعت مفاتيحي؟"],
    "cs": ["Zítra bude hezké počasí.", "Kam jsi dal moje klíče?"],
    "de": ["Das Wetter wird morgen schön.", "Wo hast du meine Schlüssel hingelegt?"],
    "en": ["The weather will be nice tomorrow.", "Where did you put my keys?"],
    "es": ["Mañana hará buen tiempo.", "¿Dónde has puesto mis llaves?"],
    "fi": ["Huomenna on kaunis ilma.", "Mihin laitoit avaimeni?"],
    "fr": ["Il fera beau demain.", "Où as-tu mis mes clés ?"],
    "ja": ["明日は天気がいいでしょう。", "私の鍵をどこに置きましたか。"],
    "pl": ["Jutro będzie ładna pogoda.", "Gdzie położyłeś moje klucze?"],
    "ru": ["Завтра будет хорошая погода.", "Куда ты положил мои ключи?"],
    "tr": ["Yarın hava güzel olacak.", "Anahtarlarımı nereye koydun?"],  # noqa: RUF001
    "zh": ["明天天气会很好。", "你把我的钥匙放在哪里了?"],
}


@needs_runtime
def test_confidence_and_doubts_are_those_in_python(model, whole, tmp_path):
    folder = calibrate(shutil.copytree(model, tmp_path / "model"))
    whole, sentences = shutil.copytree(whole, tmp_path / "page"), [*DOUBTS, *SENTENCES, ODD, *ENCODED[:10]]
    described = json.loads((whole / "model.json").read_text())
    written = export.write_confidence(str(folder), whole / "model", ["en", "de"])
    assert written == [FILE, "languages.json"]
    described["directions"][0]["files"] |= {name: f"model/{name}" for name in written}
    (whole / "model.json").write_text(json.dumps(described))
    found = [row["found"] for row in in_node(whole, [], [[sentence, {}] for sentence in sentences])["translations"]]
    assert [best["doubt"] for best, *_ in found[:3]] == list(DOUBTS.values())
    confidence, source = load_confidence(str(folder)), load_tokenizers(str(folder))[0]
    for ids, (best, *others) in zip(tokenize(source, sentences, None), found, strict=True):
        expected = confidence(ids, len(best["tokens"]), best["score"], not any(map(str.isalnum, best["text"])))
        assert best["confidence"] == pytest.approx(expected, rel=1e-9)
        assert ("doubt" in best) == (expected < 0.5)
        assert not any("confidence" in other for other in others)
    sure = sure_of(folder, SENTENCES)
    by_pipeline = [output["confidence"] for output in load(folder)(SENTENCES, return_confidence=True)]
    in_page = [best["confidence"] for best, *_ in found[3 : 3 + len(SENTENCES)]]
    assert list(compress(in_page, sure)) == pytest.approx(list(compress(by_pipeline, sure)), abs=1e-3)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_an_output_that_says_nothing_has_no_confidence_on_the_page():
    script = f"""
        import {{ Confidence }} from {json.dumps(CONFIDENCE)};
        const signals = {{ length_ratio: [0, 1] }};
        const confidence = new Confidence({{ signals, longest_source: null, known: "AA==" }});
        const outputs = [["", true], [" ", false], [". ?", true], [". ?", false], ["é", true], ["7", true]];
        console.log(JSON.stringify(outputs.map((each) => confidence.of([5, 2], 1, 0, ...each) > 0)));
    """
    assert node("--input-type=module", "-", input=script) == [False, False, False, True, True, True]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_an_output_that_is_short_for_its_source_is_doubtful_on_the_page_as_in_python():
    python = Confidence({"length_ratio": (0.2, 0.1), "target_ratio": (0.7, 0.1)}, 30, NgramSet(b"\0"))
    cases = [[list(range(4, 4 + size)), length] for size in (1, 4, 16, 31) for length in (1, 3, 8, 11, 16, 90)]
    script = f"""
        import {{ Confidence }} from {json.dumps(CONFIDENCE)};
        const confidence = new Confidence({python.text()});
        const found = {json.dumps(cases)}.map(([ids, length]) => {{
            const number = confidence.of(ids, length, -1, "a", true);
            return [number, confidence.doubt(number, ids, "a", length) ?? null];
        }});
        console.log(JSON.stringify(found));
    """
    found = node("--input-type=module", "-", input=script)
    for (ids, length), (number, doubt) in zip(cases, found, strict=True):
        assert number == pytest.approx(python(ids, length, -1.0), rel=1e-9)
        reason = "length" if len(ids) > 30 else "short" if python.is_short(ids, length) else "unlike"
        assert doubt == (reason if number < 0.5 else None)
    assert {doubt for _, doubt in found} == {"length", "short", "unlike", None}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_page_s_languages_are_those_of_py3langid():
    pytest.importorskip("py3langid")
    texts = [text for row in SPOKEN.values() for text in row]
    texts += [text.upper() for text in texts]
    for language in ("en", "ru"):
        script = f"""
            import {{ LanguageTable }} from {json.dumps(CONFIDENCE)};
            const table = new LanguageTable({json.dumps(language_table(language))});
            console.log(JSON.stringify({json.dumps(texts)}.map((text) => table.isForeign(text))));
        """
        found, expected = node("--input-type=module", "-", input=script), are_foreign(texts, language)
        assert not any(there and not here for there, here in zip(found, expected, strict=True))
        assert sum(map(int.__eq__, found, expected)) >= 0.85 * len(texts)


def test_a_page_needs_neither_confidence_nor_a_detector(model, tmp_path, monkeypatch):
    assert export.write_confidence(str(model), tmp_path, ["en", "de"]) == []
    folder = calibrate(shutil.copytree(model, tmp_path / "model"))
    assert export.write_confidence(str(folder), tmp_path, []) == [FILE]
    assert export.write_confidence(str(folder), tmp_path, ["tlh", "de"]) == [FILE]  # Klingon
    language_table.cache_clear()
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    assert export.write_confidence(str(folder), tmp_path, ["en", "de"]) == [FILE]
    language_table.cache_clear()


def test_alignment_heads_are_those_of_the_generation_config(make_model):
    model = make_model()
    for heads in (None, [[0, 1]]):
        model.generation_config.alignment_heads = heads
        assert export.describe_model(model, "model", [], False)["alignmentHeads"] == heads
    model.generation_config.alignment_heads = [[0, 99]]
    with pytest.raises(UserError, match="alignment_heads"):
        export.describe_model(model, "model", [], False)


def test_search_settings_are_those_of_the_generation_config(make_model, caplog):
    model = make_model()
    settings = model.generation_config
    settings.decoder_start_token_id, settings.eos_token_id = 7, 9
    settings.repetition_penalty, settings.bad_words_ids = 1.5, [[5, 6], [8]]
    logging.getLogger("modeling_scratch").propagate = True
    described = export.describe_model(model, "model", ["pt-BR", "zh"], False)
    assert described["startToken"] == 7
    assert (described["search"]["endTokens"], described["search"]["suppressedTokens"]) == ([9], [8])
    assert described["title"] == "Portuguese (pt-BR) to Chinese"
    assert "repetition_penalty, bad_words_ids" in caplog.text


def test_a_page_is_complete_and_contains_no_local_paths(page, direction):
    described = read_described(page)
    parts = [described["shared"], *described["directions"]]
    for part in parts:
        assert part["bytes"] == sum((page / path).stat().st_size for path in part["files"].values())
    (model,) = described["directions"]
    assert (model["search"]["numBeams"], model["search"]["maxNewTokens"]) == (3, 20)
    assert model["longestSource"] == 60
    assert str(ROOT).encode() not in (direction / DECODER).read_bytes()


def test_names_contain_a_hash_of_the_content_and_all_but_two_files_are_kept_offline(page):
    there = {path.relative_to(page).as_posix(): path for path in page.rglob("*") if path.is_file()}
    fixed = {name for name in there if not re.search(r"-[0-9a-f]{10}\b", name)}
    assert fixed == {"index.html", "offline.js"}
    for name in there.keys() - fixed:
        assert hashlib.sha256(there[name].read_bytes()).hexdigest()[:10] in name
    lists = re.findall(r"const (?:needed|others) = (.*);", there["offline.js"].read_text())
    assert there.keys() - fixed == {name for names in lists for name in json.loads(names)}
    manifest = json.loads(next(page.glob("manifest-*.json")).read_text())
    assert manifest["name"]
    assert all((page / icon["src"]).is_file() for icon in manifest["icons"])
    index = there["index.html"].read_text()
    for name in re.findall(r"""(?:src|href|data-model)=["'](?!data:|#)([^"']*)""", index):
        assert name in there


@pytest.mark.slow
def test_a_page_of_two_models_has_both_directions(model, without_runtime, tmp_path):
    folders = [shutil.copytree(model, tmp_path / name) for name in ("one", "other")]
    for folder, languages in zip(folders, (("en", "de"), ("de", "en")), strict=True):
        save_tokenizers(*load_tokenizers(str(folder)), folder, languages=languages)
    with without_runtime():
        assert run("web", *folders, tmp_path / "page").exit_code == 0
        again = run("web", *folders, folders[0], tmp_path / "again")
    directions = read_described(tmp_path / "page")["directions"]
    assert [direction["codes"] for direction in directions] == [["en", "de"], ["de", "en"]]
    assert [direction["files"][ENCODER].partition("/")[0] for direction in directions] == ["en-de", "de-en"]
    others = json.loads(re.search(r"const others = (.*);", (tmp_path / "page" / "offline.js").read_text())[1])
    assert set(others) == {*directions[1]["files"].values()}
    assert (again.exit_code, again.output.count("\n")) == (2, 1)
    assert "another model goes from en to de too" in again.output


@pytest.mark.parametrize("order", [("teacher", "student"), ("student", "teacher")])
def test_of_two_models_of_a_direction_the_greedy_one_is_the_faster(order, model, without_runtime, tmp_path):
    for name, beams in (("teacher", 5), ("student", 1)):
        settings = json.loads((shutil.copytree(model, tmp_path / name) / "generation_config.json").read_text())
        (tmp_path / name / "generation_config.json").write_text(json.dumps(settings | {"num_beams": beams}))
    calibrate(tmp_path / "teacher")
    with without_runtime() as patch:
        without_onnx(patch)
        assert run("web", *(tmp_path / name for name in order), tmp_path / "page").exit_code == 0
        again = {name: run("web", model, tmp_path / "student", tmp_path / name, tmp_path / "no") for name in order}
    (faster,) = read_described(tmp_path / "page")["directions"]
    better = faster["better"]
    assert [each["search"]["numBeams"] for each in (faster, better)] == [1, 5]
    assert [each["title"] for each in (faster, better)] == ["student", "teacher"]
    assert faster["id"] != better["id"]
    assert better["files"].items() - faster["files"].items() == {
        (FILE, better["files"][FILE])
    }  # the others are the same
    lists = re.findall(r"const (?:needed|others) = (.*);", (tmp_path / "page" / "offline.js").read_text())
    needed, others = (set(json.loads(names)) for names in lists)
    assert others - needed == {better["files"][FILE]}
    assert json.loads(next((tmp_path / "page").glob("manifest-*.json")).read_text())["name"] == "student"
    for name, kind in (("teacher", "beam search"), ("student", "greedy search")):
        assert (again[name].exit_code, again[name].output.count("\n")) == (2, 1)
        assert (
            f"{tmp_path / name}: another model goes from source to target too, and both have {kind}"
            in again[name].output
        )
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("name", ["page", "page.html"])
def test_overwrite_replaces_a_page_alone_and_only_by_a_whole_one(name, trained, without_runtime, tmp_path):
    out = tmp_path / name
    with without_runtime() as patch:
        without_onnx(patch)
        assert run("web", trained, out, "--overwrite").exit_code == 0
        before = contents(out)
        for arguments, message in (((trained,), "exists"), (("none", "--overwrite"), "no such folder")):
            result = run("web", arguments[0], out, *arguments[1:])
            assert result.exit_code == 2
            assert message in result.output
        assert contents(out) == before
        assert run("web", trained, out, "--overwrite", "--int8").exit_code == 0
        assert contents(out) != before
        strange = out / "en-de" / "CNAME" if out.is_dir() else out
        strange.write_text("mine")
        before = contents(out)
        result = run("web", trained, out, "--overwrite")
        assert (result.exit_code, result.output.count("\n")) == (2, 1)
        assert str(strange) in result.output
        (tmp_path / "link").symlink_to(out)
        assert run("web", trained, tmp_path / "link", "--overwrite").exit_code == 2
    assert contents(out) == before
    assert {path.name for path in tmp_path.iterdir()} == {name, "link"}


@pytest.mark.parametrize("worker", [b"const a = ['x'];\n", b"const a = [];\n\xff\xfe"])
def test_overwrite_refuses_a_service_worker_of_others(worker, trained, tmp_path):
    (tmp_path / "offline.js").write_bytes(worker)
    result = run("web", trained, tmp_path, "--overwrite")
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert f"{tmp_path / 'offline.js'} is not of a page" in result.output
    assert contents(tmp_path) == {tmp_path / "offline.js": worker}


def test_overwrite_keeps_the_files_of_github_pages(trained, without_runtime, tmp_path):
    out = tmp_path / "page"
    with without_runtime() as patch:
        without_onnx(patch)
        assert run("web", trained, out).exit_code == 0
        (out / "CNAME").write_text("example.org")
        (out / ".nojekyll").touch()
        result = run("web", trained, out, "--overwrite", "--int8")
    assert result.exit_code == 0, result.output
    assert (out / "CNAME").read_text() == "example.org"
    assert (out / ".nojekyll").is_file()


def contents(out):
    files = [out] if out.is_file() else [path for path in sorted(out.rglob("*")) if path.is_file()]
    return {path: path.read_bytes() for path in files}


def without_onnx(patch) -> list[str]:
    """Exports pages without ONNX graphs. Returns a list of the files that are later quantized."""
    quantized = []
    patch.setattr(export, "export_onnx", lambda model, to: [(to / name).touch() for name in (ENCODER, DECODER)])
    patch.setattr(export, "OnnxScorer", lambda folder, search: None)
    patch.setattr(export, "verify_scores", lambda model, scorer: 0.0)
    patch.setattr(export, "quantize_weights", lambda path: quantized.append(path.name))
    return quantized


def test_one_file_has_no_references_and_the_facts_of_its_run(trained, without_runtime, tmp_path):
    out = tmp_path / "page.html"
    with without_runtime() as patch:
        quantized = without_onnx(patch)
        result = run("web", trained, out, "--int8")
    assert result.exit_code == 0, result.output
    assert quantized == [ENCODER, DECODER]
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    text = out.read_text()
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert "'self'" not in text.partition("<body>")[0].replace("worker-src 'self'", "")
    packed = json.loads(re.search(r'<script id="files" type="application/json">(.*)</script>', text)[1])
    (described,) = json.loads(gzip.decompress(base64.b64decode(packed["model.json"])))["directions"]
    assert described["title"] == "English to German"
    assert described["languages"] == ["en", "de"]
    assert described["examples"]
    facts = dict(described["facts"])
    assert re.fullmatch(r"BLEU [\d.]+ ± [\d.]+, chrF .*", facts["Scores on test"])
    assert facts["License"] == "apache-2.0"
    assert facts["Model"].endswith("8-bit weights")


def test_errors_are_one_line_and_leave_no_files(model, without_runtime, tmp_path):
    broken = shutil.copytree(model, tmp_path / "broken")
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((broken / name).read_text())
        (broken / name).write_text(json.dumps(settings | {"eos_token_id": None}))
    (tmp_path / "there").mkdir()
    for source, out, message in ((model, "there", "exists"), (broken, "page", "eos_token_id")):
        with without_runtime():
            result = run("web", source, tmp_path / out)
        assert (result.exit_code, result.output.count("\n")) == (2, 1)
        assert message in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"broken", "there"}
