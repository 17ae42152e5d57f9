// Text: cut into sentences, words of a sentence, and the sentences of an earlier text that those of a later one replace.

const TRANSLATABLE = /[\p{L}\p{N}]/u; // as `is_translatable` in model/text.py
const NUMBER = /^\d+(\.\d+)*\.\s+$/; // of a heading or a list item
const SCRIPTS_WITHOUT_SPACES = new Set( // as in languages.py
  (
    "Ahom Bali Batk Bopo Brah Cham Diak Gran Hani Hira Java Kana Khmr Lana Laoo Maka Mymr Nshu Tale Talu Tang Tavt " +
    "Thai Tibt Yiii Hanb Hans Hant Hrkt Jpan"
  ).split(" "),
);

// The language without region, de for de-AT: browsers know its code even if they reject the tag.
export const base = (tag) => tag?.split("-")[0].toLowerCase() || undefined;

// Whether there are spaces between sentences in a language, by its most likely script; true if it is unknown.
export function hasSpaces(tag) {
  try {
    return !SCRIPTS_WITHOUT_SPACES.has(new Intl.Locale(base(tag)).maximize().script);
  } catch {
    return true; // not a language
  }
}

// Cuts a text into sentences, or into lines for a model without languages, and the parts between them: [text, is a
// sentence]. Only sentences go to the model.
export function cut(text, { languages, hasSentences, takesAnyText, keptWords }) {
  const found = [];
  const add = (part, isSentence) => part && found.push([part, isSentence]);
  const segmenter = new Intl.Segmenter(base(languages[0]), { granularity: "sentence" });
  const whole = (line) => [{ segment: line, index: 0 }];
  // Nothing within a kept word ends a sentence; see kept_words.py.
  const masked = (part) => part.replace(/[^\p{L}\p{N}_{}<>[\]\x60]/gu, (each) => "x".repeat(each.length));
  const uncut = (line) => (keptWords ? line.replace(new RegExp(keptWords, "gu"), masked) : line);
  for (const line of text.matchAll(/[^\n]+|\n+/g)) {
    for (const { segment: shown, index } of hasSentences ? segmenter.segment(uncut(line[0])) : whole(line[0])) {
      const segment = line[0].slice(index, index + shown.length);
      const before = segment.length - segment.trimStart().length;
      const sentence = segment.trim();
      add(segment.slice(0, before), false);
      const isNumber = index === 0 && segment.length < line[0].length && NUMBER.test(segment);
      add(sentence, (TRANSLATABLE.test(sentence) && !isNumber) || (takesAnyText && !hasSentences));
      add(segment.slice(before + sentence.length), false);
    }
  }
  return found;
}

// The parts with offsets, { text, start, isSentence }, and with spaces between sentences if the target language has any.
export function placed(parts, target) {
  const isSpaceless = !hasSpaces(target);
  const found = [];
  let start = 0;
  parts.forEach(([text, isSentence], index) => {
    const [followed, follows] = [found.at(-1)?.isSentence, parts[index + 1]?.[1]];
    if (isSentence && followed && !isSpaceless) found.push({ text: " ", start, isSentence: false });
    const isDropped = isSpaceless && text === " " && followed && follows;
    found.push({ text: isDropped ? "" : text, start, isSentence });
    start += text.length;
  });
  return found;
}

// For each sentence of `after`, the index of the sentence of `before` that it is or replaces; undefined: it is new.
export function replaced(before, after) {
  const least = Math.min(before.length, after.length);
  let [first, last] = [0, 0]; // sentences that stay at the beginning and at the end
  while (first < least && before[first] === after[first]) first++;
  while (last < least - first && before.at(-1 - last) === after.at(-1 - last)) last++;
  return after.map((_, index) => {
    if (index >= after.length - last) return index - after.length + before.length;
    return index < before.length - last ? index : undefined;
  });
}

// The words of a text and what is between them: { text, start, isWord }.
export function wordsOf(text, language) {
  const found = new Intl.Segmenter(base(language), { granularity: "word" }).segment(text);
  return Array.from(found, ({ segment, index, isWordLike }) => ({ text: segment, start: index, isWord: isWordLike }));
}
