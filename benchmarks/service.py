"""
What a service costs: sentences a second of one batch job (all sentences at once) and of `scratch serve`
with several clients, each of which sends a text and waits for its translation. In turn, several rounds; then the
latency of one client alone.

    python benchmarks/service.py FOLDER SOURCES [--engine ctranslate2] [--clients 32] [--sentences 10] [--pair de:en]

FOLDER holds a trained model, SOURCES a sentence a line; --sentences is how many of them a text has (default: 1).
"""

import argparse
import json
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

JOB = """
import sys, time
from modeling_scratch.apps.serve.engines import ENGINES
from modeling_scratch.inference.translate import Translator

engine = ENGINES[sys.argv[2]](sys.argv[1])
def translate(sentences):
    if isinstance(engine, Translator):
        return engine.translate(sentences)
    return engine.translate_batch(sentences, engine.tokenize(sentences))

sentences = open(sys.argv[3], encoding="utf-8").read().splitlines()
translate(sentences[:64])
print(flush=True)
for _ in sys.stdin:
    start = time.perf_counter()
    translate(sentences)
    print(time.perf_counter() - start, flush=True)
"""


def batch_job(folder: str, engine: str, sources: str) -> tuple[subprocess.Popen, Callable[[], float]]:
    """A process that translates all sentences on request, and a function that requests this and returns the seconds."""
    command = [sys.executable, "-c", JOB, folder, engine, sources]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while process.stdout.readline() != "\n":
        assert process.poll() is None

    def seconds() -> float:
        print(file=process.stdin, flush=True)
        return float(process.stdout.readline())

    return process, seconds


def started_service(folder: str, engine: str, pair: str) -> tuple[subprocess.Popen, int]:
    """Start a service, and return it and its port."""
    command = [sys.executable, "-m", "modeling_scratch", "serve", f"{pair}={folder}", "--port", "0", "--engine", engine]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "serving at" in line:
            return process, int(line.partition(";")[0].rpartition(":")[2])
    raise SystemExit("the service did not start")


class Clients:
    """
    Clients that each keep a connection open, and send a text as soon as the previous one is translated. They take turns
    in one thread, and check only the status of an answer, to leave the cores to the service.
    """

    def __init__(self, port: int, number: int, pair: str):
        self.address, self.number = ("127.0.0.1", port), number
        self.source, self.target = pair.split(":")

    def seconds(self, texts: list[str]) -> tuple[float, list[float]]:
        """Translate all texts, and return the seconds for all and for each."""
        requests = [self._request(text) for text in texts]
        waiting, each = iter(requests), []
        with selectors.DefaultSelector() as selector:
            started = time.perf_counter()
            for _, request in zip(range(self.number), waiting, strict=False):
                connection = socket.create_connection(self.address)
                connection.sendall(request)
                selector.register(connection, selectors.EVENT_READ, [time.perf_counter(), b""])
            while selector.get_map():
                for key, _ in selector.select():
                    sent, answer = key.data
                    received = key.fileobj.recv(65_536)
                    assert received, "the service has closed a connection"
                    answer += received
                    if not _is_whole(answer):
                        key.data[1] = answer
                        continue
                    assert answer.startswith(b"HTTP/1.1 200 "), answer
                    each.append(time.perf_counter() - sent)
                    request = next(waiting, None)
                    if request is None:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
                    else:
                        key.fileobj.sendall(request)
                        key.data[:] = time.perf_counter(), b""
            return time.perf_counter() - started, each

    def _request(self, text: str) -> bytes:
        body = json.dumps({"q": text, "source": self.source, "target": self.target}).encode()
        head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _is_whole(answer: bytes) -> bool:
    head, separator, body = answer.partition(b"\r\n\r\n")
    return bool(separator) and len(body) == int(re.search(rb"(?i)content-length: (\d+)", head)[1])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("sources")
    parser.add_argument("--engine", choices=["torch", "ctranslate2"], default="torch")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--sentences", type=int, default=1, help="of a text")
    parser.add_argument("--pair", default="en:de", help="the languages of the model")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    sentences = Path(arguments.sources).read_text(encoding="utf-8").splitlines()
    job, job_seconds = batch_job(arguments.folder, arguments.engine, arguments.sources)
    size = arguments.sentences
    texts = ["\n".join(sentences[start : start + size]) for start in range(0, len(sentences), size)]
    service, port = started_service(arguments.folder, arguments.engine, arguments.pair)
    try:
        Clients(port, arguments.clients, arguments.pair).seconds(texts[:100])
        ratios, latencies = [], []
        what = f"{len(sentences):,} sentences, {arguments.engine}, {arguments.clients} clients, {size} in a request"
        print(f"{what}; sentences a second")
        for _ in range(arguments.rounds):
            whole = job_seconds()
            # New clients, since the service closes connections that are idle for five seconds.
            served, each = Clients(port, arguments.clients, arguments.pair).seconds(texts)
            latencies += each
            ratios.append(whole / served)
            rates = f"batch job {len(sentences) / whole:8,.1f}   service {len(sentences) / served:8,.1f}"
            print(f"{rates}   {whole / served:.0%}", flush=True)
        alone = Clients(port, 1, arguments.pair).seconds(texts[:100])[1]
        print(f"median {statistics.median(ratios):.0%} of the batch job's throughput")
        for name, seconds in ((f"{arguments.clients} clients", latencies), ("one client alone", alone)):
            middle, high = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
            print(f"milliseconds a request, {name}: median {1000 * middle:.0f}, 95 % within {1000 * high:.0f}")
    finally:
        for process in (service, job):
            process.terminate()


if __name__ == "__main__":
    main()
