"""Who may use the service, and how much: keys, rates, proxies, metrics."""

import json
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from services import capitalizing, get, post, running
from starlette.exceptions import HTTPException
from waiting import LONGEST

from modeling_scratch.apps.serve import clients
from modeling_scratch.apps.serve.clients import Client, Clients
from modeling_scratch.commands import serve
from modeling_scratch.errors import UserError

EN_DE = {"source": "en", "target": "de"}
ABC = {"q": "abc"} | EN_DE
ASK, WRONG = "Please contact the server operator to get an API key", "Invalid API key"


def answer(url: str, path: str = "/languages", **headers: str) -> tuple[int, dict[str, str]]:
    """The status and headers of a GET request."""
    try:
        with urlopen(Request(url + path, headers=headers), timeout=LONGEST) as response:
            return response.status, dict(response.headers)
    except HTTPError as error:
        return error.code, dict(error.headers)


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text('[few]\nkey = "a"\nrequests_per_minute = 2\nmax_characters = 5\n\n[others]\nkey = "ö"\n')
    return path


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_request_needs_a_key_and_a_wrong_one_is_refused(keys):
    with running(capitalizing(clients=Clients(3, key="secret", path=keys))) as url:
        for given, expected in (({}, (400, ASK)), ({"api_key": None}, (400, ASK)), ({"api_key": ""}, (400, ASK))):
            status, found = post(f"{url}/translate", ABC | given)
            assert (status, found["error"]) == expected
        for path in ("/translate", "/detect", "/page/sentences", "/page/translate", "/translate_file"):
            status, found = post(url + path, ABC | {"api_key": "b"})
            assert (status, found["error"]) == (403, WRONG)
        for key in ("a", "ö", "secret"):
            assert post(f"{url}/translate", ABC | {"api_key": key}) == (200, {"translatedText": "ABC"})
            assert post(f"{url}/translate?api_key={quoted(key)}", ABC)[0] == 200
        settings = json.loads(get(f"{url}/frontend/settings"))
        assert (settings["apiKeys"], settings["keyRequired"]) == (True, True)
        assert json.loads(get(f"{url}/health")) == {"status": "ok"}


def quoted(key: str) -> str:
    return "".join(f"%{byte:02x}" for byte in key.encode())


def test_keys_have_limits_of_their_own(keys):
    with running(capitalizing(clients=Clients(3, path=keys))) as url:
        error = "Invalid request: request (4) exceeds text limit (3)"
        assert post(f"{url}/translate", ABC | {"q": "abcd", "api_key": "ö"}) == (400, {"error": error})
        for status in (200, 200, 429):
            assert post(f"{url}/translate", ABC | {"q": "abcde", "api_key": "a"})[0] == status
        assert post(f"{url}/translate", ABC | {"api_key": "ö"})[0] == 200


def test_optional_keys_lift_the_limit_of_addresses(keys):
    with running(capitalizing(clients=Clients(3, 1, path=keys, are_keys_optional=True))) as url:
        assert [post(f"{url}/translate", ABC)[0] for _ in range(2)] == [200, 429]
        assert [post(f"{url}/translate", ABC | {"api_key": "a"})[0] for _ in range(2)] == [200, 200]
        settings = json.loads(get(f"{url}/frontend/settings"))
        assert (settings["apiKeys"], settings["keyRequired"]) == (True, False)


def test_wrong_keys_count_against_their_address_and_a_key_of_the_file_has_a_count_of_its_own(keys):
    with running(capitalizing(clients=Clients(3, 2, key="secret", path=keys))) as url:
        guesses = [post(f"{url}/translate", ABC | {"api_key": f"guess {number}"})[0] for number in range(4)]
        assert guesses == [403, 403, 429, 429]
        assert post(f"{url}/translate", ABC | {"api_key": "secret"})[0] == 429  # which many may share
        assert [post(f"{url}/translate", ABC | {"api_key": "ö"})[0] for _ in range(3)] == [200, 200, 429]


def test_the_file_of_keys_is_read_again_when_it_changes_unless_it_is_wrong(keys, caplog):
    known = Clients(3, path=keys)
    request = SimpleNamespace(client=None)
    assert known.sender(request, {"api_key": "a"}) == Client("key few", 5, 2)
    keys.write_text('[more]\nkey = "b"\nmax_characters = 7\n')
    assert known.sender(request, {"api_key": "b"}) == Client("key more", 7)
    with pytest.raises(HTTPException, match=WRONG):
        known.sender(request, {"api_key": "a"})
    keys.write_text("[more")
    assert known.sender(request, {"api_key": "b"}) == Client("key more", 7)
    assert "stay as they were" in caplog.text
    assert known.most_characters == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("key", "cannot be read as TOML"),
        ('key = "a"', r"\[key\] must have a key"),
        ("[a]\nkey = 1", r"\[a\] must have a key"),
        ('[a]\nkey = "a"\nrequests = 1', "unknown requests"),
        ('[a]\nkey = "a"\nmax_characters = 0', "max_characters must be a whole number"),
        ('[a]\nkey = "a"\n[b]\nkey = "a"', r"\[b\]: it has the same key as \[a\]"),
    ],
)
def test_a_wrong_file_of_keys_is_an_error(text, words, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        Clients(3, path=path)
    with pytest.raises(UserError, match="no such file"):
        Clients(3, path=tmp_path / "other.toml")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"api_key": "secret \udcff"}, "--api-key: it must be UTF-8"),
        ({"metrics_key": ""}, "--metrics-key: it is empty"),
        ({"forwarded_allow_ips": "127.0.0.1, nginx"}, "--forwarded-allow-ips: 'nginx' does not appear"),
        ({"forwarded_allow_ips": "172.16.0.1/12"}, "--forwarded-allow-ips: 172.16.0.1/12 has host bits set"),
    ],
)
def test_keys_that_no_request_can_send_and_proxies_without_address_are_refused(options, words, capsys):
    with pytest.raises(SystemExit):
        serve.main(["no-model"], port=0, **options)
    assert words in capsys.readouterr().err


# -- rates -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    found = SimpleNamespace(now=1e6)
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: found.now))  # asyncio keeps its own
    return found


def admitted(known: Clients, client: Client, requests: int = 1) -> bool:
    try:
        known.admit(client, requests)
    except HTTPException:
        return False
    return True


def test_a_client_may_send_the_requests_of_a_minute_at_once_and_then_at_its_rate(clock):
    known, client = Clients(3), Client("a", 3, 6)
    assert [admitted(known, client) for _ in range(8)] == [True] * 6 + [False] * 2
    clock.now += 9.9
    assert not admitted(known, client)
    clock.now += 0.1
    assert [admitted(known, client) for _ in range(2)] == [True, False]
    assert admitted(known, Client("b", 3, 6))
    clock.now += 600
    assert [admitted(known, client) for _ in range(7)] == [True] * 6 + [False]


def test_a_list_of_texts_counts_as_many_requests_but_never_more_than_those_of_a_minute(clock):
    known, client = Clients(3), Client("a", 3, 6)
    assert admitted(known, client, 4)
    assert not admitted(known, client, 3)
    assert admitted(known, client, 2)
    clock.now += 60
    assert admitted(known, client, 100)
    clock.now += 59
    assert not admitted(known, client, 6)


def test_clients_that_are_within_their_rate_are_forgotten(clock):
    known = Clients(3)
    for number in range(10_000):
        admitted(known, Client(str(number), 3, 60))
        clock.now += 0.1
    assert len(known._busy_until) <= 1_001


def test_a_client_over_its_rate_gets_libretranslate_s_error_and_the_time_to_wait(clock):
    with running(capitalizing(clients=Clients(3, 2))) as url:
        assert post(f"{url}/translate", ABC | {"q": ["a", "b"]})[0] == 200
        status, found = post(f"{url}/detect", ABC)
        assert status == 429
        assert found["error"].startswith("Slowdown: 2 per minute")
        with pytest.raises(HTTPError) as error:
            urlopen(Request(f"{url}/translate", data=b"q=a&source=en&target=de"), timeout=LONGEST)
        assert error.value.headers["Retry-After"] == "30"
        assert answer(url)[0] == 200  # only what is work counts
        assert post(f"{url}/translate", {"q": "abcd"} | EN_DE)[0] == 400  # wrong requests say what is wrong


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),  # one client has all addresses of such a network
        ("unix", "unix"),
    ],
)
def test_clients_are_told_apart_by_address(host, name):
    request = SimpleNamespace(client=SimpleNamespace(host=host))
    assert Clients(3).sender(request, {}).name == name


def test_the_address_is_taken_from_proxies_that_are_trusted_and_no_others(clock):
    for trusted, statuses in (("127.0.0.1", [200, 200, 429]), ("192.0.2.0/24", [200, 429, 429])):
        with running(capitalizing(clients=Clients(3, 1)), forwarded_allow_ips=trusted) as url:
            found = []
            for client in ("203.0.113.1", "203.0.113.2", "198.51.100.9, 203.0.113.1"):
                request = Request(f"{url}/translate", data=b"q=a&source=en&target=de")
                request.add_header("X-Forwarded-For", client)
                try:
                    found.append(urlopen(request, timeout=LONGEST).status)
                except HTTPError as error:
                    found.append(error.code)
            assert found == statuses


# -- for operators -----------------------------------------------------------------------------------------------------


def test_metrics_are_for_this_machine_or_for_those_with_their_key():
    with running(capitalizing()) as url:
        assert answer(url, "/metrics")[0] == 200
        assert answer(url, "/metrics", **{"X-Forwarded-For": "203.0.113.1"})[0] == 401
    with running(capitalizing(metrics_key="secret")) as url:
        assert answer(url, "/metrics")[0] == 401
        assert answer(url, "/metrics", Authorization="Bearer wrong")[0] == 401
        assert answer(url, "/metrics", Authorization="Bearer secret")[0] == 200
        assert answer(url, "/metrics", **{"X-Forwarded-For": "203.0.113.1", "Authorization": "Bearer secret"})[0] == 200


def test_long_answers_are_compressed_for_clients_that_ask_for_it():
    with running(capitalizing()) as url:
        for path, kind in (("/spec", "gzip"), ("/languages", None)):
            assert answer(url, path, **{"Accept-Encoding": "gzip"})[1].get("content-encoding") == kind
        assert "content-encoding" not in answer(url, "/spec")[1]
