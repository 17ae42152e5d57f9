"""Difficult texts for tokenizers."""

import unicodedata

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
