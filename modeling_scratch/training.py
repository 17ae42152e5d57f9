"""The training loop: train, evaluate, checkpoint, resume, finish; on one process or many."""

import hashlib
import itertools
import json
import logging
import math
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers.dynamic_module_utils import custom_object_save

from .batching import EpochPlan, make_loader, plan_batches, plan_epoch
from .configuration_scratch import ScratchConfig
from .data import load_pairs, pair_lengths, texts, tokenize_pairs
from .evaluation import generation_settings, score, translate
from .hub import check_destination, try_push
from .optimization import learning_rate_at, make_optimizer
from .plots import plot_curves
from .preparation import describe, load_translator, main_first, make_model, make_tokenizers, on_main
from .recipe import Recipe, differing_keys, load_recipe, save_recipe
from .run_folder import CURVES, RECIPE, SAMPLES, STATE, WEIGHTS, RunFolder, write_whole
from .tokenizer import load_tokenizers, save_tokenizers

logger = logging.getLogger(__name__)


# What a run may be resumed with another value of.
MAY_CHANGE = (
    "output_dir",
    "optimization.max_epochs",
    "optimization.max_steps",
    "data.num_workers",
    "checkpoints.keep_last",
    "trackers",
    "hub.repository",
    "hub.push",
    "hub.private",
    "hub.revision",
    "hub.license",
    "hub.overwrite",
)


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint must remember besides tensors and random states."""

    data: str = ""  # a hash of the training pairs' lengths
    processes: int = 1
    step: int = 0
    epoch: int = 0
    update: int = 0  # updates done of this epoch
    evaluations: int = 0
    best: float | None = None
    best_step: int = 0
    without_better: int = 0
    target_tokens: int = 0
    seconds: float = 0.0  # in updates, evaluations and checkpoints not counted
    loss_sum: float = 0.0  # since the last log line
    loss_tokens: int = 0


class TrainingRun:
    """One run of a recipe. `train` makes the updates, `finish` chooses the final weights and scores them."""

    def __init__(self, recipe: Recipe, accelerator: Accelerator, resume: bool = False, overwrite: bool = False):
        self.recipe, self.accelerator = recipe, accelerator
        self.folder = RunFolder(recipe.output_dir)
        self.folder.check(resume, overwrite)
        if recipe.hub.repository is not None:
            on_main(accelerator, lambda: check_destination(recipe))
        checkpoint = on_main(accelerator, self._checkpoint_to_resume) if resume else None
        set_seed(recipe.seed)
        self.pairs: DatasetDict = main_first(accelerator, lambda: load_pairs(recipe.data, recipe.seed))
        if checkpoint is not None:
            self.tokenizers = load_tokenizers(str(checkpoint))
            model = load_translator(str(checkpoint), dtype=torch.get_default_dtype())
        else:
            self.tokenizers = on_main(accelerator, lambda: make_tokenizers(recipe, self.pairs["train"]))
            model = make_model(recipe, self.tokenizers)
        self._check_lengths(model.config)
        self.train_data, self.validation_data = (
            main_first(accelerator, partial(tokenize_pairs, self.pairs[split], *self.tokenizers, recipe.data, split))
            for split in ("train", "validation")
        )
        self.lengths = pair_lengths(self.train_data)
        data = hashlib.sha256(b"".join(lengths.tobytes() for lengths in self.lengths)).hexdigest()
        self.progress = Progress(data=data, processes=accelerator.num_processes)
        # The same in every epoch: where batches are cut depends on the sorted lengths alone.
        self.updates_an_epoch = len(self._plan(0))
        self.total_steps = self._count_steps()
        self._set_generation(model)
        if not resume:
            on_main(accelerator, lambda: self._create_folder(model))
        set_seed(recipe.seed, device_specific=True)  # from here on each process draws its own dropout
        self.model, self.optimizer = accelerator.prepare(model, make_optimizer(model, recipe.optimization))
        if recipe.trackers:
            accelerator.init_trackers("modeling_scratch")
        if checkpoint is not None:
            self._load_checkpoint(checkpoint)

    @property
    def unwrapped(self) -> PreTrainedModel:
        return self.accelerator.unwrap_model(self.model)

    # -- set-up --------------------------------------------------------------------------------------------------

    def _checkpoint_to_resume(self) -> Path:
        before = load_recipe(self.folder.path / RECIPE)
        changed = [key for key in differing_keys(before, self.recipe) if key not in MAY_CHANGE]
        if changed:
            raise ValueError(
                f"the recipe differs from that of the run in {self.folder.path} in {', '.join(changed)}: a run resumes "
                f"with its own recipe (what may change is {', '.join(MAY_CHANGE)})"
            )
        return self.folder.newest_checkpoint()

    def _check_lengths(self, config: ScratchConfig) -> None:
        """Learned positions end somewhere: find a sentence that is too long before hours of training, not after."""
        if config.position_embedding_type != "learned":
            return
        limit, section = config.max_position_embeddings, self.recipe.evaluation
        if section.max_new_tokens > limit:
            raise ValueError(
                f"evaluation.max_new_tokens ({section.max_new_tokens}) is more than max_position_embeddings ({limit})"
            )
        for split in set(self.pairs) - {"train"}:
            for number, ids in enumerate(self.tokenizers[0](texts(self.pairs[split])[0]).input_ids, start=1):
                if len(ids) > limit:
                    raise ValueError(
                        f"source {number} of the {split} split has {len(ids)} tokens, but learned positions end at "
                        f"max_position_embeddings ({limit})"
                    )

    def _create_folder(self, model: PreTrainedModel) -> None:
        self.folder.create()
        save_recipe(self.recipe, self.folder.path / RECIPE)
        save_tokenizers(*self.tokenizers, self.folder.path)
        self._save_model_files(model, self.folder.path)

    def _save_model_files(self, model: PreTrainedModel, path: Path) -> None:
        """Config, generation config and the code that travels; the weights are written apart from these."""
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(path)
        model.generation_config.save_pretrained(path)
        custom_object_save(model, path)

    def _set_generation(self, model: PreTrainedModel) -> None:
        section = self.recipe.evaluation
        names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
        tokens = {name: getattr(model.config, name) for name in names}
        model.generation_config = generation_settings(
            section.num_beams, section.length_penalty, section.max_new_tokens, tokens
        )

    def _plan(self, epoch: int) -> EpochPlan:
        return plan_epoch(*self.lengths, self.recipe.optimization.tokens_per_batch, self.recipe.seed, epoch)

    def _count_steps(self) -> int:
        optimization = self.recipe.optimization
        by_epochs = optimization.max_epochs * self.updates_an_epoch if optimization.max_epochs else None
        return min(steps for steps in (by_epochs, optimization.max_steps) if steps is not None)

    # -- training ------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Make the updates from where the run stands to its end, or until patience runs out."""
        self._log(
            {"split": "run", "train_pairs": len(self.pairs["train"]), **describe(self.accelerator, self.unwrapped)}
        )
        bar = tqdm(
            total=self.total_steps,
            initial=self.progress.step,
            desc="training",
            unit="update",
            disable=None if self.accelerator.is_main_process else True,
            dynamic_ncols=True,
        )
        self.model.train()
        with bar:
            while self.progress.step < self.total_steps and not self._out_of_patience():
                self._train_epoch(bar)

    def _train_epoch(self, bar: tqdm) -> None:
        progress, accelerator, optimization = self.progress, self.accelerator, self.recipe.optimization
        plan = self._plan(progress.epoch)
        accumulation = optimization.gradient_accumulation_steps
        shares = plan.micro_batches(progress.update, accelerator.process_index, accelerator.num_processes, accumulation)
        loader = make_loader(
            self.train_data,
            list(shares),
            self.tokenizers[0].pad_token_id,
            self.recipe.data.num_workers,
            pin=accelerator.device.type == "cuda",
        )
        batches = iter(loader)
        for update in range(progress.update, len(plan)):
            if progress.step >= self.total_steps or self._out_of_patience():
                return
            started = time.perf_counter()
            tokens = plan.target_tokens(update)
            progress.step, progress.update = progress.step + 1, update + 1
            loss = self._update(itertools.islice(batches, accumulation), tokens)
            if not math.isfinite(loss):
                raise ValueError(
                    f"the loss is {loss} at update {progress.step}; the last checkpoint is from before it. Lower "
                    "optimization.learning_rate, or lengthen optimization.warmup_steps"
                )
            progress.seconds += time.perf_counter() - started
            progress.target_tokens += tokens
            progress.loss_sum += loss * tokens
            progress.loss_tokens += tokens
            bar.update()
            bar.set_postfix_str(f"loss {loss:.3f}, {progress.target_tokens / progress.seconds:,.0f} target tokens/s")
            if progress.update == len(plan):
                progress.epoch, progress.update = progress.epoch + 1, 0
            self._after_update()

    def _update(self, micro_batches: itertools.islice, target_tokens: int) -> float:
        """One step of the optimizer on one global batch. Returns its loss a target token, over all processes."""
        accelerator, optimization = self.accelerator, self.recipe.optimization
        rate = learning_rate_at(self.progress.step, optimization, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total = torch.zeros((), device=accelerator.device, dtype=torch.get_default_dtype())
        for index, batch in enumerate(micro_batches, start=1):
            last = index == optimization.gradient_accumulation_steps
            batch = {name: tensor.to(accelerator.device, non_blocking=True) for name, tensor in batch.items()}
            with nullcontext() if last else accelerator.no_sync(self.model):
                loss = self.model(
                    **batch,
                    label_smoothing=optimization.label_smoothing,
                    num_items_in_batch=target_tokens,
                    skip_logits=True,
                ).loss
                # DDP takes the mean over processes; the loss is divided by the tokens of all of them already.
                accelerator.backward(loss * accelerator.num_processes)
            total += loss.detach()
        if optimization.max_grad_norm is not None:
            accelerator.clip_grad_norm_(self.model.parameters(), optimization.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return accelerator.reduce(total, "sum").item()

    def _after_update(self) -> None:
        step = self.progress.step
        end = step >= self.total_steps
        if step % self.recipe.logging_steps == 0 or end:
            self._log_training()
        if self._due(self.recipe.evaluation.every) or end:
            self._evaluate(end)
        if self._due(self.recipe.checkpoints.every) or end or self._out_of_patience():
            self._save_checkpoint()

    def _due(self, interval: int | str) -> bool:
        return self.progress.update == 0 if interval == "epoch" else self.progress.step % interval == 0

    def _out_of_patience(self) -> bool:
        patience = self.recipe.evaluation.patience
        return patience is not None and self.progress.without_better >= patience

    def _log(self, record: dict[str, Any]) -> None:
        record = {"step": self.progress.step, "epoch": self._epochs(), **record}
        if self.accelerator.is_main_process:
            self.folder.log(record)
        if self.recipe.trackers:
            values = {
                f"{record['split']}/{key}": value for key, value in record.items() if isinstance(value, int | float)
            }
            self.accelerator.log(values, step=self.progress.step)

    def _epochs(self) -> float:
        return round(self.progress.epoch + self.progress.update / self.updates_an_epoch, 4)

    def _log_training(self) -> None:
        progress = self.progress
        loss, rate = progress.loss_sum / progress.loss_tokens, progress.target_tokens / progress.seconds
        self._log(
            {
                "split": "train",
                "loss": loss,
                "learning_rate": learning_rate_at(progress.step, self.recipe.optimization, self.total_steps),
                "target_tokens": progress.target_tokens,
                "target_tokens_per_second": rate,
                "seconds": progress.seconds,
            }
        )
        if not sys.stderr.isatty():  # where there is no progress bar
            logger.info(f"step {progress.step} of {self.total_steps}: loss {loss:.3f}, {rate:,.0f} target tokens/s")
        progress.loss_sum, progress.loss_tokens = 0.0, 0

    # -- evaluation ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _loss(self, dataset: Dataset) -> float:
        """Cross-entropy a target token, not smoothed."""
        accelerator, model = self.accelerator, self.unwrapped
        source_lengths, target_lengths = pair_lengths(dataset)
        batches = plan_batches(source_lengths, target_lengths, self.recipe.optimization.tokens_per_batch, None)
        mine = [batch.tolist() for batch in batches[accelerator.process_index :: accelerator.num_processes]]
        total = 0.0
        model.eval()
        for batch in make_loader(dataset, mine, self.tokenizers[0].pad_token_id):
            batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
            with accelerator.autocast():
                total += model(**batch, num_items_in_batch=1, skip_logits=True).loss.item()
        model.train()
        return sum(gather_object([total])) / int(target_lengths.sum())

    def _evaluate(self, end: bool) -> None:
        """Loss and, when due, scores of translations on the validation split; the best weights go to the root."""
        section, progress = self.recipe.evaluation, self.progress
        progress.evaluations += 1
        record: dict[str, Any] = {"split": "validation", "loss": self._loss(self.validation_data)}
        translates = progress.evaluations % section.translate_every == 0 or end
        if translates:
            _, scores = self._translate("validation", num_beams=section.validation_beams)
            record |= {"bleu": scores["bleu"], "chrf": scores["chrf"]}
        self._log(record)
        found = ", ".join(f"{name} {record[name]:.2f}" for name in ("loss", "bleu", "chrf") if name in record)
        logger.info(f"step {progress.step}, epoch {self._epochs():.1f}: validation {found}")
        if self.accelerator.is_main_process:
            plot_curves(self.folder.metrics(), self.folder.path / CURVES)
        if section.metric not in record:
            return
        value = record[section.metric]
        if progress.best is None or (value < progress.best if section.metric == "loss" else value > progress.best):
            progress.best, progress.best_step, progress.without_better = value, progress.step, 0
            self._write_root(self.accelerator.get_state_dict(self.model))
            if self.recipe.hub.repository is not None and self.recipe.hub.push == "best":
                on_main(self.accelerator, lambda: try_push(self.recipe, f"Upload model of step {progress.step}"))
        else:
            progress.without_better += 1

    def _translate(self, split: str, **generation) -> tuple[list[str], dict[str, Any]]:
        sources, references = texts(self.pairs[split])
        with self.accelerator.autocast():
            translations = translate(
                self.unwrapped,
                *self.tokenizers,
                sources,
                batch_size=self.recipe.evaluation.batch_size,
                accelerator=self.accelerator,
                progress=tqdm if self.accelerator.is_main_process else None,
                **generation,
            )
        return translations, on_main(self.accelerator, lambda: score(translations, references))

    def _write_root(self, weights: dict[str, torch.Tensor]) -> None:
        if self.accelerator.is_main_process:
            # Tied weights are stored once, under the name that save_pretrained keeps.
            tied = self.unwrapped.all_tied_weights_keys
            self.folder.write_weights({name: tensor for name, tensor in weights.items() if name not in tied})
        self.accelerator.wait_for_everyone()

    def _load_root(self) -> None:
        weights = load_file(self.folder.path / WEIGHTS)
        report = self.unwrapped.load_state_dict(weights, strict=False)
        # Tied weights are stored once; anything else that is missing would be left as it is.
        assert set(report.missing_keys) <= set(self.unwrapped.all_tied_weights_keys), report
        assert not report.unexpected_keys, report

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        accelerator, section, step = self.accelerator, self.recipe.checkpoints, self.progress.step
        temporary = on_main(accelerator, lambda: self.folder.begin_checkpoint(step))
        accelerator.save_state(str(temporary))
        accelerator.wait_for_everyone()

        def finish() -> None:
            self._save_model_files(self.unwrapped, temporary)
            save_tokenizers(*self.tokenizers, temporary)
            self.folder.finish_checkpoint(step, asdict(self.progress), section.keep_last)
            if section.average_last > 1:
                self.folder.snapshot(step, section.average_last)
            if not (self.folder.path / WEIGHTS).exists():
                self.folder.write_weights(load_file(self.folder.checkpoint(step) / WEIGHTS))

        on_main(accelerator, finish)

    def _load_checkpoint(self, checkpoint: Path) -> None:
        progress = Progress(**json.loads((checkpoint / STATE).read_text(encoding="utf-8")))
        if progress.data != self.progress.data:
            raise ValueError(f"the training data is not what the run in {self.folder.path} was trained on")
        if progress.processes != self.progress.processes:
            logger.warning(
                f"resuming a run of {progress.processes} processes on {self.progress.processes}: the batches are the "
                "same, but dropout is not"
            )
        progress.processes = self.progress.processes
        self.accelerator.load_state(str(checkpoint))
        self.progress = progress
        logger.info(f"resuming from {checkpoint}")

        def restore() -> None:
            self.folder.forget_after(self.progress.step)
            save_recipe(self.recipe, self.folder.path / RECIPE)

        on_main(self.accelerator, restore)

    # -- the end -------------------------------------------------------------------------------------------------

    def finish(self) -> dict[str, Any]:
        """
        Choose the final weights (the average of the last checkpoints, or the best by the recipe's metric), put them at
        the folder's root, and score them on the test split, or validation where there is none.

        Returns:
            What `report` prints.
        """
        accelerator, last = self.accelerator, self.recipe.checkpoints.average_last
        if last > 1:
            weights = on_main(accelerator, lambda: self.folder.averaged_weights(self.progress.step, last))
            self._write_root(weights)
        self._load_root()
        if last > 1:
            _, scores = self._translate("validation")
            self._log({"split": "validation", "final": True, "loss": self._loss(self.validation_data), **scores})
        split = "test" if "test" in self.pairs else "validation"
        translations, scores = self._translate(split)
        self._log({"split": split, "final": True, "num_beams": self.recipe.evaluation.num_beams, **scores})
        sources, references = texts(self.pairs[split].select(range(min(5, len(self.pairs[split])))))
        samples = list(zip(sources, references, translations[:5], strict=True))
        if accelerator.is_main_process:
            write_whole(self.folder.path / SAMPLES, _samples_page(samples, split))
            plot_curves(self.folder.metrics(), self.folder.path / CURVES)
        if self.recipe.trackers:
            accelerator.end_training()
        accelerator.wait_for_everyone()
        return {"split": split, "samples": samples, "folder": str(self.folder.path), **scores, **asdict(self.progress)}


def _samples_page(samples: list[tuple[str, str, str]], split: str) -> str:
    lines = [f"# Translations of the first sentences of the {split} split", ""]
    for source, reference, translation in samples:
        lines += [f"- source: {source}", f"  reference: {reference}", f"  translation: {translation}"]
    return "\n".join(lines) + "\n"
