"""The metrics of this package for users of the `evaluate` library, which training avoids: it is slow to import."""

from typing import Any

import datasets
import evaluate

from ..metrics import score

_CITATION = """\
@inproceedings{post-2018-call, title = "A Call for Clarity in Reporting {BLEU} Scores", author = "Post, Matt",
booktitle = "Proceedings of WMT", year = "2018", url = "https://aclanthology.org/W18-6319"}"""


class TranslationScores(evaluate.Metric):
    """Corpus scores of detokenized text, with the signatures that make them comparable."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=self.__doc__,
            citation=_CITATION,
            inputs_description="predictions: one string per sentence; references: one string, or a list, per sentence",
            features=[
                datasets.Features({"predictions": text, "references": references})
                for references in (text, datasets.Sequence(text))
            ],
        )

    def _compute(
        self,
        predictions: list[str],
        references: list[str] | list[list[str]],
        sources: list[str] | None = None,
        **options: Any,
    ) -> dict[str, float | str]:
        return score([""] * len(predictions) if sources is None else sources, predictions, references, **options)
