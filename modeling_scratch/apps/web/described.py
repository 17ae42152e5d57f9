"""What pages say about a model: its languages, examples, data, scores and license."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import explained_import
from ...languages import language_name
from ...model import sentences
from ...model.kept_words import ADDRESSES, in_javascript
from ..translate.paragraphs import NUMBER

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# The patterns by which the page finds sentences, as in sentences.py and `paragraphs.cut`.
SENTENCES = {
    "end": sentences.END,
    "lastWord": sentences.LAST_WORD,
    "dotted": sentences.DOTTED,
    "number": sentences.NUMBER,
    "beforeNames": sentences.BEFORE_NAMES,
    "beforeNumbers": sentences.BEFORE_NUMBERS,
    "beforeOrdinals": sentences.BEFORE_ORDINALS,
    "numbered": NUMBER,
    "addresses": ADDRESSES.known,
}


def read_origin(name: str, config: "PreTrainedConfig", license: str | None = None) -> dict[str, Any]:
    """
    What a model is for, and what its run's folder says about it.

    Args:
        name: the folder or Hub name of the model.
        license: the model's; None: read it from the folder.
    """
    from ...model.configuration_scratch import TRANSLATION, task_of  # these import PyTorch

    try:
        from .run_facts import examples_of, facts_of, records_of
    except ModuleNotFoundError as error:
        if explained_import(error) is None:
            raise
        examples, facts, task = [], [], None  # in a service without the extra for training
    else:
        run = records_of(name)
        examples, facts, task = examples_of(run), facts_of(Path(name), run, license), run and run.recipe.data.task
    return {"isTranslator": task_of(config) == TRANSLATION, "task": task, "examples": examples, "facts": facts}


def describe_origin(name: str, languages: list[str], origin: dict[str, Any]) -> dict[str, Any]:
    """A model's title, languages, examples and facts. `origin` is what `read_origin` returned."""
    is_translator = origin["isTranslator"]
    return {
        "title": title_of_model(name, languages if is_translator else [], origin["task"]),
        "languages": languages,
        "sides": [language_name(tag) for tag in languages] if is_translator and languages else ["Input", "Output"],
        "isTranslator": is_translator,
        "hasSentences": is_translator or bool(languages),
        "sentences": {name: in_javascript(pattern) for name, pattern in SENTENCES.items()},
        "space": sentences.space_between(languages[1]) if languages else " ",
        "examples": origin["examples"],
        "facts": origin["facts"],
    }


def title_of_model(name: str, languages: list[str], task: str | None = None) -> str:
    """
    A translator's languages, such as "English to German"; or else what the outputs are, if the recipe says so; or else
    the last part of the model's name.
    """
    task = task and task[0].upper() + task[1:]
    return " to ".join(map(language_name, languages)) or task or Path(name).name
