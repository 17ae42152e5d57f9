// Text: cut into sentences, words of a sentence, and the sentences of an earlier text that those of a later one replace.

const TRANSLATABLE = /[\p{L}\p{N}]/u; // as `is_translatable` in model/text.py
const LINE = /[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]*(?:\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]|$)/gu; // as Python's str.splitlines()
const NEAR = 60; // characters beside a full stop that are looked at

// The language without region, de for de-AT: browsers know its code even if they reject the tag.
export const base = (tag) => tag?.split(/[-_]/)[0].toLowerCase() || undefined;

// The text without white space around it, as Python's str.strip() leaves it.
function stripped(text) {
  const isWhite = (character) => /(?!\ufeff)[\s\x1c-\x1f\x85]/.test(character);
  let [start, end] = [0, text.length];
  while (start < end && isWhite(text[start])) start++;
  while (start < end && isWhite(text[end - 1])) end--;
  return text.slice(start, end);
}

// The first and the last characters of a text. Those beyond U+FFFF count once, as in Python.
const firstOf = (text, count) => Array.from(text.slice(0, 2 * count)).slice(0, count).join("");
const lastOf = (text, count) => Array.from(text.slice(-2 * count)).slice(-count).join("");

const isWhole = (pattern, text) => new RegExp(`^(?:${pattern})$`, "u").test(text);

// Where sentences begin, but for the first one, as in model/sentences.py, which has the patterns.
export function beginnings(text, language, keptWords, patterns) {
  const masked = text.replace(new RegExp(keptWords, "gu"), (word) => "I".repeat(word.length));
  const found = [0];
  for (const match of masked.matchAll(new RegExp(patterns.end, "gu"))) {
    const end = match.index + match[0].length;
    if (end < text.length && isEnd(match, end, found.at(-1), base(language), patterns)) found.push(end);
  }
  return found.slice(1);
}

function isEnd({ input, index, 1: marks, 2: joined }, end, begin, language, patterns) {
  const [following = ""] = firstOf(input.slice(end, end + 2 * NEAR), NEAR).match(TRANSLATABLE) ?? [];
  if (joined) return /\p{Lowercase}/u.test(joined) && !/[\p{Uppercase}\p{Lt}]/u.test(joined) && /\p{Uppercase}/u.test(following);
  if (marks && /\p{Lowercase}/u.test(following)) return false;
  if (marks !== ".") return true;
  const before = lastOf(input.slice(Math.max(begin, index - 2 * NEAR), index), NEAR);
  const [word] = before.match(new RegExp(patterns.lastWord, "u"));
  const lower = word.toLowerCase();
  if (!word || (isWhole("\\p{L}", word) && word !== "I") || isWhole(patterns.beforeNames, lower)) return false;
  if (isWhole(patterns.dotted, word) || isWhole(patterns.number, before)) return false;
  if (/\p{Nd}/u.test(following) && isWhole(patterns.beforeNumbers, lower)) return false;
  return !(["de", "deu", "ger"].includes(language) && new RegExp(patterns.beforeOrdinals, "u").test(before.toLowerCase()));
}

// Cuts a text into sentences, or into lines for a model without languages, and the parts between them: [text, is a
// sentence]. Only sentences go to the model. As the service does: see `cut_into_sentences` in readers.py.
export function cut(text, { languages, hasSentences, takesAnyText, keptWords, sentences }) {
  const found = [];
  const add = (part, isSentence) => part && found.push([part, isSentence]);
  for (const [line] of text.matchAll(LINE)) {
    const places = hasSentences ? beginnings(line, languages[0], keptWords ?? sentences.addresses, sentences) : [];
    [0, ...places].forEach((start, index) => {
      const [number = ""] = (hasSentences && !index && line.match(new RegExp(`^${sentences.numbered}`, "u"))) || [];
      add(number, false);
      const part = line.slice(start + number.length, places[index]);
      const sentence = stripped(part);
      const before = part.indexOf(sentence);
      add(part.slice(0, before), false);
      add(sentence, TRANSLATABLE.test(sentence) || (takesAnyText && !hasSentences));
      add(part.slice(before + sentence.length), false);
    });
  }
  return found;
}

// The parts with offsets, { text, start, isSentence }, and between sentences the space that the target language requires.
export function placed(parts, space) {
  const found = [];
  let start = 0;
  parts.forEach(([text, isSentence], index) => {
    const [followed, follows] = [found.at(-1)?.isSentence, parts[index + 1]?.[1]];
    if (isSentence && followed && space) found.push({ text: space, start, isSentence: false });
    const isDropped = !space && text === " " && followed && follows;
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
