"""`scratch serve`: run an HTTP service with LibreTranslate's API and a web page."""

import ipaddress
import logging
import socket
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError, as_user_error
from ..inference.engine import EngineName, option_for_ctranslate2
from .cli import Debug, Dtype, hide_bars_of_transformers, log_to_terminal, one_line_errors

logger = logging.getLogger(__name__)

_LONGEST_TIMEOUT = 86_400
_BACKLOG = 2_048


def main(
    models: Annotated[
        list[str],
        typer.Argument(
            help="a model folder or Hub name for each direction; en:de=FOLDER if it does not name its languages, or to "
            "name the sides of a model without languages"
        ),
    ],
    host: Annotated[str, typer.Option(help="an address of this machine; 0.0.0.0: all of them")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 5000,
    engine: Annotated[
        EngineName,
        typer.Option(
            help="what runs the models; auto: CTranslate2 with --dtype int8, else PyTorch, for the word alignments "
            "that tags and the page need"
        ),
    ] = "auto",
    dtype: Dtype = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, max=256, help="processes that run the models; 0: the service's own; default: one per core"),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="SCRATCH_API_KEY", help="which requests must send; safer in the environment"),
    ] = None,
    api_keys: Annotated[
        Path | None, typer.Option(help="a TOML file of keys with limits of their own, read again when it changes")
    ] = None,
    key_optional: Annotated[bool, typer.Option(help="requests without a key are served too")] = False,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="the most that an address may send; default: any number")
    ] = None,
    forwarded_allow_ips: Annotated[
        str,
        typer.Option(help="addresses or networks of proxies whose X-Forwarded headers are believed; commas between"),
    ] = "127.0.0.1,::1",
    max_characters: Annotated[
        int,
        typer.Option(min=1, help="the most characters of a text; ten times as many in a list of texts or a file"),
    ] = 20_000,
    max_file_bytes: Annotated[
        int, typer.Option(min=0, max=100_000_000, help="the largest file that is translated; 0: none is")
    ] = 10_000_000,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="waiting sentences at which requests are refused; the most texts in a request")
    ] = 2_048,
    timeout: Annotated[
        float, typer.Option(help="seconds until a request is refused; ten times that for a file")
    ] = 60.0,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="an origin whose pages may call it, such as https://example.org; *: all"),
    ] = None,
    suggestions: Annotated[
        Path | None, typer.Option(help="a folder for the translations that users suggest; default: they are refused")
    ] = None,
    metrics_key: Annotated[
        str | None,
        typer.Option(envvar="SCRATCH_METRICS_KEY", help="a bearer token for /metrics; default: only for this machine"),
    ] = None,
    debug: Debug = False,
) -> None:
    """
    Serve models until Ctrl-C: a page at /, and LibreTranslate's interface, so that its clients work. Requests that come
    together share batches. Text is cut into sentences, or into lines where the model has no languages, and keeps its
    line breaks.
    """
    log_to_terminal(uses_transformers=False)
    with one_line_errors(debug), as_user_error(kinds=ValueError):
        for option, value in (("--api-key", api_key), ("--metrics-key", metrics_key)):
            if value == "":
                raise UserError(f"{option}: it is empty")
            if value and value != value.encode(errors="replace").decode():
                raise UserError(f"{option}: it must be UTF-8 text, since requests cannot send anything else")
        for proxy in forwarded_allow_ips.split(",") if forwarded_allow_ips != "*" else ():
            with as_user_error("--forwarded-allow-ips: "):
                ipaddress.ip_network(proxy.strip())
        is_torch = option_for_ctranslate2(engine, dtype) is None
        if is_torch:
            hide_bars_of_transformers()
        if not 0 < timeout <= _LONGEST_TIMEOUT:
            raise UserError(f"--timeout {timeout:g}: it must be more than 0 and at most {_LONGEST_TIMEOUT:,} seconds")
        from ..apps.serve.clients import Clients
        from ..apps.serve.engines import ENGINES, Directions, load_direction
        from ..apps.serve.service import Limits, Service
        from ..apps.serve.storage import Suggestions
        from ..apps.translate.workers import Pool, before_forking, worker_count
        from ..inference.engine import cores_of_process

        clients = Clients(max_characters, requests_per_minute, api_key, api_keys, key_optional)
        kept = Suggestions(suggestions) if suggestions else None
        with listening(host, port) as listener:  # before the models: fails fast if the port is taken
            with before_forking() if is_torch else nullcontext(cores_of_process()) as cores:
                load = partial(ENGINES["torch" if is_torch else "ctranslate2"], dtype=dtype)
                directions = Directions(load_direction(model, load) for model in models)
                engines = [direction.engine for direction in directions.all]
                count = worker_count(workers, all(engine.can_fork for engine in engines), cores)
                pool = Pool(engines, count, cores, listener)
            limits = Limits(max_characters, max_waiting, timeout, max_file_bytes)
            service = Service(directions, limits, clients, tuple(allow_origin or ()), pool, kept, metrics_key)
            _run(service.app, listener, forwarded_allow_ips)


class _Listener(socket.socket):
    """
    A listening socket that keeps its backlog. asyncio would set it to the number of connections that it accepts in a
    row, which is one here: each failure for lack of file descriptors would schedule that many retries.
    """

    def listen(self, backlog: int = 0) -> None:
        super().listen(_BACKLOG)


def listening(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UserError if the address cannot be bound."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = _Listener(fileno=socket.create_server((host, port), family=family, backlog=_BACKLOG).detach())
        # asyncio sets this only on sockets that it creates; without it, a response waits 40 ms for a delayed ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, UnicodeError) as error:  # the latter for a name that cannot be one of a machine
        reason = str(getattr(error, "strerror", error)).partition(" (while")[0]
        raise UserError(f"--host {host} --port {port}: {reason}; choose another") from error


def make_server(app, **options):
    """A uvicorn server, with further options."""
    import uvicorn

    config = uvicorn.Config(app, loop="asyncio", backlog=1, server_header=False, ws="none", **options)
    return uvicorn.Server(config)


def _run(app, listener: socket.socket, proxies: str) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    logger.info(f"serving at http://{shown}:{port}; Ctrl-C ends")
    try:
        options = {"log_level": "warning", "timeout_graceful_shutdown": 10, "forwarded_allow_ips": proxies}
        make_server(app, **options).run(sockets=[listener])
    except KeyboardInterrupt:  # re-raised by uvicorn after a graceful shutdown
        logger.info("ended")
