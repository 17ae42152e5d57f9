"""
Minutes of training to reach a BLEU (greedy, sacreBLEU's 13a, cased) on a validation split. Evaluation is not counted.

    python benchmarks/time_to_bleu.py TRAINING_FILES VALIDATION_FILES --work FOLDER --peer marian
    python benchmarks/time_to_bleu.py TRAINING_FILES VALIDATION_FILES --peer seq2seqtrainer
    python benchmarks/time_to_bleu.py TRAINING_FILES VALIDATION_FILES --work FOLDER --only-marian MINUTES

The files are prefixes, as data.train_files takes them. Against Marian in C++, which is installed into an environment of
its own, both read the same tokens with settings that suit each: train.py those of the recipe multi30k-en-de and
`--overrides`, Marian those of MARIAN below and `--marian`, for a post-norm model of the size of tiny. Against
Seq2SeqTrainer with MarianMTModel, both have the same shape, learning rate and schedule, label smoothing, dropout and,
on average, pairs an update; Seq2SeqTrainer makes its default batches: a fixed number of pairs in random order, each
padded to its longest. With --only-marian, nothing but Marian is trained, for these minutes, from new weights or from
those of a post-norm model (--start-from); `frontier.py` translates with it.
"""

import argparse
import contextlib
import json
import math
import re
import subprocess
import tempfile
import time
from pathlib import Path
from unittest import mock

import figures
import peers
import torch
import trainer_commands
import trainers
import yaml
from matplotlib.figure import Figure

# Against Seq2SeqTrainer: as MarianMTModel has it.
SAME = [
    "model.config=tiny",
    "model.overrides.norm_position=post",
    "model.overrides.final_norm=false",
    "model.overrides.dropout=0.2",
    "model.overrides.init_std=0.02",  # MarianConfig's own
    # Section 5.3's peak for this width and 2,000 warm-up steps, reached after half of them: the recipe's own
    # rate, 5.0e-3, is for norms before the sub-layers.
    "optimization.learning_rate=2.0e-3",
    "optimization.warmup_steps=1000",
    "optimization.optimizer=adamw",
    "optimization.schedule=inverse_sqrt",
    "optimization.weight_decay=0",  # the two trainers would apply it to different weights
]
MARIAN = {"learn-rate": 2e-3, "lr-warmup": "1000", "lr-decay-inv-sqrt": ["1000"], "transformer-dropout": 0.1}


class Reached(Exception):
    """Raised when the wanted BLEU has been reached."""


def train_ours(overrides: list[str], bleu: float) -> dict:
    """Train until the BLEU is reached. The recipe names the run's folder."""
    from modeling_scratch.recipe.reading import load_recipe
    from modeling_scratch.run.log import RunLog
    from modeling_scratch.training.setup import make_accelerator
    from modeling_scratch.training.train import train

    def validated(log: RunLog, record: dict) -> None:
        curve.append((log.progress.step, log.progress.seconds / 60, record["bleu"]))
        step, minutes, found = curve[-1]
        print(f"  modeling_scratch: update {step}, {minutes:.1f} minutes, BLEU {found:.2f}", flush=True)
        if found >= bleu:
            raise Reached

    curve: list[tuple[int, float, float]] = []
    recipe = load_recipe(trainer_commands.RECIPE, overrides)
    with contextlib.suppress(Reached), mock.patch.object(RunLog, "validation", validated):
        train(recipe, make_accelerator(recipe))
    return {"curve": [(minutes, found) for _, minutes, found in curve], "updates": curve[-1][0]}


def train_marian(
    overrides: list[str],
    settings: dict,
    bleu: float,
    every: int,
    give_up: float,
    work: Path,
    prefix: str,
    start_from: str | None = None,
) -> dict:
    """
    Train Marian in C++ for at most this many minutes, on the data of train_ours, tokenized alike; from new weights, or
    from the weights and with the tokenizer of a model that Marian can express.
    """
    from modeling_scratch.data.sources import load_pairs
    from modeling_scratch.data.tokenizer import texts
    from modeling_scratch.loading import load_tokenizers, load_translator
    from modeling_scratch.metrics import score
    from modeling_scratch.recipe.reading import load_recipe

    name = "Marian in C++"
    python = trainers.install(name, trainer_commands.TRAINERS[name], work.resolve())
    tokenizer = load_tokenizers(start_from)[0] if start_from else None
    data = trainers.prepare(prefix, work.resolve() / "data", None, tokenizer)
    recipe = load_recipe(trainer_commands.RECIPE, overrides)
    sources, references = texts(load_pairs(recipe.data, recipe.seed)["validation"])
    for side, lines in (("source", sources), ("target", references)):
        trainers.write_words(data.folder / f"validation.{side}", data.tokenizer, lines)
    translations = data.folder / "translations.txt"
    options = trainer_commands.marian_options(data) | {
        "valid-sets": [data.text("validation", "source"), data.text("validation", "target")],
        "valid-metrics": ["translation"],
        "valid-translation-output": str(translations),
        "valid-script-path": "true",
        "valid-freq": f"{every}u",
        "beam-size": 1,
        "early-stopping": trainer_commands.MANY,
        "quiet-translation": True,
        "disp-freq": f"{every}u",
        **MARIAN,
    }
    if start_from:
        import marian_weights

        words = yaml.safe_load((data.folder / "vocabulary.yml").read_text(encoding="utf-8"))
        model, first = load_translator(start_from), data.folder / "first.npz"
        marian_weights.write_marian(model, data.tokenizer.convert_tokens_to_ids(list(words)), first)
        for old in data.folder.glob("marian.npz*"):  # which Marian would train on
            old.unlink()
        options |= marian_weights.options(model) | {"pretrained-model": str(first), "no-reload": False}
    options |= settings
    config = data.folder / "time-to-bleu.yml"
    config.write_text(yaml.safe_dump(options))
    curve: list[tuple[float, float]] = []
    evaluating, asked, updates, began = 0.0, 0.0, 0, None
    command = [python, "-m", "pymarian", "train", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        log: list[str] = []
        for line in process.stderr:
            log.append(line)
            if "Training started" in line:
                began = time.perf_counter()
            elif update := re.search(r"Up\. (\d+) : Sen", line):  # it translates next
                asked, updates = time.perf_counter(), int(update[1])
            elif "[valid]" in line and "translation :" in line:
                minutes = (asked - began - evaluating) / 60
                words = [row.split() for row in translations.read_text(encoding="utf-8").splitlines()]
                hypotheses = data.tokenizer.batch_decode(list(map(data.tokenizer.convert_tokens_to_ids, words)))
                found = score(sources, hypotheses, references, final=False)["bleu"]
                evaluating += time.perf_counter() - asked
                curve.append((minutes, found))
                print(f"  {name}: update {updates}, {minutes:.1f} minutes, BLEU {found:.2f}", flush=True)
                if found >= bleu or minutes > give_up:
                    process.terminate()
                    process.stderr.read()  # while it saves the model, which it logs
                    break
        else:
            raise SystemExit(f"Marian ended: {''.join(log[-5:])}")
    return {"curve": curve, "updates": updates}


def train_seq2seqtrainer(overrides: list[str], bleu: float, every: int, give_up: float, work: Path) -> dict:
    """Train for at most this many minutes, with the tokenizer that train_ours has left in the folder `work`."""
    from datasets import Dataset
    from transformers import (
        DataCollatorForSeq2Seq,
        MarianConfig,
        MarianMTModel,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        TrainerCallback,
    )

    from modeling_scratch import ScratchConfig
    from modeling_scratch.data.batches import EpochBatches, PairCollator
    from modeling_scratch.data.sources import load_pairs
    from modeling_scratch.data.tokenizer import PairTokenizer, texts, tokenize_pairs
    from modeling_scratch.inference.translate import Translator
    from modeling_scratch.loading import load_tokenizers
    from modeling_scratch.metrics import score
    from modeling_scratch.model.translations import best_texts
    from modeling_scratch.recipe.reading import load_recipe, model_fields
    from modeling_scratch.training.setup import make_accelerator

    recipe = load_recipe(trainer_commands.RECIPE, overrides)
    optimization, pairs = recipe.optimization, load_pairs(recipe.data, recipe.seed)
    tokenizers = load_tokenizers(str(work / "ours"))
    tokenizer = PairTokenizer(*tokenizers, recipe.data.max_source_tokens, recipe.data.max_target_tokens)
    data = tokenize_pairs(pairs["train"], tokenizer, "train", 1)
    updates_an_epoch = EpochBatches(
        data, recipe, PairCollator(tokenizers[0].pad_token_id), make_accelerator(recipe)
    ).batches_in(1)
    data = Dataset.from_dict({name: data[name] for name in ("input_ids", "labels")})
    names = set(MarianConfig().to_dict()) & set(ScratchConfig.fields())
    fields = {name: value for name, value in model_fields(recipe.model).items() if name in names}
    torch.manual_seed(recipe.seed)
    special = {"pad_token_id": tokenizers[0].pad_token_id, "eos_token_id": tokenizers[0].eos_token_id}
    config = MarianConfig(
        **{"activation_function": "relu", "attention_dropout": 0.0, "activation_dropout": 0.0, **fields, **special},
        vocab_size=len(tokenizers[0]),
        scale_embedding=True,
        decoder_start_token_id=tokenizers[0].bos_token_id,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config)
    curve: list[tuple[float, float]] = []

    class Evaluation(TrainerCallback):
        evaluating, began = 0.0, 0.0

        def on_train_begin(self, args, state, control, **kwargs):
            self.began = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step % every:
                return
            began = time.perf_counter()
            minutes = (began - self.began - self.evaluating) / 60
            sources, references = texts(pairs["validation"])
            settings = {"max_new_tokens": recipe.evaluation.max_new_tokens, "num_beams": 1, "do_sample": False}
            translations = best_texts(Translator(model, *tokenizers).translate(sources, batch_size=128, **settings))
            found = score(sources, translations, references, final=False)["bleu"]
            curve.append((minutes, found))
            said = f"update {state.global_step}, {minutes:.1f} minutes, BLEU {found:.2f}"
            print(f"  MarianMT, Seq2SeqTrainer: {said}", flush=True)
            control.should_training_stop = found >= bleu or minutes > give_up
            self.evaluating += time.perf_counter() - began

    arguments = Seq2SeqTrainingArguments(
        output_dir=str(work / "trainer"),
        per_device_train_batch_size=round(len(data) / updates_an_epoch),
        num_train_epochs=optimization.max_epochs,
        learning_rate=optimization.learning_rate,
        warmup_steps=optimization.warmup_steps,
        lr_scheduler_type=optimization.schedule,
        label_smoothing_factor=optimization.label_smoothing,
        adam_beta1=optimization.betas[0],
        adam_beta2=optimization.betas[1],
        adam_epsilon=optimization.epsilon,
        weight_decay=optimization.weight_decay,
        max_grad_norm=optimization.max_grad_norm or 0.0,
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        seed=recipe.seed,
        disable_tqdm=True,
        logging_steps=1000,
    )
    collator = DataCollatorForSeq2Seq(tokenizers[0], model=model)
    trainer = Seq2SeqTrainer(model, arguments, train_dataset=data, data_collator=collator, callbacks=[Evaluation()])
    trainer.train()
    return {"curve": curve, "updates": trainer.state.global_step}


def plot(found: dict[str, dict], bleu: float, path: Path) -> None:
    """Plot BLEU over minutes of training, with a line at the wanted BLEU."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    figures.curves(axis, {name: tuple(zip(*each["curve"], strict=True)) for name, each in found.items()})
    axis.axhline(bleu, color="black", linewidth=0.8)
    axis.set(xlabel="minutes of training", ylabel="BLEU on the validation split, greedy")
    figures.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="prefix of the training files")
    parser.add_argument("validation", help="prefix of the validation files")
    parser.add_argument("--bleu", type=float, default=35.0)
    parser.add_argument("--overrides", nargs="*", default=[], help="of the recipe multi30k-en-de")
    parser.add_argument("--every", type=int, default=200, help="updates between evaluations")
    parser.add_argument("--peer", choices=["marian", "seq2seqtrainer"], default="marian")
    parser.add_argument(
        "--only-marian", type=float, metavar="MINUTES", help="train Marian for these minutes, nothing else"
    )
    parser.add_argument(
        "--start-from", metavar="MODEL", help="with --only-marian: start from the weights of this model"
    )
    parser.add_argument("--marian", nargs="*", default=[], help="Marian's options, as NAME=VALUE")
    parser.add_argument(
        "--patience", type=float, default=float("inf"), help="stop the peer after this many times our minutes"
    )
    parser.add_argument(
        "--work", type=Path, help="keep what is trained in this folder; what is there is not made again"
    )
    parser.add_argument("--json", help="also write the curves to this file")
    parser.add_argument("--plot", help="also draw them into this PNG file")
    options = parser.parse_args()
    print(f"{peers.describe_machine()}", flush=True)
    with contextlib.ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        overrides = [
            f"data.train_files={options.train}",
            f"data.validation_files={options.validation}",
            f"output_dir={work}/ours",
            *(SAME if options.peer == "seq2seqtrainer" else []),
            f"evaluation.every={options.every}",
            "evaluation.translate_every=1",
            "evaluation.validation_beams=1",
            f"checkpoints.every={1000 * options.every}",
            *options.overrides,
        ]
        given = (each.partition("=") for each in options.marian)
        settings = {name: yaml.safe_load(value) for name, _, value in given}
        if options.only_marian:
            limits = math.inf, options.every, options.only_marian, work
            train_marian(overrides, settings, *limits, options.train, options.start_from)
            return
        kept = work / "modeling_scratch.json"
        asked = {"overrides": overrides, "bleu": options.bleu}
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps({**asked, **train_ours(overrides, options.bleu)}))
        found = {"modeling_scratch": json.loads(kept.read_text())}
        if changed := [name for name, value in asked.items() if found["modeling_scratch"].get(name) != value]:
            raise SystemExit(f"{kept} was made with other {' and '.join(changed)}; name another folder with --work")
        minutes, _ = found["modeling_scratch"]["curve"][-1]
        give_up = options.patience * minutes
        limits = options.bleu, options.every, give_up, work
        if options.peer == "marian":
            found["Marian in C++"] = train_marian(overrides, settings, *limits, options.train)
        else:
            found["MarianMT, Seq2SeqTrainer"] = train_seq2seqtrainer(overrides, *limits)
    print(f"\n| | minutes of training to BLEU {options.bleu:g} | updates | BLEU then |\n|---|---|---|---|")
    for name, each in found.items():
        minutes, bleu = each["curve"][-1]
        reached = "" if bleu >= options.bleu else ", not reached"
        print(f"| {name} | {minutes:.1f}{reached} | {each['updates']} | {bleu:.2f} |")
    peers.write_json(found, options.json)
    if options.plot:
        plot(found, options.bleu, Path(options.plot))


if __name__ == "__main__":
    main()
