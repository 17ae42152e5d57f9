"""Find the data files that a recipe names."""

from glob import escape, glob
from pathlib import Path

from ..errors import UserError, as_user_error
from ..recipe.schema import DataSection
from .lines import check_file
from .table_formats import FORMATS

WHAT_CAN_BE_READ = (
    f"a {', '.join(list(FORMATS)[:-1])} or {list(FORMATS)[-1]} file or several, two text files [source, "
    "target], plain or .gz, or the prefix of two (data/train for data/train.en and data/train.de)"
)


def _is_table(name: str) -> bool:
    return Path(name).suffix.lower() in FORMATS


def find_files(names: list[str], data: DataSection, key: str) -> list[tuple[Path, ...]]:
    """
    The tables, each alone, or the pairs of text files, that a recipe names. A `*` in a name matches any number of
    files, sorted.

    Args:
        key: the recipe's key, for messages.

    Raises:
        UserError: a file is missing or empty, files cannot be paired, or this kind of file is not supported.
    """
    found = _find(names, data, key)
    for paths in found:
        for path in paths:
            check_file(path)
    return found


def _find(names: list[str], data: DataSection, key: str) -> list[tuple[Path, ...]]:
    for name in names:
        if name.lower().endswith(".gz") and _is_table(name[:-3]):  # two would be taken for text files
            raise UserError(f"{key}: {name} is a compressed table; unpack it (gunzip -k)")
    tables = [_is_table(name) for name in names]
    if any(tables) and not all(tables):
        raise UserError(f"{key}: tables and text files together: {', '.join(names)}; name {WHAT_CAN_BE_READ}")
    if any(tables):
        return [(path,) for name in names for path in _expand(name, key)]
    return _find_text_files(names, data, key)


def _find_text_files(names: list[str], data: DataSection, key: str) -> list[tuple[Path, Path]]:
    has_tables = any(_is_table(name) for each in data.files().values() for name in each)
    for side in ("source", "target"):
        if getattr(data, f"{side}_column") is not None and not (data.on_the_hub or has_tables):
            raise UserError(f"data.{side}_column: text files, as in {key}, have no columns; set it to null")
    if len(names) == 1:
        found = [_with_language(names[0], language, key) for language in (data.source_language, data.target_language)]
        for one, other in (found, found[::-1]):
            if alone := one.keys() - other.keys():
                raise UserError(f"{key}: {one[min(alone)]} has no partner in the other language")
        return list(zip(*(side.values() for side in found), strict=True))
    languages = (data.source_language, data.target_language)
    if prefixes := [name for name in names if _is_prefix(name, languages)]:
        raise UserError(
            f"{key}: {prefixes[0]} is a prefix, which names the files of both languages and so stands alone; further "
            "pairs go to data.mix, and * matches the prefixes of shards"
        )
    if len(names) != 2:
        raise UserError(f"{key}: {len(names)} text files, {', '.join(names)}; name {WHAT_CAN_BE_READ}")
    with as_user_error(f"{key}: "):  # as of a link to itself
        resolved = {Path(name).resolve() for name in names}
    if len(resolved) == 1:
        raise UserError(f"{key}: source and target are one file, {names[0]}")
    endings = [Path(name.removesuffix(".gz")).suffix for name in names]
    if endings == [f".{data.target_language}", f".{data.source_language}"]:
        raise UserError(f"{key}: the source comes first, and then the target: [{names[1]}, {names[0]}]")
    sources, targets = (_expand(name, key) for name in names)
    if len(sources) != len(targets):
        raise UserError(
            f"{key}: {len(sources)} source files and {len(targets)} target files; there must be as many of each"
        )
    return list(zip(sources, targets, strict=True))


def _is_prefix(name: str, languages: tuple[str, str]) -> bool:
    paths = [[Path(f"{name}.{language}{ending}") for ending in ("", ".gz")] for language in languages]
    return not Path(name).exists() and all(any(map(Path.is_file, each)) for each in paths)


def _expand(name: str, key: str) -> list[Path]:
    if "*" not in name:
        return [Path(name)]
    if not (found := _matching(name, key)):
        raise UserError(f"{key}: no file matches {name}")
    return list(map(Path, found))


def _matching(pattern: str, key: str) -> list[str]:
    """The paths that match a pattern in which only `*` is special, sorted."""
    with as_user_error(f"{key}: "):
        return sorted(glob("*".join(map(escape, pattern.split("*"))), recursive=True))


def _with_language(prefix: str, language: str, key: str) -> dict[str, Path]:
    """The files of one language, by their names without it, sorted."""
    found = {}
    for ending in (f".{language}.gz", f".{language}"):
        paths = _matching(f"{prefix}{ending}", key) if "*" in prefix else [f"{prefix}{ending}"]
        found |= {path.removesuffix(ending): Path(path) for path in paths if Path(path).exists()}
    if found:
        return dict(sorted(found.items()))
    if Path(prefix).is_file():
        check_file(Path(prefix))
        raise UserError(f"{key}: {prefix} is a single file of an unsupported kind; name {WHAT_CAN_BE_READ}")
    name = Path(f"{prefix}.{language}")
    raise UserError(f"{key}: {name}: no such file, nor {name.name}.gz; name {WHAT_CAN_BE_READ}")


def check_files(data: DataSection) -> None:
    """
    Check the files of all splits before any of them is read. UserError if one is missing or empty, or if a training
    file is also used for validation or testing.
    """
    train: set[Path] = set()
    for place, each in enumerate(data.mixed()):
        if each.train_files:
            train |= _resolved(each.train_files, each, f"data.mix[{place}].files")
    for split, files in data.files().items():
        key = data.files_key(split)
        found = _resolved(files, data, key)
        both = train & found
        if split == "train":
            if both and data.validation_files is None:
                raise UserError(
                    f"data.mix: {min(both)} is in data.train_files too, from which pairs for validation are held out; "
                    "name data.validation_files"
                )
            train |= found
        elif both:
            raise UserError(f"{key}: {min(both)} is a training file too; name another one, or set the key to null")


def _resolved(files: list[str], data: DataSection, key: str) -> set[Path]:
    return {path.resolve() for paths in find_files(files, data, key) for path in paths}
