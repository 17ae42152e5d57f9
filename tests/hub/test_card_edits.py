"""What people edit in a card survives the next push; what is marked as generated is generated anew."""

import pytest

from modeling_scratch.hub.card import BEGIN, END, EditableCard, choose_edited, parse_card, update_card

OLD = EditableCard({"license": "apache-2.0", "tags": ["a"], "metrics": ["bleu"]}, "", "# tiny\n\nOld scores.", "")
NEW = EditableCard({"license": "apache-2.0", "tags": ["a", "b"], "metrics": ["chrf"]}, "", "# tiny\n\nNew scores.", "")


def updated(edited: EditableCard, *replaced: str) -> EditableCard:
    """As a push does it: written, read again, updated, written and read."""
    return parse_card(str(update_card(NEW, parse_card(str(edited), "a card"), set(replaced), {})), "a card")


def test_a_card_is_read_as_it_was_written():
    card = EditableCard({"license": "mit", "day": "2026-01-02", "no": "no"}, "Above.", "Generated.", "Below.")
    read = parse_card(str(card), "a card")
    assert read.edits() == card.edits()
    assert read.generated.strip() == "Generated."
    assert str(read) == str(card) == parse_card(str(card).replace("\n", "\r\n"), "a card").__str__()


def test_the_generated_part_and_the_measured_metadata_are_new():
    card = updated(OLD)
    assert "New scores." in card.generated
    assert card.metadata["metrics"] == ["chrf"]


def test_what_is_no_longer_measured_goes():
    old = EditableCard(OLD.metadata | {"widget": [{"text": "A cat."}]}, "", OLD.generated, "")
    assert "widget" not in updated(old).metadata


def test_text_around_and_other_metadata_stay():
    edited = EditableCard(OLD.metadata | {"license": "mit", "thumbnail": "x.png"}, "Mine.", OLD.generated, "## Thanks")
    card = updated(edited)
    assert (card.above.strip(), card.below.strip()) == ("Mine.", "## Thanks")
    assert card.metadata == {"license": "mit", "tags": ["a"], "metrics": ["chrf"], "thumbnail": "x.png"}


def test_metadata_that_nobody_edited_are_new():
    """As after a run on other data in the same folder: what was generated before is not somebody's edit."""
    before = OLD.metadata | {"datasets": ["a/b"], "language": ["en", "de"]}
    edited = before | {"language": ["en", "fr"], "thumbnail": "x.png"}
    card = update_card(NEW, EditableCard(edited, "", OLD.generated, ""), set(), before)
    others = {"language": ["en", "fr"], "thumbnail": "x.png"}  # an edit, and an addition
    assert card.metadata == {"license": "apache-2.0", "tags": ["a", "b"], "metrics": ["chrf"], **others}


def test_an_option_wins_over_an_edit():
    edited = EditableCard(OLD.metadata | {"license": "mit"}, "", OLD.generated, "")
    assert updated(edited, "license").metadata["license"] == "apache-2.0"


def test_a_card_with_metadata_alone_gets_the_generated_text():
    """As the Hub's form for a new repository writes it."""
    card = updated(parse_card("---\nlicense: mit\n---\n", "a card"))
    assert card.metadata["license"] == "mit"
    assert "New scores." in card.generated


@pytest.mark.parametrize("text", ["# Mine\n", f"# Mine\n{BEGIN}\n", f"# Mine\n{END}\n{BEGIN}\n"])
def test_a_text_without_the_two_marks_stays_whole(text):
    card = update_card(NEW, parse_card(text, "a card"), set(), {})
    assert str(card).endswith(f"---\n\n{text}")


def edited(text: str) -> EditableCard:
    return EditableCard(OLD.metadata, text, OLD.generated, "")


PLAIN, FOLDER, HUB = edited(""), edited("In the folder."), edited("On the Hub.")


@pytest.mark.parametrize(
    ("in_folder", "on_hub", "pushed", "chosen"),
    [
        (None, None, None, NEW),
        (FOLDER, None, None, FOLDER),
        (None, HUB, PLAIN, HUB),
        (PLAIN, HUB, PLAIN, HUB),
        (FOLDER, PLAIN, PLAIN, FOLDER),
        (FOLDER, FOLDER, PLAIN, FOLDER),
        (FOLDER, HUB, FOLDER, HUB),
        (FOLDER, HUB, PLAIN, None),
        (FOLDER, HUB, None, None),
    ],
)
def test_the_card_that_was_edited_since_the_last_push_is_chosen(in_folder, on_hub, pushed, chosen):
    found = choose_edited(NEW, in_folder, on_hub, pushed)
    assert (found and found.edits()) == (chosen and chosen.edits())
