"""
Measure the training speed of whole trainers, by their own commands: this project's train.py in float32 and in bf16,
Marian in C++, JoeyNMT and Eole. Each of the others is installed into its own environment. All read the same tokens
(this project's, written out as words), and train the shape of the recipe multi30k-en-de with its limit on tokens per
batch.

    python benchmarks/trainers.py TRAINING_FILES --work FOLDER    # a prefix, as data.train_files takes it

The speed is that of the epochs after the first: the time of a run of several epochs minus that of a run of one, so that
start-up and first compilations do not count. The trainers take turns, for several rounds.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import peers
from trainer_commands import RECIPE, TRAINERS, Trainer, Work
from transformers import PreTrainedTokenizerBase

from modeling_scratch.data.sources import source_of
from modeling_scratch.data.tokenizer import texts, train_tokenizer
from modeling_scratch.recipe.reading import load_recipe, model_fields
from modeling_scratch.recipe.schema import DataSection


def write_words(path: Path, tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> int:
    """Write the tokens of each line, and return their number, counting the end token that every trainer adds."""
    rows = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(lines).input_ids]
    path.write_text("".join(" ".join(row[:-1]) + "\n" for row in rows), encoding="utf-8")
    return sum(map(len, rows))


def prepare(prefix: str, folder: Path, pairs: int | None, tokenizer: PreTrainedTokenizerBase | None = None) -> Work:
    """
    Write the data and vocabularies that all trainers read, from this many pairs (None: all), with a new tokenizer if
    none is given.
    """
    recipe = load_recipe(RECIPE)
    section = DataSection(train_files=prefix, source_language="en", target_language="de")
    sources, targets = texts(source_of("train", section, 0).load())
    tokenizer = tokenizer or train_tokenizer(iter([sources, targets]), recipe.tokenizer.vocab_size)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder / "tokenizer")
    count = 0
    for side, language, lines in (("source", "en", sources), ("target", "de", targets)):
        count = write_words(folder / f"train.{side}", tokenizer, lines[:pairs])
        write_words(folder / f"dev.{side}", tokenizer, lines[:10])
        for name, part in (("plain", slice(pairs)), ("few", slice(10))):
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines[part]), encoding="utf-8")
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    ordinary = [token for token in tokens if token not in ("<pad>", "<s>", "</s>", "<unk>")]
    words = ["</s>", "<unk>", *ordinary]
    vocabulary = "".join(f"{json.dumps(word)}: {index}\n" for index, word in enumerate(words))
    (folder / "vocabulary.yml").write_text(vocabulary, encoding="utf-8")
    for name, padding in (("joeynmt", "<pad>"), ("eole", "<blank>")):
        words = ["<unk>", padding, "<s>", "</s>", *ordinary]
        (folder / f"vocabulary.{name}").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    how, size = recipe.optimization, len(sources[:pairs])
    return Work(folder, model_fields(recipe.model), how.tokens_per_batch, how.learning_rate, size, count, tokenizer)


def install(name: str, trainer: Trainer, folder: Path) -> str:
    """The Python of the trainer's environment, which is created if it does not exist."""
    if not trainer.packages:
        return sys.executable
    environment = folder / re.sub(r"\W+", "-", name.lower())
    python = environment / "bin" / "python"
    if not (environment / "installed").exists():
        print(f"installing {name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *trainer.packages], check=True)
        (environment / "installed").touch()
    return str(python)


def run(name: str, python: str, work: Work, epochs: int) -> tuple[float, int]:
    """The seconds of a run, and the target tokens that it processes."""
    trainer, log = TRAINERS[name], work.folder / "log.txt"
    command = [python, *trainer.command(work, epochs)]
    began = time.perf_counter()
    with log.open("w") as file:
        if subprocess.run(command, stdout=file, stderr=file, cwd=work.folder).returncode:
            raise SystemExit(f"{' '.join(command)} failed; its output is in {log}")
    seconds = time.perf_counter() - began
    return seconds, trainer.tokens(log.read_text()) if trainer.tokens else epochs * work.target_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="prefix of the training files, in English and German")
    parser.add_argument("--work", type=Path, required=True, help="a folder for environments, data and models")
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=list(TRAINERS))
    parser.add_argument("--pairs", type=int, default=8000, help="of the training files, in an epoch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    pythons = {name: install(name, TRAINERS[name], options.work.resolve()) for name in options.trainers}
    work = prepare(options.train, options.work.resolve() / "data", options.pairs)
    print(
        f"{peers.describe_machine()}; {work.pairs:,} pairs, {work.target_tokens:,} target tokens an epoch", flush=True
    )
    rates: dict[str, list[float]] = {name: [] for name in options.trainers}
    for _ in range(options.rounds):
        for name, python in pythons.items():
            (short, few), (long, many) = (run(name, python, work, epochs) for epochs in (1, TRAINERS[name].epochs))
            rates[name].append((many - few) / (long - short))
            print(f"  {name}: {rates[name][-1]:,.0f} target tokens a second", flush=True)
    print("\n| | target tokens a second | the first is times as fast (lowest to highest) |\n|---|---|---|")
    first = rates[options.trainers[0]]
    for name, each in rates.items():
        print(f"| {name} | {statistics.median(each):,.0f} | {peers.spread(peers.quotients(first, each))} |")
    peers.write_json(rates, options.json)


if __name__ == "__main__":
    main()
