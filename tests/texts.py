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


# Texts, their language, and their sentences.
SENTENCES_OF = [
    ("He met Dr. Smith. They talked.", "en", ["He met Dr. Smith.", "They talked."]),
    (
        "I saw Mr. and Mrs. Brown at 5 p.m. on Monday. He left.",
        "en",
        ["I saw Mr. and Mrs. Brown at 5 p.m. on Monday.", "He left."],
    ),
    ("It is e.g. a cat. Good.", "en", ["It is e.g. a cat.", "Good."]),
    ("J. S. Bach wrote it. He died.", "en", ["J. S. Bach wrote it.", "He died."]),
    ("It was I. Then she came.", "en", ["It was I.", "Then she came."]),
    ("See fig. 3. It shows p. 5 and No. 7. Yes.", "en", ["See fig. 3.", "It shows p. 5 and No. 7.", "Yes."]),
    ("He said no. 7 cats came.", "en", ["He said no. 7 cats came."]),
    ("Version 2.0.1 is out. Get 3.5 kg now.", "en", ["Version 2.0.1 is out.", "Get 3.5 kg now."]),
    ('"Go!" he said. "Why?" She left.', "en", ['"Go!" he said.', '"Why?"', "She left."]),
    ("\u201cGo!\u201d \u201cWhy?\u201d She left.", "en", ["\u201cGo!\u201d", "\u201cWhy?\u201d", "She left."]),
    ('He said: "Go." Then he went.', "en", ['He said: "Go."', "Then he went."]),
    ("(He left.) She stayed.", "en", ["(He left.)", "She stayed."]),
    ("Wait... what? Wait... What?", "en", ["Wait... what?", "Wait...", "What?"]),
    ("Wait\u2026 what? Wait\u2026 What?", "en", ["Wait\u2026 what?", "Wait\u2026", "What?"]),
    ("Really?! Yes!! No?", "en", ["Really?!", "Yes!!", "No?"]),
    ("Mail a.b@example.org. Then wait.", "en", ["Mail a.b@example.org.", "Then wait."]),
    ("Visit www.example.org. Then wait.", "en", ["Visit www.example.org.", "Then wait."]),
    ("Visit https://example.org/a.B?C! Then wait.", "en", ["Visit https://example.org/a.B?C!", "Then wait."]),
    ("{name}. {name} sleeps.", "en", ["{name}.", "{name} sleeps."]),
    ("The {a! B} sleeps. {{ a. B }} sleeps.", "en", ["The {a!", "B} sleeps.", "{{ a. B }} sleeps."]),
    ("Press `a. B`! Now.", "en", ["Press `a. B`!", "Now."]),
    ("They won.Then they left.", "en", ["They won.", "Then they left."]),
    (
        "Use ASP.NET Core. See node.js. Then file.Name stays.",
        "en",
        ["Use ASP.NET Core.", "See node.js.", "Then file.", "Name stays."],
    ),
    ("One.  Two.\tThree.\nFour.\n\nFive", "en", ["One.", "Two.", "Three.", "Four.", "Five"]),
    ("A heading\n\nA text without a stop\n \nmore", "en", ["A heading", "A text without a stop", "more"]),
    ("One.\u2028Two.\x85 \x0bThree\u3000.", "en", ["One.", "Two.", "Three\u3000."]),
    ("One.\xa0Two.\ufeffThree. \ufeffFour.\x1cFive.", "en", ["One.", "Two.\ufeffThree.", "\ufeffFour.", "Five."]),
    ("- One.\n- Two.\n- Three.", "en", ["- One.", "- Two.", "- Three."]),
    ("1. Buy milk. 2. Buy bread.", "en", ["1. Buy milk.", "2. Buy bread."]),
    ("Milk. 3. Bread.", "en", ["Milk.", "3. Bread."]),
    ("Is it?: Yes. No!, they stay.", "en", ["Is it?: Yes.", "No!, they stay."]),
    ("It costs $5. 6 of them left.", "en", ["It costs $5.", "6 of them left."]),
    ("At 10 a.m. the cat came. At 5 p.m. She left.", "en", ["At 10 a.m. the cat came.", "At 5 p.m. She left."]),
    ("The U.S. Army came. He is from the U.S. He left.", "en", ["The U.S. Army came.", "He is from the U.S. He left."]),
    ("It is in St. Louis. It is on Main St. He left.", "en", ["It is in St. Louis.", "It is on Main St. He left."]),
    ("cats vs. Dogs. etc. And so on.", "en", ["cats vs. Dogs. etc.", "And so on."]),
    ("Apples, pears, etc. He ate.", "en", ["Apples, pears, etc.", "He ate."]),
    ("This is Fig. Three.", "en", ["This is Fig.", "Three."]),
    ("Jan. 5 came. In Jan. It snowed.", "en", ["Jan. 5 came.", "In Jan.", "It snowed."]),
    ("... and so on. Yes.", "en", ["... and so on.", "Yes."]),
    ("?! Yes.", "en", ["?!", "Yes."]),
    (". . . A.", "en", [". . . A."]),
    ("Yahoo! is here. Yahoo! Is it?", "en", ["Yahoo! is here.", "Yahoo!", "Is it?"]),
    ("What? no! yes.", "en", ["What? no! yes."]),
    ("Am 3. Mai kam er, z.B. heute. Gut!", "de", ["Am 3. Mai kam er, z.B. heute.", "Gut!"]),
    ("Im 19. Jahrhundert lebte er. Er ging.", "de", ["Im 19. Jahrhundert lebte er.", "Er ging."]),
    ("IM 19. JAHRHUNDERT.", "de", ["IM 19. JAHRHUNDERT."]),
    ("Er kam mit 12. Dann ging er.", "de", ["Er kam mit 12.", "Dann ging er."]),
    ("Seit dem 1. Januar bzw. Februar. Ja.", "de", ["Seit dem 1. Januar bzw. Februar.", "Ja."]),
    ("Es sind ca. 5 Katzen. Nr. 5 lebt. S. 12 fehlt.", "de", ["Es sind ca. 5 Katzen.", "Nr. 5 lebt.", "S. 12 fehlt."]),
    (
        "\u201eKomm!\u201c Er ging. \u201eJa?\u201c, sagte er. \xbbGut.\xab Sie kam.",
        "de",
        ["\u201eKomm!\u201c", "Er ging.", "\u201eJa?\u201c, sagte er.", "\xbbGut.\xab", "Sie kam."],
    ),
    ("Das kostet 3,50 Euro. 5 Katzen kommen.", "de", ["Das kostet 3,50 Euro.", "5 Katzen kommen."]),
    ("Seine 2. Frau kam. Er hat 2. Frau.", "de", ["Seine 2. Frau kam.", "Er hat 2.", "Frau."]),
    (
        "Il est M. Dupont. \xab Bonjour ! \xbb dit-il. Elle part.",
        "fr",
        ["Il est M. Dupont.", "\xab Bonjour ! \xbb dit-il.", "Elle part."],
    ),
    ("\xbfQu\xe9? \xa1S\xed! Hola.", "es", ["\xbfQu\xe9?", "\xa1S\xed!", "Hola."]),
    (
        "\u4f60\u597d!\u6211\u662f\u5b66\u751f\u3002\u4ed6\u8bf4\uff1a\u201c\u597d\u3002\u201d\u518d\u89c1\uff01",
        "zh",
        [
            "\u4f60\u597d!",
            "\u6211\u662f\u5b66\u751f\u3002",
            "\u4ed6\u8bf4\uff1a\u201c\u597d\u3002\u201d",
            "\u518d\u89c1\uff01",
        ],
    ),
    (
        "\u300c\u306f\u3044\u3002\u300d\u3068\u8a00\u3063\u305f\u3002\u884c\u304f\uff1f\u3046\u3093\u3002",
        "ja",
        [
            "\u300c\u306f\u3044\u3002\u300d",
            "\u3068\u8a00\u3063\u305f\u3002",
            "\u884c\u304f\uff1f",
            "\u3046\u3093\u3002",
        ],
    ),
    ("\u3059\u3054\u3044!\u672c\u5f53?\u306f\u3044", "ja", ["\u3059\u3054\u3044!", "\u672c\u5f53?", "\u306f\u3044"]),
    ("A\u3002B\uff1f C\uff01", "zh", ["A\u3002", "B\uff1f", "C\uff01"]),
    (
        "\u092f\u0939 \u0939\u0948\u0964 \u0935\u0939 \u0939\u0948\u0965 \u0920\u0940\u0915\u0964",
        "hi",
        ["\u092f\u0939 \u0939\u0948\u0964", "\u0935\u0939 \u0939\u0948\u0965", "\u0920\u0940\u0915\u0964"],
    ),
    (
        "\u0647\u0644 \u0647\u0630\u0627\u061f \u0646\u0639\u0645. \u0644\u0627\u06d4",
        "ar",
        ["\u0647\u0644 \u0647\u0630\u0627\u061f", "\u0646\u0639\u0645.", "\u0644\u0627\u06d4"],
    ),
    (
        "\u042d\u0442\u043e \u043a\u043e\u0442. \u0442.\u0435. \u0442\u0430\u043a. "
        "\u0418 \u0442.\u0434. \u041e\u043d \u0443\u0448\u0451\u043b.",
        "ru",
        [
            "\u042d\u0442\u043e \u043a\u043e\u0442. \u0442.\u0435. \u0442\u0430\u043a.",
            "\u0418 \u0442.\u0434. \u041e\u043d \u0443\u0448\u0451\u043b.",
        ],
    ),
    (
        "\u03a4\u03b9; \u039d\u03b1\u03b9. \u039f\u03a7\u0399.",
        "el",
        ["\u03a4\u03b9; \u039d\u03b1\u03b9.", "\u039f\u03a7\u0399."],
    ),
    (
        "\u1230\u120b\u121d\u1362 \u12a5\u1295\u12f4\u1275\u1367 \u12f0\u1205\u1293\u1362",
        "am",
        ["\u1230\u120b\u121d\u1362", "\u12a5\u1295\u12f4\u1275\u1367", "\u12f0\u1205\u1293\u1362"],
    ),
    ("\u0532delays\u0589 \u0531\u0575\u0578\u0589", "hy", ["\u0532delays\u0589", "\u0531\u0575\u0578\u0589"]),
    (
        "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0e04\u0e23\u0e31\u0e1a",
        "th",
        ["\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0e04\u0e23\u0e31\u0e1a"],
    ),
    ("A cat. B cat.", "", ["A cat.", "B cat."]),
    ("Hello \U0001f600. World! \U0001f600 Yes.", "en", ["Hello \U0001f600.", "World!", "\U0001f600 Yes."]),
    ("\u01c4. \u01c5 is. \u01c6 is.", "en", ["\u01c4. \u01c5 is. \u01c6 is."]),
    ("5. May 3. Then.", "en", ["5. May 3.", "Then."]),
    ("The end", "en", ["The end"]),
    ("", "en", [""]),
    (" \t ", "en", [""]),
    ("He is in group b. She is not.", "en", ["He is in group b. She is not."]),
    ("Grade A. He is.", "en", ["Grade A. He is."]),
    ("See [^1]. Then [x] go. - [ ] Do. It.", "en", ["See [^1].", "Then [x] go.", "- [ ] Do.", "It."]),
    ("Call %s. %d left. Done!", "en", ["Call %s.", "%d left.", "Done!"]),
    ("Wow :smile: Yes. #tag. @anna said. Ok.", "en", ["Wow :smile: Yes.", "#tag.", "@anna said.", "Ok."]),
    ("Use v1.2.3. Then v2.0. Yes.", "en", ["Use v1.2.3.", "Then v2.0.", "Yes."]),
    ("\u0130yi. istanbul. \u0130stanbul.", "tr", ["\u0130yi. istanbul.", "\u0130stanbul."]),
    ("Who (\"me?\") is? 'Yes.' Me.", "en", ['Who ("me?") is?', "'Yes.'", "Me."]),
]

_A, _B, _C, _D = map(chr, range(0x10FF00, 0x10FF04))  # reserved characters
# Texts; outputs of a model for them, which reads reserved characters for kept words; with the kept words put back; and
# whether it wrote all of them as often as they are in the text.
PUT_BACK = [
    ("The {a} sees {b}.", f"Die {_A} sieht {_B}.", "Die {a} sieht {b}.", True),
    ("The {a} sees {b}.", f"{_B} sieht die {_A}", "{b} sieht die {a}", True),
    ("{a} sleeps", f"{_A} \u0441\u043f\u0438\u0442", "{a} \u0441\u043f\u0438\u0442", True),
    ("It sees {a}", f"Es sieht {_A}", "Es sieht {a}", True),
    ("({a}), {b}px!", f"({_A}), {_B}px!", "({a}), {b}px!", True),
    ("%d%% of {{ a b }}", f"{_A}{_B} von {_C}", "%d%% von {{ a b }}", True),
    ("no words", "keine", "keine", True),
    ("The {a} sleeps.", f"Die {_A} {_A} schl\u00e4ft.", "Die {a} schl\u00e4ft.", False),  # doubled
    ("The {a} sleeps.", f"Die {_A} schl\u00e4ft {_D}.", "Die {a} schl\u00e4ft.", False),  # unknown
    ("The {a} sleeps.", f"{_D} Die {_A} schl\u00e4ft.", "Die {a} schl\u00e4ft.", False),
    ("{a} sleeps", "schl\u00e4ft", "{a} schl\u00e4ft", False),  # missing
    ("It sleeps in the house of {a}", "Es schl\u00e4ft.", "Es schl\u00e4ft. {a}", False),
    ("one two {a} three four", "eins zwei drei vier", "eins zwei {a} drei vier", False),
    ("{a} one {b}", "", "{a} {b}", False),
    ("{{ a b }} {b}", f"{_A}", "{{ a b }} {b}", False),
    ("x {b} y {{ a b c d }}", f"{_B} z", "{{ a b c d }} {b} z", False),  # not within another one
    ("\U0001f600\U0001f600\U0001f600 {a} b", "c d e f", "c d {a} e f", False),
    (" ".join(f"{{{n}}}" for n in range(18)), " ".join(chr(0x10FF00 + n % 16) for n in range(18)), None, True),
]
