"""Files through /translate_file: every format, downloads, limits, and hostile files and clients."""

import asyncio
import io
import json
import os
import socket
import zipfile
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from held_files import never_done_with_files
from services import PARTS, Slow, capitalizing, connected, get, in_event_loop, metric, multipart, post, running
from waiting import LONGEST, wait_until

from modeling_scratch.apps.documents import FORMATS
from modeling_scratch.apps.serve import parameters, service, storage
from modeling_scratch.apps.serve import texts as served_texts
from modeling_scratch.apps.serve.readers import Readers
from modeling_scratch.apps.serve.service import Limits
from modeling_scratch.apps.serve.storage import Downloads, translated_name
from modeling_scratch.errors import UserError

EN_DE = {"source": "en", "target": "de"}
LIMITS = Limits(characters=1_000, file_bytes=100_000)


@pytest.fixture(scope="module")
def url():
    with running(capitalizing(LIMITS)) as url:
        yield url


def form(content: bytes, name: str = "a.txt", **fields: str) -> bytes:
    return multipart(EN_DE | fields, content, name)


def sent(url: str, content: bytes, name: str = "a.txt", **fields: str) -> tuple[int, dict]:
    return post(f"{url}/translate_file", form(content, name, **fields), kind=PARTS)


def translated(url: str, content: bytes, name: str = "a.txt", **fields: str) -> bytes:
    status, answer = sent(url, content, name, **fields)
    assert status == 200, answer
    with urlopen(answer["translatedFileUrl"], timeout=LONGEST) as response:
        return response.read()


# -- translating -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"A cat.\r\n\r\n  A dog.", b"A CAT.\r\n\r\n  A DOG."),
        ("LICENSE", "\ufeffA cat.\n".encode("utf-16"), "\ufeffA CAT.\n".encode("utf-16")),
        ("a.md", b"# A cat\n\n`code`\n", b"# A CAT\n\n`code`\n"),
        ("A.HTML", b"<p>A <b>cat</b>.</p>", b"<p>A <b>CAT</b>.</p>"),
        ("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\nA cat.\n", b"1\n00:00:01,000 --> 00:00:02,000\nA CAT.\n"),
        ("a.txt", b"12\n", b"12\n"),
    ],
)
def test_a_file_is_translated_in_the_format_of_its_name(name, content, expected, url):
    assert translated(url, content, name) == expected


@pytest.fixture(scope="module")
def word_document():
    """The bytes of a document with two paragraphs."""
    document, file = pytest.importorskip("docx").Document(), io.BytesIO()
    document.add_paragraph("A cat.")
    document.add_paragraph("A dog.")
    document.save(file)
    return file.getvalue()


has_docx = pytest.mark.skipif("docx" not in FORMATS, reason="no reader of DOCX")


@has_docx
def test_a_binary_file_is_translated(word_document, url):
    import docx

    found = docx.Document(io.BytesIO(translated(url, word_document, "a.docx")))
    assert [paragraph.text for paragraph in found.paragraphs] == ["A CAT.", "A DOG."]
    status, answer = post(f"{url}/translate", {"q": "A cat.", "format": "docx"} | EN_DE)
    assert (status, "docx format is not supported" in answer["error"]) == (400, True)


def test_the_settings_name_every_ending(url):
    settings = json.loads(get(f"{url}/frontend/settings"))
    assert settings["filesTranslation"] is True
    assert set(settings["supportedFilesFormat"]) == {".txt"}.union(*(kind.endings for kind in FORMATS.values()))


def test_the_language_of_a_file_is_detected_in_its_text(url):
    tags = '<p class="the"><a href="https://the.example.org/">' * 9
    german = f"{tags}Der Lehrer gibt dem Kind ein Buch.".encode()
    assert translated(url, german, "a.html", source="auto") == german
    assert sent(url, german, "a.html", source="auto")[1]["detectedLanguage"]["language"] == "de"
    status, answer = sent(url, "我们明天去北京。".encode() * 20, source="auto")
    assert (status, answer["error"].split(":")[0]) == (400, "zh is not supported; the text is in Chinese; served")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("report.docx", "report.de.docx"),
        ("C:\\a\\ö 1.html", "ö 1.de.html"),
        ("../../etc/passwd", "passwd.de"),
        ("..", "file.de"),
        ("a\r\nb.txt", "ab.de.txt"),
        ("a" * 300 + ".txt", "a" * 96 + ".de.txt"),
    ],
)
def test_the_name_of_a_translated_file_names_its_language_and_no_folder(name, expected):
    assert translated_name(name, "de") == expected


def test_a_download_keeps_its_name_and_is_never_shown_as_a_page(url):
    address = sent(url, b"<script>1</script>A cat.", "ö 1.html")[1]["translatedFileUrl"]
    with urlopen(address, timeout=LONGEST) as response:
        assert response.headers["Content-Disposition"] == "attachment; filename*=utf-8''%C3%B6%201.de.html"
        assert response.headers["Content-Type"] == "application/octet-stream"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    secret, _, name = address.rpartition("/")[2].partition(".")
    assert (len(secret), name) == (22, "%C3%B6%201.de.html")  # 16 random bytes


def test_the_address_of_a_download_is_that_of_the_proxy():
    with running(capitalizing(LIMITS)) as url:
        headers = {"Content-Type": PARTS, "Host": "example.org", "X-Forwarded-Proto": "https"}
        request = Request(f"{url}/translate_file", data=form(b"A cat."), headers=headers)
        with urlopen(request, timeout=LONGEST) as response:
            assert response.read().startswith(b'{"translatedFileUrl":"https://example.org/download_file/')


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "words", "body"),
    [
        (400, "Invalid request: missing file parameter", multipart(EN_DE)),
        (400, "Invalid request: empty file", form(b"")),
        (400, "Invalid request: missing target parameter", form(b"A cat.").replace(b'"target"', b'"goal"')),
        (400, "Invalid request: file format not supported: a.pdf", form(b"%PDF", "a.pdf")),
        (400, "fr is not supported", form(b"A cat.", target="fr")),
        (400, "not valid UTF-8", form(b"A \x80 cat.", "a.md")),
        (400, "Too many files", form(b"A cat.")[:-7] + form(b"A dog.")),
        (400, "request (10002) exceeds text limit (10000)", form(b"A cat. \n" * 1667)),
        (413, "larger than 100,000 bytes", form(b"." * 100_001)),
        (413, "at most 100,000 bytes", form(b"." * 200_000)),
    ],
)
def test_wrong_files_are_refused(status, words, body, url):
    found, answer = post(f"{url}/translate_file", body, kind=PARTS)
    assert (found, words in answer["error"]) == (status, True), answer


def test_files_can_be_switched_off():
    with running(capitalizing(Limits(file_bytes=0))) as url:
        status, answer = sent(url, b"A cat.")
        assert (status, answer["error"]) == (403, "Files translation are disabled on this server.")
        assert '"filesTranslation":false' in get(f"{url}/frontend/settings")


def test_a_download_is_deleted_after_a_while_and_when_the_service_ends():
    served = capitalizing(LIMITS)
    with running(served) as url:
        sent(url, b"A cat.")
        folder = served.downloads._folder
        (path,) = folder.iterdir()
        assert path.read_bytes() == b"A CAT."
        served.downloads._seconds = 0.1
        address = sent(url, b"A dog.")[1]["translatedFileUrl"]
        wait_until(lambda: list(folder.iterdir()) == [path])
        for name in (address, f"{url}/download_file/..%2f..%2fetc%2fpasswd", f"{url}/download_file/a"):
            with pytest.raises(HTTPError, match="404"):
                urlopen(name, timeout=LONGEST)
    assert not folder.exists()


def test_the_oldest_downloads_make_room_for_new_ones(monkeypatch):
    monkeypatch.setattr(storage, "_MOST_BYTES", 10)

    async def check():
        with Downloads(60) as downloads:
            added = [await downloads.add("a.txt", content) for content in (b"1234", b"5678", b"90")]
            assert len(await downloads.add("b.txt", b"1")) == 28
            assert [downloads.find(address) is not None for address in added] == [False, True, True]
            path, name = downloads.find(added[1])
            assert (path.read_bytes(), name) == (b"5678", "a.txt")

    asyncio.run(check())


def test_few_files_are_translated_at_the_same_time(monkeypatch):
    monkeypatch.setattr(service, "_MOST_FILES", 2)
    engine = Slow()
    served = capitalizing(LIMITS, engine=engine)
    with running(served) as url, ThreadPoolExecutor(2) as clients:
        waiting = [clients.submit(sent, url, b"A cat.") for _ in range(2)]
        wait_until(lambda: served._files_now == 2)
        status, answer = sent(url, b"A cat.")
        assert (status, answer["error"]) == (429, "Slowdown: 2 files are being translated; try again later")
        engine.go.set()
        assert [request.result()[0] for request in waiting] == [200, 200]
        assert sent(url, b"A cat.")[0] == 200


def test_a_long_file_leaves_room_in_the_queue_for_others():
    engine = Slow()
    with running(capitalizing(Limits(waiting=300), engine=engine)) as url, ThreadPoolExecutor(2) as clients:
        lines = "".join(f"Cat {number}.\n" for number in range(2_000))
        long = clients.submit(sent, url, lines.encode())
        wait_until(lambda: metric(url, "scratch_waiting_sentences") >= 1_900)
        short = clients.submit(post, f"{url}/translate", {"q": "A dog."} | EN_DE)
        # 1,936 of the file: the first 64 are translated
        wait_until(lambda: metric(url, "scratch_waiting_sentences") == 1_937)
        engine.go.set()
        assert short.result() == (200, {"translatedText": "A DOG."})
        assert long.result()[0] == 200
        assert any("A dog." in texts for texts in engine.batches[:3])


# -- hostile files and clients -----------------------------------------------------------------------------------------


def test_a_file_that_takes_too_long_is_refused_and_delays_no_texts(monkeypatch, tmp_path):
    monkeypatch.setattr(served_texts, "sentences_of", never_done_with_files)
    os.mkfifo(tmp_path / "pipe")
    served = capitalizing(Limits(file_bytes=100_000))
    served.readers._all["files"]._seconds = 0.1
    with open(tmp_path / "pipe", "r+b", buffering=0) as pipe, running(served) as url, ThreadPoolExecutor(1) as clients:
        slow = clients.submit(sent, url, bytes(tmp_path / "pipe"))
        wait_until(lambda: served._files_now)
        assert post(f"{url}/translate", {"q": "A cat. " * 900} | EN_DE)[0] == 200
        assert not slow.done()
        pipe.write(b".")
        status, answer = slow.result()
        assert (status, "seconds to read" in answer["error"]) == (400, True), answer


@has_docx
def test_a_file_that_is_small_only_because_it_is_compressed_is_refused(word_document, url):
    bomb = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(word_document)) as whole, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        for name in whole.namelist():
            file.writestr(name, whole.read(name).replace(b"A cat.", b"A cat. " * 5_000_000))
    status, answer = sent(url, bomb.getvalue(), "a.docx")
    assert (status, len(answer["error"].splitlines())) == (400, 1), answer
    assert translated(url, b"A cat.") == b"A CAT."


@in_event_loop
async def test_a_file_that_takes_too_much_memory_is_refused():
    async with Readers(60.0) as reading:
        with pytest.raises(UserError, match="1,073,741,824 bytes of memory"):
            await reading(bytearray, 2**31)
        assert await reading(bytearray, 10) == bytearray(10)


def begin_upload(client: socket.socket) -> None:
    """Send a third of a file."""
    head = f"POST /translate_file HTTP/1.1\r\nHost: x\r\nContent-Type: {PARTS}\r\nContent-Length: 90000\r\n\r\n"
    client.sendall(head.encode() + b"." * 30_000)


def test_uploads_that_take_too_much_memory_together_are_refused(monkeypatch):
    monkeypatch.setattr(parameters, "_MOST_ARRIVING", 50_000)
    served = capitalizing(LIMITS)
    with running(served) as url:
        with connected(url) as first, connected(url) as second:
            begin_upload(first)
            wait_until(lambda: served.bodies._arriving == 30_000)
            begin_upload(second)
            assert second.recv(100).startswith(b"HTTP/1.1 429")
        wait_until(lambda: served.bodies._arriving == 0)
        assert sent(url, b"A cat.")[0] == 200


def test_a_slow_upload_ends(monkeypatch):
    monkeypatch.setattr(service, "_TIMES", 1)
    served = capitalizing(Limits(seconds=0.2, file_bytes=100_000))
    with running(served) as url, connected(url) as client:
        begin_upload(client)
        assert client.recv(100).startswith(b"HTTP/1.1 408")
        assert served.bodies._arriving == 0


def test_a_file_of_a_client_that_disconnects_is_given_up():
    engine = Slow()
    served = capitalizing(LIMITS, engine=engine)
    with running(served) as url:
        body = form(b"A cat.")
        with connected(url) as client:
            head = f"POST /translate_file HTTP/1.1\r\nHost: x\r\nContent-Type: {PARTS}\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: served._files_now)
        wait_until(lambda: not served._files_now)
        assert 'path="/translate_file",status="499"' in get(f"{url}/metrics")
        engine.go.set()
