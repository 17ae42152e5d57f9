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

# Texts, and whether they go to a translator: those with a letter or a digit of any script. Others stay as they are, but
# for white space around them.
GOES_TO_A_TRANSLATOR = {
    **dict.fromkeys(["", " \t", "\u200b", "...", " \u2014 \n", "?!", "_", "\u20ac %", "\u260e \U0001f600"], False),
    **dict.fromkeys(["\u0301", "\u00ad-\u2060", "<> & {}", "\u3002", "\u20e3", "\u00b0", "\u2192"], False),
    **dict.fromkeys(["a.", "(b)", "12:30", "7", "\u00b2", " \u00bd\n", "\u2168", "\u0663", "\u00aa", "\u65e5"], True),
    **dict.fromkeys(["... \u044f", "\u2460", "\u00b5 ", "\u0e01\u0e34", "\u02b0", "The cat\u00ad sleeps ."], True),
}


def write_phones(folder: Path, validation: tuple[str, ...], header: str = "") -> list[str]:
    """Write tables of words and their letters in capitals as "phones"; returns the options of a run that names them."""
    words = {"train": ("abba", "cab", "bac") * 40, "validation": validation}
    for split in words:
        rows = "".join(f"{word}\t{' '.join(word.upper())}\n" for word in words[split])
        (folder / f"{split}.tsv").write_text(header + rows)
    return [f"data.{split}_files={folder / split}.tsv" for split in words]
