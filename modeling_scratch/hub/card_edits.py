"""
Merge a generated model card with what people wrote around it, which survives the next push.

A push replaces the text between the lines `BEGIN` and `END`, the metadata in `MEASURED`, and all other metadata that is
still as the push before generated it. The text above and below, and metadata edited on the Hub or in the folder, stay.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

import yaml
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.utils import yaml_dump

from ..errors import UserError
from ..recipe.yaml_reading import BoundedLoader

BEGIN = "<!-- modeling_scratch: the next push replaces the text from here; write your own above this line -->"
END = "<!-- modeling_scratch: the next push replaces the text up to here; write your own below this line -->"
MEASURED = {"metrics", "model-index", "widget"}  # metadata that is always regenerated


@dataclass
class EditableCard:
    """A model card, split into what is generated and what is not."""

    metadata: dict[str, Any]
    above: str
    generated: str | None  # None: the card has no such part
    below: str

    def edits(self) -> tuple[dict[str, Any], str, str]:
        """What the next push keeps."""
        metadata = {key: value for key, value in self.metadata.items() if key not in MEASURED}
        return metadata, self.above.strip(), self.below.strip()

    def __str__(self) -> str:
        front = yaml_dump(self.metadata, sort_keys=False, width=math.inf).strip()
        parts = [f"---\n{front}\n---" if self.metadata else "", self.above]
        parts += [] if self.generated is None else [f"{BEGIN}\n\n{self.generated.strip()}\n\n{END}", self.below]
        return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


def split_front_matter(text: str, what: str = "the card") -> tuple[dict[str, Any], str]:
    """
    A card's metadata and its text.

    Raises:
        UserError: the metadata is not a YAML mapping; the message says where.
    """
    text = re.sub(r"\r\n?", "\n", text.removeprefix("\ufeff"))
    found = REGEX_YAML_BLOCK.search(text)
    if found is None:
        if re.match(r"\s*---[ \t]*\n", text):
            raise UserError(f"{what}: the metadata that begins with --- has no line --- at its end")
        return {}, text
    first = text[: found.start(2)].count("\n") + 1
    try:
        metadata = yaml.load(found[2], Loader=BoundedLoader)
    except Exception as error:  # PyYAML's own, or of a value, such as the date 2026-13-01
        mark = getattr(error, "problem_mark", None)
        line = f"{first + mark.line}" if mark else f"{first} and after"
        problem = getattr(error, "problem", None) or error
        raise UserError(f"{what}, line {line}: the metadata is not valid YAML: {problem}") from None
    if not isinstance(metadata, dict | None):
        raise UserError(f"{what}, line {first}: the metadata must be keys with values, not a {type(metadata).__name__}")
    return metadata or {}, text[found.end() :]


def parse_card(text: str, what: str) -> EditableCard:
    """Split a card into its parts. `what` names it in messages."""
    metadata, body = split_front_matter(text, what)
    above, begin, rest = body.partition(BEGIN)
    generated, end, below = rest.partition(END)
    if begin and end:
        return EditableCard(metadata, above, generated, below)
    # The Hub's form for a new repository writes only metadata.
    return EditableCard(metadata, body, None if body.strip() else "", "")


def choose_edited(
    generated: EditableCard, in_folder: EditableCard | None, on_hub: EditableCard | None, pushed: EditableCard | None
) -> EditableCard | None:
    """The card edited since the last push, whose edits the next one keeps; None if both were, differently."""
    if in_folder is None or on_hub is None:
        return in_folder or on_hub or generated
    before = (pushed or generated).edits()
    if in_folder.edits() in (before, on_hub.edits()):
        return on_hub
    return in_folder if on_hub.edits() == before else None


def update_card(
    generated: EditableCard, edited: EditableCard, replaced: set[str], before: dict[str, Any]
) -> EditableCard:
    """
    The generated card with the edits of another one.

    Args:
        replaced: metadata to take from `generated` besides `MEASURED`.
        before: the metadata that was generated for `edited`; what still has these values is not an edit.
    """
    edits = (item for item in edited.metadata.items() if item not in before.items())
    kept = {key: value for key, value in edits if key not in MEASURED | replaced}
    # A card without a generated part is entirely somebody's own text.
    text = None if edited.generated is None else generated.generated
    return EditableCard(generated.metadata | kept, edited.above, text, edited.below)
