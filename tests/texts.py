"""Difficult texts for tokenizers, and pairs that are not translations."""

import unicodedata
from pathlib import Path

TEXTS = [
    "The dog sees the cat.",
    "",
    "a",
    "Größe, Übermut, naïve façade",
    "日本語と한국어 и русский",
    "🎉 👩‍👩‍👧 emoji",
    "▁ is no space, Ġ neither",
    "<pad> <s> </s> <unk> are text here",
    "don't \"quote\" 'this' -- or (that)...",
    "1234567890 3.14 1,000",
    "\u0000 control \u200c zero width",
    " leading and trailing ",
    "two  spaces, a tab\tand\na line",
    unicodedata.normalize("NFC", "e\u0301 composed"),
]
INVISIBLE = "".join(
    map(chr, (0xAD, 0x61C, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF))
)


def write_phones(folder: Path, validation: tuple[str, ...], header: str = "") -> list[str]:
    """Write tables of words and their letters in capitals as "phones"; returns the options of a run that names them."""
    words = {"train": ("abba", "cab", "bac") * 40, "validation": validation}
    for split in words:
        rows = "".join(f"{word}\t{' '.join(word.upper())}\n" for word in words[split])
        (folder / f"{split}.tsv").write_text(header + rows)
    return [f"data.{split}_files={folder / split}.tsv" for split in words]
