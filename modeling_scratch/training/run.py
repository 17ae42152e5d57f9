"""The training loop: train, evaluate, checkpoint, resume, finish; on one process or many."""

import logging
import math
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from safetensors.torch import load_file
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers.dynamic_module_utils import custom_object_save

from ..data.sources import texts
from ..errors import Diverged, ProcessError, Stopped, UserError
from ..hub.push import check_destination, try_push
from ..loading import save_tokenizers
from ..model.modeling_scratch import ScratchForConditionalGeneration
from ..recipe.reading import recipe_text
from ..recipe.schema import Recipe
from ..runs.agreement import check_folder, check_run
from ..runs.faults import explained_lack_of_memory, pieces_that_fit
from ..runs.folder import RECIPE, WEIGHTS, RunFolder, write_whole
from ..runs.processes import describe, on_main
from ..runs.stopping import StopRequest
from .checkpoints import Progress, check_recipe, load_checkpoint, load_weights, save_checkpoint, stored_weights
from .compilation import (
    compile_layers,
    example_batch,
    explained_failure_to_compile,
    is_compiled,
    not_compiled,
)
from .evaluation import EVALUATION_TOKENS, corpus_loss, score, translate
from .inputs import prepare_inputs
from .log import RunLog, spoken_duration
from .optimization import learning_rate_at, loss_options, make_optimizer
from .sharding import is_sharded, prepare, whole
from .updates import Update

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_CURVES = 60


class TrainingRun:
    """
    One run of a recipe. `train` makes the updates, `finish` chooses the final weights and scores them.

    Args:
        resume: go on from the newest checkpoint that is whole, or from the one of this name; "auto": if there is one,
            and else begin.
        overwrite: delete the run that is in the folder.
        stop: asks the run to end; `train` and `finish` then raise Stopped.
    """

    def __init__(
        self,
        recipe: Recipe,
        accelerator: Accelerator,
        resume: bool | str = False,
        overwrite: bool = False,
        stop: StopRequest | None = None,
    ):
        self.recipe, self.accelerator = recipe, accelerator
        self.stop = StopRequest() if stop is None else stop  # which is false until it asks
        self.folder = RunFolder(recipe.output_dir)
        self.log = RunLog(accelerator, self.folder)
        if resume == "auto":
            resume = on_main(accelerator, self.folder.can_go_on)
            overwrite = overwrite or not resume  # what an interrupt left before the first checkpoint
        on_main(accelerator, lambda: self.folder.check(bool(resume), overwrite))
        if accelerator.num_processes > 1:
            check_folder(accelerator, self.folder)
        if recipe.hub.repository is not None:
            on_main(accelerator, lambda: check_destination(recipe))
        checkpoint = on_main(accelerator, lambda: self._checkpoint_to_resume(resume)) if resume else None
        set_seed(recipe.seed)
        inputs = prepare_inputs(recipe, accelerator, checkpoint)
        self.pairs, self.tokenizers, model = inputs.pairs, inputs.tokenizers, inputs.model
        self.validation_data, self.source = inputs.validation_data, inputs.source
        name = on_main(accelerator, lambda: f"{self.folder.path.name}-{uuid.uuid4().hex[:8]}")
        self.progress = Progress(
            data=self.source.key(),
            processes=accelerator.num_processes,
            device=accelerator.device.type,
            precision=accelerator.mixed_precision,
            compiled=is_compiled(recipe, accelerator),
            tracked_as=name,
        )
        self.last_loss, self.asked_to_stop = math.nan, False
        self.saved, self.time_to_save = time.monotonic(), False
        self.total_steps = self._count_steps()
        check_run(accelerator, recipe, self.progress.data, self.total_steps)
        if not resume:
            on_main(accelerator, lambda: self._create_folder(model, overwrite))
        set_seed(recipe.seed, device_specific=True)  # from here on each process draws its own dropout
        self.model, self.optimizer = prepare(accelerator, model, make_optimizer(model, recipe.optimization))
        if checkpoint is not None:
            self._go_on_from(checkpoint, drop_later=isinstance(resume, str))
        if recipe.trackers:
            self.log.open_trackers(self.progress.tracked_as)

    @property
    def unwrapped(self) -> PreTrainedModel:
        return self.accelerator.unwrap_model(self.model)

    # -- set-up --------------------------------------------------------------------------------------------------

    def _checkpoint_to_resume(self, resume: bool | str) -> Path:
        check_recipe(self.folder, self.recipe)
        if isinstance(resume, str):
            return self.folder.named_checkpoint(resume)
        checkpoint, passed_over = self.folder.newest_checkpoint()
        for why in passed_over:
            logger.warning(f"passed over a checkpoint: {why}")
        return checkpoint

    def _create_folder(self, model: PreTrainedModel, overwrite: bool) -> None:
        self.folder.check(False, overwrite)  # again: data was prepared meanwhile
        self.folder.create()
        write_whole(self.folder.path / RECIPE, recipe_text(self.recipe))
        self._save_model_files(model, self.folder.path)

    def _save_model_files(self, model: PreTrainedModel, path: Path) -> None:
        """Config, generation config, tokenizers and the code that travels; the weights are written apart from these."""
        model.config.architectures = [ScratchForConditionalGeneration.__name__]  # a sharded model has another class
        model.config.save_pretrained(path)
        model.generation_config.save_pretrained(path)
        custom_object_save(ScratchForConditionalGeneration, path)
        data = self.recipe.data
        languages = (data.source_language, data.target_language)
        save_tokenizers(*self.tokenizers, path, model.config.max_position_embeddings, languages)

    def _count_steps(self) -> int:
        optimization = self.recipe.optimization
        by_epochs = optimization.max_epochs * self.source.updates_an_epoch if optimization.max_epochs else None
        return min(steps for steps in (by_epochs, optimization.max_steps) if steps is not None)

    # -- training ------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """
        Make the updates from where the run stands to its end, or until patience runs out.

        Raises:
            Stopped: the run was asked to end, and a checkpoint of where it stands is written.
            UserError: the loss or the gradient was not finite too many times in a row; a checkpoint cannot be written;
                memory does not suffice; another process is gone.
        """
        pairs = {"train_pairs": len(self.pairs["train"])} if "train" in self.pairs else {}
        revision = {"data_revision": self.source.revision} if self.source.revision else {}
        self._log({"split": "run", **pairs, **revision, **describe(self.accelerator, self.unwrapped)})
        bar = tqdm(
            total=self.total_steps,
            initial=self.progress.step,
            desc="training",
            unit="update",
            disable=None if self.accelerator.is_main_process else True,
            dynamic_ncols=True,
        )
        self.model.train()
        self.began = time.monotonic(), self.progress.step
        with bar, self._stoppable():
            if self.progress.compiled and self.progress.step < self.total_steps:
                self._compile()
            if self.progress.unsettled:
                self._settle()
            updates = self.source.updates(self.stop)
            while self.progress.step < self.total_steps and not self._out_of_patience():
                update = next(updates, None)
                if update is None:
                    self._stop_here()
                self._train_on(update)
                bar.update()
                rate = self.progress.target_tokens / self.progress.seconds
                bar.set_postfix_str(f"loss {self.last_loss:.3f}, {rate:,.0f} target tokens/s")
                if self.progress.step % self.recipe.logging_steps == 0 or self.progress.step >= self.total_steps:
                    self._log_training()
                self._settle()

    def _compile(self) -> None:
        """Make the graphs, from a batch that is never trained on."""
        logger.info("compiling the layers, which takes a minute or two")
        compile_layers(self.unwrapped)
        batch = example_batch(self.unwrapped, self.accelerator.device)
        devices = [self.accelerator.device] if self.accelerator.device.type == "cuda" else []
        with torch.random.fork_rng(devices), explained_failure_to_compile():
            self.accelerator.backward(self._forward(batch, batch["labels"].numel()))
        self.optimizer.zero_grad()

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        with self.stop:
            try:
                yield
            except Stopped:
                self.log.close()
                raise

    def _train_on(self, update: Update) -> None:
        progress, limit = self.progress, self.recipe.optimization.max_nonfinite_updates
        started = time.perf_counter()
        progress.step += 1
        self.last_loss, finite, self.asked_to_stop, self.time_to_save = self._update(update)
        progress.source = self.source.state()
        progress.seconds += time.perf_counter() - started
        progress.target_tokens += update.target_tokens
        if finite:
            progress.loss_sum += self.last_loss * update.target_tokens
            progress.loss_tokens += update.target_tokens
            progress.nonfinite_in_a_row = 0
            return
        progress.nonfinite, progress.nonfinite_in_a_row = progress.nonfinite + 1, progress.nonfinite_in_a_row + 1
        places = "; ".join(filter(None, gather_object([self.source.describe(update.examples)])))
        what = f"update {progress.step}: the loss ({self.last_loss}) or its gradient is not finite"
        if progress.nonfinite_in_a_row > limit:
            raise UserError(
                f"{what}, as in the {limit} before, all skipped (optimization.max_nonfinite_updates); the last "
                "checkpoint is from before them. Lower optimization.learning_rate, lengthen optimization.warmup_steps, "
                f"or look at the training pairs {places}"
            )
        logger.warning(f"{what}; skipped. Its training pairs: {places}")

    def _update(self, update: Update) -> tuple[float, bool, bool, bool]:
        """
        One step of the optimizer on one global batch, left out if it is not finite.

        Returns:
            Its loss a target token, over all processes; whether the step was made; whether any process was asked to
            stop; and whether the main one's clock asks for a checkpoint.
        """
        accelerator, optimization = self.accelerator, self.recipe.optimization
        rate = learning_rate_at(self.progress.step, optimization, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total = torch.zeros((), device=accelerator.device, dtype=torch.get_default_dtype())
        for number, batch in enumerate(update.micro_batches, start=1):
            batch = {name: tensor.to(accelerator.device, non_blocking=True) for name, tensor in batch.items()}
            with (
                nullcontext() if number == update.count else accelerator.no_sync(self.model),
                self._within_memory(batch),
            ):
                loss = self._forward(batch, update.target_tokens)
                # DDP takes the mean over processes; the loss is divided by the tokens of all of them already.
                accelerator.backward(loss * accelerator.num_processes)
            total += loss.detach()
        asked, late = (torch.full_like(total, float(bool(fact))) for fact in (self.stop, self._clock_asks()))
        sums = accelerator.reduce(torch.stack([total, asked, late]), "sum")
        with explained_lack_of_memory(
            accelerator,
            "for the optimizer, whose states are 8 bytes a parameter",
            lambda: f"use a smaller model, or {self.source.in_smaller_pieces(2)}",
        ):
            norm = accelerator.clip_grad_norm_(
                self.model.parameters(), math.inf if optimization.max_grad_norm is None else optimization.max_grad_norm
            )
            norm = whole(norm).to(sums.dtype)
            total, asked, late, norm = torch.cat([sums, norm[None]]).tolist()  # here alone the device is waited for
            finite = math.isfinite(total) and math.isfinite(norm)
            if finite:
                self.optimizer.step()
            elif accelerator.scaler is not None:
                accelerator.scaler.update()  # to a smaller scale
        self.optimizer.zero_grad()
        return total, finite, asked > 0, late > 0

    def _clock_asks(self) -> bool:
        seconds = self.recipe.checkpoints.seconds
        due = seconds is not None and time.monotonic() - self.saved >= seconds
        return due and self.accelerator.is_main_process

    def _forward(self, batch: dict[str, torch.Tensor], target_tokens: int) -> torch.Tensor:
        """The loss of a micro-batch, summed over its own tokens and divided by those of the global batch."""
        return self.model(**batch, num_items_in_batch=target_tokens, **self._loss_options()).loss

    def _loss_options(self) -> dict[str, Any]:
        return loss_options(self.recipe.optimization, self.progress.compiled)

    def _within_memory(self, batch: dict[str, torch.Tensor]) -> AbstractContextManager:
        def advice() -> str:
            self.optimizer.zero_grad()
            alone = not is_sharded(self.accelerator)
            pieces = pieces_that_fit(self.unwrapped, batch, **self._loss_options()) if alone else 2
            return self.source.in_smaller_pieces(pieces) if pieces else "not even one pair fits: use a smaller model"

        shapes = f"{tuple(batch['input_ids'].shape)} source and {tuple(batch['labels'].shape)} target tokens"
        return explained_lack_of_memory(self.accelerator, f"with {shapes} at once", advice)

    def _settle(self) -> None:
        """
        What is due after an update: evaluation, checkpoint, an end on request. If that comes in the middle, the
        checkpoint says that it is not done.
        """
        progress = self.progress
        end = progress.step >= self.total_steps
        progress.unsettled = True
        try:
            if self.asked_to_stop:
                raise Stopped
            if self._due(self.recipe.evaluation.every) or end:
                self._evaluate(end)
            progress.unsettled = False
            # After a skipped update the weights are those before it, and so should the last checkpoint be.
            due = self._due(self.recipe.checkpoints.every) and not progress.nonfinite_in_a_row
            counts = due or end or self._out_of_patience()
            if counts or progress.best_step == progress.step:
                self._save_checkpoint(counts)
        except ProcessError:  # evaluation has found no memory: with less at once it goes on from here
            if self.accelerator.num_processes == 1:
                self._save_checkpoint(counts=False)
            raise
        except Stopped:
            due = self._due(self.recipe.evaluation.every) or self._due(self.recipe.checkpoints.every) or end
            progress.unsettled = due
            self._stop_here()

    def _stop_here(self) -> None:
        progress = self.progress
        self._save_checkpoint(counts=False)
        asked = next((reason for reason in gather_object([self.stop.reason]) if reason), "")
        raise Stopped(
            f"stopped by {asked} after update {progress.step} of {self.total_steps}; --resume continues from "
            f"{self.folder.checkpoint(progress.step)}"
        ) from None

    def _due(self, interval: int | str) -> bool:
        if interval == "epoch":
            return self.progress.source.get("update") == 0
        return self.progress.step % interval == 0 if isinstance(interval, int) else self.time_to_save

    def _out_of_patience(self) -> bool:
        patience = self.recipe.evaluation.patience
        return patience is not None and self.progress.without_better >= patience

    def _log(self, record: dict[str, Any]) -> None:
        self.log.record(self.progress.step, {"step": self.progress.step, "epoch": self.source.epochs(), **record})

    def _log_training(self) -> None:
        progress = self.progress
        loss = progress.loss_sum / progress.loss_tokens if progress.loss_tokens else math.nan
        rate = progress.target_tokens / progress.seconds
        self._log(
            {
                "split": "train",
                "loss": loss,
                "learning_rate": learning_rate_at(progress.step, self.recipe.optimization, self.total_steps),
                "target_tokens": progress.target_tokens,
                "target_tokens_per_second": rate,
                "seconds": progress.seconds,
                **({"nonfinite_updates": progress.nonfinite} if progress.nonfinite else {}),
            }
        )
        if not sys.stderr.isatty():  # where there is no progress bar
            began, step = self.began
            left = (time.monotonic() - began) / (progress.step - step) * (self.total_steps - progress.step)
            logger.info(
                f"step {progress.step} of {self.total_steps}: loss {loss:.3f}, {rate:,.0f} target tokens/s, about "
                f"{spoken_duration(left)} left"
            )
        progress.loss_sum, progress.loss_tokens = 0.0, 0

    # -- evaluation ----------------------------------------------------------------------------------------------

    def _loss(self) -> float:
        tokens = min(self.recipe.optimization.tokens_per_batch, EVALUATION_TOKENS)
        advice = (
            f"{tokens} tokens at once, without gradients, do not fit beside what training keeps: use a smaller model"
        )
        with not_compiled(), explained_lack_of_memory(self.accelerator, "evaluating", lambda: advice):
            return corpus_loss(
                self.unwrapped,
                self.validation_data,
                tokens,
                self.tokenizers[0].pad_token_id,
                self.accelerator,
                self.stop,
            )

    def _evaluate(self, end: bool) -> None:
        """Loss and, when due, scores of translations on the validation split; the best weights go to the root."""
        section, progress = self.recipe.evaluation, self.progress
        record: dict[str, Any] = {"split": "validation", "loss": self._loss()}
        translates = (progress.evaluations + 1) % section.translate_every == 0 or end
        if translates:
            _, scores = self._translate("validation", num_beams=section.validation_beams)
            record |= {"bleu": scores["bleu"], "chrf": scores["chrf"]}
        progress.evaluations += 1
        self._log(record)
        found = ", ".join(f"{name} {record[name]:.2f}" for name in ("loss", "bleu", "chrf") if name in record)
        finite = math.isfinite(record["loss"])
        logger.log(
            logging.INFO if finite else logging.WARNING,
            f"step {progress.step}, epoch {self.source.epochs():.1f}: validation {found}",
        )
        self.log.curves(older_than=_SECONDS_BETWEEN_CURVES)
        if section.metric not in record:
            return
        value = record[section.metric]
        better = progress.best is None or (value < progress.best if section.metric == "loss" else value > progress.best)
        if better and finite and math.isfinite(value):
            progress.best, progress.best_step, progress.without_better = value, progress.step, 0
            self._write_root(self.accelerator.get_state_dict(self.model))
            if self.recipe.hub.repository is not None and self.recipe.hub.push == "best":
                self.log.curves()
                on_main(self.accelerator, lambda: try_push(self.recipe, f"Upload model of step {progress.step}"))
        else:
            progress.without_better += 1

    def _translate(self, split: str, **generation) -> tuple[list[str], dict[str, Any]]:
        sources, references = texts(self.pairs[split])
        section = self.recipe.evaluation
        halves = (f"evaluation.{name}={max(1, getattr(section, name) // 2)}" for name in ("batch_size", "batch_tokens"))
        advice = f"set {' '.join(halves)}, and --resume"
        with (
            not_compiled(),
            self.accelerator.autocast(),
            explained_lack_of_memory(self.accelerator, f"translating the {split} split", lambda: advice),
        ):
            translations = translate(
                self.unwrapped,
                *self.tokenizers,
                sources,
                batch_size=section.batch_size,
                batch_tokens=section.batch_tokens,
                accelerator=self.accelerator,
                progress=tqdm if self.accelerator.is_main_process else None,
                stop=self.stop,
                **generation,
            )
        scores = on_main(self.accelerator, lambda: score(translations, references))
        return translations, {"sentences": len(sources), **scores}

    def _write_root(self, weights: dict[str, torch.Tensor]) -> None:
        self.log.write(WEIGHTS, lambda: self.folder.write_weights(stored_weights(self.unwrapped, weights)))

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def _save_checkpoint(self, counts: bool = True) -> None:
        """
        Args:
            counts: whether it is one of those that the recipe asks for, and averages.
        """
        section, step = self.recipe.checkpoints, self.progress.step
        self.saved = time.monotonic()

        save_checkpoint(
            self.accelerator,
            self.folder,
            self.model,
            self.optimizer,
            self.source,
            self.progress,
            partial(self._save_model_files, self.unwrapped),
            keep_last=section.keep_last,
            average_last=section.average_last if counts else 1,
        )

        def first_weights() -> None:
            if not (self.folder.path / WEIGHTS).exists():
                self.folder.write_weights(load_file(self.folder.checkpoint(step) / WEIGHTS))

        on_main(self.accelerator, first_weights)

    def _go_on_from(self, checkpoint: Path, drop_later: bool) -> None:
        accelerator = self.accelerator
        run = (self.optimizer, self.source, self.progress, self.recipe)
        self.progress = before = load_checkpoint(accelerator, checkpoint, *run)
        logger.info(f"resuming from {checkpoint}")

        def restore() -> bool:
            best = None if before.best is None else before.best_step
            has_best = self.folder.go_on_from(checkpoint, before.step, best, before.unsettled, drop_later)
            write_whole(self.folder.path / RECIPE, recipe_text(self.recipe))
            self.unwrapped.generation_config.save_pretrained(self.folder.path)  # as the recipe has it now
            return has_best

        if not on_main(accelerator, restore):
            before.best, before.best_step, before.without_better = None, 0, 0

    # -- the end -------------------------------------------------------------------------------------------------

    def finish(self) -> dict[str, Any]:
        """
        Choose the final weights (the average of the last checkpoints, or the best by the recipe's metric), put them at
        the folder's root, and score them on the test split, or validation where there is none.

        Returns:
            What `report` prints.

        Raises:
            Stopped: the run was asked to end. It is trained whole; --resume scores it.
        """
        with self._stoppable():
            try:
                return self._finish()
            except Stopped:
                raise Stopped("stopped while the final model was scored; --resume scores it") from None

    def _check_loss(self) -> float:
        """That of the validation split. Diverged if it is not finite: such weights are no model."""
        if not math.isfinite(loss := self._loss()):
            # Those that a checkpoint has left there, or the average, are no model.
            on_main(self.accelerator, lambda: (self.folder.path / WEIGHTS).unlink(missing_ok=True))
            raise Diverged(
                "training has diverged: the loss on the validation split is not finite, so there is no final model; "
                "lower optimization.learning_rate or lengthen optimization.warmup_steps, and begin anew"
            )
        return loss

    def _average(self) -> None:
        self.folder.write_weights(self.folder.averaged_weights(self.progress.averaging))

    def _finish(self) -> dict[str, Any]:
        accelerator, last = self.accelerator, self.recipe.checkpoints.average_last
        if last > 1:
            self.log.write(WEIGHTS, self._average)
        elif self.progress.best is None:  # the best is lost, or never was
            self._check_loss()
            self._write_root(accelerator.get_state_dict(self.model))
        load_weights(accelerator, self.unwrapped, self.folder.path / WEIGHTS)
        if last > 1:
            logger.info(f"scoring the average of the last {last} checkpoints on the validation split")
            loss = self._check_loss()
            _, scores = self._translate("validation")
            self._log({"split": "validation", "final": True, "loss": loss, **scores})
        splits = [split for split in ("test", *self.recipe.data.test_sets) if split in self.pairs] or ["validation"]
        scored = {split: self._score(split) for split in splits}
        split = splits[0]
        sources, references = texts(self.pairs[split].select(range(min(5, len(self.pairs[split])))))
        samples = list(zip(sources, references, scored[split][0][:5], strict=True))
        self.log.samples(samples, split)
        self.log.curves()
        self.log.close()
        accelerator.wait_for_everyone()
        scores = {split: found for split, (_, found) in scored.items()}
        return {"scores": scores, "samples": samples, "folder": str(self.folder.path), **asdict(self.progress)}

    def _score(self, split: str) -> tuple[list[str], dict[str, Any]]:
        """Translations and scores of the final weights on a split, or a further test set."""
        logger.info(f"translating the {len(self.pairs[split]):,} sentences of the {split} split with the final weights")
        translations, scores = self._translate(split)
        named = {"split": "test", "name": split} if split in self.recipe.data.test_sets else {"split": split}
        self._log({**named, "final": True, "num_beams": self.recipe.evaluation.num_beams, **scores})
        return translations, scores
