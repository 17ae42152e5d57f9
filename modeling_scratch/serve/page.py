"""The page of the service: that of `scratch export web`, which asks the service instead of a model of its own."""

import json
from importlib.resources import files

from .directions import Directions

_FILES = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "service.js": "text/javascript",
}


class PageFiles:
    """
    The files of the page, by their paths.

    Args:
        most_characters: that a request may have.
        is_key_needed: whether the page has to ask for a key.
    """

    def __init__(self, directions: Directions, most_characters: int, is_key_needed: bool):
        folder = files("modeling_scratch.web") / "page"
        self._files = {f"/{name}": ((folder / name).read_bytes(), kind) for name, kind in _FILES.items()}
        self._files["/"] = self._files.pop("/index.html")
        described = {
            "service": {"isKeyNeeded": is_key_needed, "mostCharacters": most_characters},
            "directions": [
                direction.described
                | {"search": {"numBeams": direction.engine.num_beams}, "isAligned": direction.engine.can_align}
                for direction in directions.all.values()
            ],
        }
        self._files["/model.json"] = (json.dumps(described, ensure_ascii=False).encode(), "application/json")

    @property
    def paths(self) -> list[str]:
        """Where the page is."""
        return list(self._files)

    def read(self, path: str) -> tuple[bytes, str]:
        """A file's content and type."""
        return self._files[path]
