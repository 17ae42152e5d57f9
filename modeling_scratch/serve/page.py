"""The service's page: that of `scratch export web`, translating through the service instead of in the browser."""

import json
from importlib.resources import files

from .directions import Directions

_TYPES = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "service.js": "text/javascript",
}


def page_files(directions: Directions, most_characters: int, is_key_needed: bool) -> dict[str, tuple[bytes, str]]:
    """
    The content and media type of the page's files, by path.

    Args:
        most_characters: the most that a request may have.
        is_key_needed: whether the page has to ask for a key.
    """
    folder = files("modeling_scratch.web") / "page"
    found = {f"/{name}": ((folder / name).read_bytes(), kind) for name, kind in _TYPES.items()}
    found["/"] = found.pop("/index.html")
    described = {
        "service": {"isKeyNeeded": is_key_needed, "mostCharacters": most_characters},
        "directions": [
            direction.described
            | {"search": {"numBeams": direction.engine.num_beams}, "isAligned": direction.engine.can_align}
            for direction in directions.all.values()
        ],
    }
    found["/model.json"] = (json.dumps(described, ensure_ascii=False).encode(), "application/json")
    return found
