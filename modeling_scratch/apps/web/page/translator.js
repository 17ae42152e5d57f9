// The translator: tokenizers, the model's two graphs, and the source words that each translated word attends to.

// Runs the decoder step by step. Its key/value cache is one tensor, (2 * layers, hypotheses, heads, length, head size).
class Decoder {
  constructor(ort, session, source, { startToken, alignmentHeads }) {
    Object.assign(this, { ort, session, source, startToken, alignmentHeads });
    const [layers, , heads, , size] = source.dims;
    this.past = new ort.Tensor("float32", new Float32Array(0), [layers, 1, heads, 0, size]);
  }

  // Replaces row i of the cache by row rows[i].
  reorder(rows) {
    const [layers, before, ...rest] = this.past.dims;
    if (rows.length === before && rows.every((row, index) => row === index)) return;
    const size = rest.reduce((product, each) => product * each, 1);
    const data = new Float32Array(layers * rows.length * size);
    for (let layer = 0; layer < layers; layer++) {
      rows.forEach((row, index) => {
        const start = (layer * before + row) * size;
        data.set(this.past.data.subarray(start, start + size), (layer * rows.length + index) * size);
      });
    }
    this.past = new this.ort.Tensor("float32", data, [layers, rows.length, ...rest]);
  }

  // Returns { logProbs, weights }: a row of log-probabilities for each hypothesis, in one array; and its attention to the
  // source, averaged over the model's alignment heads, or over all heads if it names none.
  async step(hypotheses) {
    this.reorder(hypotheses.map(({ row }) => row));
    const tokens = hypotheses.map((each) => BigInt(each.tokens.at(-1) ?? this.startToken));
    const inputs = {
      input_ids: new this.ort.Tensor("int64", BigInt64Array.from(tokens), [tokens.length, 1]),
      past: this.past,
      source: this.source,
    };
    const { log_probs, present, weights } = await this.session.run(inputs);
    this.past = present;
    const [layers, rows, heads, length] = weights.dims;
    const all = Array.from({ length: layers * heads }, (_, index) => [Math.floor(index / heads), index % heads]);
    const chosen = this.alignmentHeads ?? all; // pairs [layer, head], from 0
    const means = hypotheses.map(() => new Float32Array(length));
    for (let row = 0; row < rows; row++) {
      for (const [layer, head] of chosen) {
        const start = ((layer * rows + row) * heads + head) * length;
        for (let place = 0; place < length; place++) means[row][place] += weights.data[start + place] / chosen.length;
      }
    }
    return { logProbs: log_probs.data, weights: means };
  }
}

// As `clean` in model/text.py: removes invisible characters, and replaces white space of any kind by one space.
const INVISIBLE = /[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]/gu;
const WHITE_SPACE = /(?:[^\S\ufeff]|[\x1c-\x1f\x85])/gu; // the characters that Python's str.isspace() accepts
const spaced = (text) => text.replace(WHITE_SPACE, " ");
const clean = (text) => spaced(text).replace(INVISIBLE, "").split(" ").filter(Boolean).join(" ");

const decode = (tokenizer, ids) => (ids.length ? tokenizer.decode(ids, { skip_special_tokens: true }) : "");

// Where each token starts and ends in `text`. Only other characters than spaces count, since decoding may add spaces.
export function spans(tokenizer, ids, text) {
  const ends = [0, ...Array.from(text.matchAll(/\S/g), ({ index }) => index + 1)];
  let end = 0;
  return ids.map((_, index) => {
    const start = end;
    const prefix = decode(tokenizer, ids.slice(0, index + 1)).normalize("NFC"); // tokens may be parts of characters
    // A character may consist of several tokens. Until it is complete, it decodes to a replacement character.
    const count = prefix.replace(/\s/g, "").length;
    if (!prefix.endsWith("\ufffd")) end = Math.max(ends[Math.min(count, ends.length - 1)], start);
    return [start, end];
  });
}

// The words of a text and the parts between them: [start, end, is a word].
function words(text, tag) {
  const found = new Intl.Segmenter(tag?.split("-")[0], { granularity: "word" }).segment(text);
  return Array.from(found, ({ index, segment, isWordLike }) => [index, index + segment.length, isWordLike]);
}

const overlaps = ([start, end], [from, to]) => start < to && from < end;

const LEFT_OUT = "\u2060"; // invisible: `clean` removes it, and positions stay
const LETTER = /[\p{L}\p{N}]/gu;
const isLetter = (character) => /[\p{L}\p{N}]/u.test(character ?? "");
const DIVIDER = /[\p{L}\p{N}\p{Z}\p{C}\p{Ps}\p{Pe}\p{Pi}\p{Pf}"]/u; // all but punctuation and symbols
const isWhite = (character) => /\s/.test(character ?? "");

const LOST_WORDS = 0.25; // the most confidence in an output whose kept words are placed by guess; see text.py
const FIRST_RESERVED = 0x10ff00; // as in model/kept_words.py
const RESERVED = /( ?[\u{10ff00}-\u{10ff0f}])/u;
const WORD = /(?:[^\s\x1c-\x1f\x85]|\ufeff)+/gu;

// As `hide` in model/kept_words.py: a sentence with one of `count` reserved characters in place of each part that matches
// `pattern`, and the parts: { start, end, at }, where `at` is the reserved character's place.
export function hide(sentence, pattern, count) {
  const kept = [];
  let [read, done] = ["", 0];
  for (const { 0: { length }, index } of sentence.matchAll(pattern)) {
    read += sentence.slice(done, index);
    done = index + length;
    kept.push({ start: index, end: done, at: read.length });
    read += String.fromCodePoint(FIRST_RESERVED + ((kept.length - 1) % count));
  }
  return [read + sentence.slice(done), kept];
}

// As `restore_words` in model/kept_words.py. Returns [parts, whether each reserved character was written as often as it was
// read]. A part is { text, at } of the output, { text, kept } with the number of a kept word, or { text } of an added space.
export function restored(output, read, words) {
  const waiting = new Map(); // the numbers of the words that each reserved character stands for
  const places = []; // of these words, in characters, as Python counts them
  Array.from(read).forEach((character, place) => {
    if (!RESERVED.test(character)) return;
    waiting.set(character, [...(waiting.get(character) ?? []), places.length]);
    places.push(place);
  });
  const parts = [];
  let [at, isWhole] = [0, true];
  for (const part of output.split(RESERVED)) {
    if (!RESERVED.test(part)) {
      parts.push({ text: part, at });
    } else if (waiting.get(part.trim())?.length) {
      const kept = waiting.get(part.trim()).shift();
      parts.push({ text: part.startsWith(" ") ? " " : "", at }, { text: words[kept], kept });
    } else {
      isWhole = false;
    }
    at += part.length;
  }
  const missing = [...waiting.values()].flat().sort((first, second) => first - second);
  if (isWhole && !missing.length) return [parts.filter(({ text }) => text), true];
  const shown = parts.map(({ text, kept }) => (kept === undefined ? text : "x".repeat(text.length))).join("");
  const ends = [0, ...Array.from(shown.matchAll(WORD), ({ 0: { length }, index }) => index + length)];
  for (const kept of missing.reverse()) {
    insert(parts, ends[Math.floor((places[kept] / Array.from(read).length) * (ends.length - 1) + 0.5)], { text: words[kept], kept });
  }
  trim(parts, 0, "trimStart");
  trim(parts, -1, "trimEnd");
  return [parts.filter(({ text }) => text), false];
}

// Removes white space from the first or the last parts, up to a kept word.
function trim(parts, place, side) {
  for (let part; (part = parts.at(place)) && part.kept === undefined; parts.splice(place, 1)) {
    const text = part.text[side]();
    if (place === 0) part.at += part.text.length - text.length;
    part.text = text;
    if (text) return;
  }
}

// Inserts a kept word, between spaces, after so many characters of the parts.
function insert(parts, end, word) {
  let index = 0;
  while (index < parts.length && end >= parts[index].text.length) end -= parts[index++].text.length;
  const after = parts.splice(index);
  if (end) {
    const { text, at } = after[0];
    parts.push({ text: text.slice(0, end), at });
    after[0] = { text: text.slice(end), at: at + end };
  }
  trim(after, 0, "trimStart");
  parts.push({ text: " " }, word, { text: " " }, ...after);
}

// Takes the parts that match `pattern` out of a sentence, as in placement.py. Returns what is left, with LEFT_OUT in
// their place, and the parts: { start, end }.
export function takeOut(sentence, pattern) {
  const kept = [];
  for (const { 0: { length }, index } of pattern ? sentence.matchAll(pattern) : []) {
    const [last, end] = [kept.at(-1), index + length];
    // Those with only punctuation between them, as in "{a}/{b}", are one.
    if (last && !DIVIDER.test(sentence.slice(last.end, index))) last.end = end;
    else kept.push({ start: index, end });
  }
  const left = sentence.split("");
  const [first, last] = [kept[0], kept.at(-1)];
  // The comma in "{name}, come!" and in "Come, {name}!".
  if (kept.length && !sentence.slice(0, first.start).trim() && ",;:".includes(left[first.end] ?? " ")) first.end++;
  const [before, after] = kept.length ? [sentence.slice(0, last.start).trimEnd(), sentence.slice(last.end)] : ["", ""];
  if (before.endsWith(",") && before.length > (kept.at(-2)?.end ?? 0) && !after.match(LETTER)) last.start = before.length - 1;
  for (const { start, end } of kept) {
    left.fill(LEFT_OUT, start, end);
    // No space before a full stop or after a bracket.
    if (".,;:!?)]}»”…".includes(left[end] ?? " ")) {
      for (let at = start - 1; left[at] === LEFT_OUT || isWhite(left[at]); at--) left[at] = LEFT_OUT;
    }
    if ("([{«„".includes(left[start - 1] ?? " ") && isWhite(left[end])) left[end] = LEFT_OUT;
  }
  return [left.join(""), kept];
}

// Puts kept parts among the words of a translation: after the word that comes from the word before them, at the
// beginning, or at the end. A part directly after another stays there.
export function putBack(words, kept, sentence, left) {
  const letters = Array.from(left.matchAll(LETTER), ({ index }) => index);
  const best = new Map(); // the start of each source word: the translated word in which it has most weight
  words.forEach(({ from }, index) => {
    for (const { start, weight } of from) if (!(best.get(start)?.weight >= weight)) best.set(start, { index, weight });
  });
  const starts = [...best.keys()].sort((first, second) => first - second);
  const lastWord = words.findLastIndex(({ isWord }) => isWord);
  const follows = []; // what is left after each part
  for (let index = kept.length - 1, end = sentence.length, found; index >= 0; end = kept[index--].start) {
    found = left.slice(kept[index].end, end).replaceAll(LEFT_OUT, "").trim()[0] ?? found;
    follows[index] = found;
  }
  const at = [[], ...words.map(() => [])]; // the parts at the beginning, and after each word
  let [passed, place] = [0, -1];
  kept.forEach(({ start, end }, index) => {
    while (starts[passed] < start) passed++;
    if (kept[index - 1]?.end !== start || start < letters[0]) {
      place = passed ? best.get(starts[passed - 1]).index : -1;
      while (/^[-–'’]$/.test(words[place + 1]?.text) && words[place + 2]?.isWord) place += 2; // to the end of a compound
      if (isWhite(sentence[start - 1]) && words[place + 1]?.text[0] === sentence[start - 2]) place++; // after a comma
      // Directly before a word, it goes before what translates this word.
      if (isWhite(sentence[start - 1]) && best.has(end)) place = best.get(end).index - 1;
      if (start > letters.at(-1)) place = follows[index] ? lastWord : words.length - 1;
      if (start < letters[0]) place = -1;
    }
    at[place + 1].push({ text: sentence.slice(start, end), isWord: true, from: [{ start, end, weight: 1 }] });
  });
  const space = { text: " ", isWord: false, from: [] };
  const made = [];
  at.forEach((parts, index) => {
    if (index) made.push(words[index - 1]);
    for (const part of parts) {
      const [{ start }] = part.from;
      const [previous, isAfterPart] = [sentence[start - 1], left[start - 1] === LEFT_OUT];
      const isBare = isLetter(previous) || isAfterPart || sentence[start] === ","; // no space is needed
      const isApart = isWhite(previous) || (!isBare && isLetter(made.at(-1)?.text.at(-1)));
      if (made.length && isApart && !isWhite(made.at(-1).text.at(-1))) made.push(space);
      made.push(part);
    }
    const next = words[index]?.text[0];
    const behind = sentence[parts.at(-1)?.from[0].end];
    // No space is needed before the translation of what follows directly.
    const isJoined = !isWhite(behind) && words[index]?.from.some(({ start }) => start === parts.at(-1)?.from[0].end);
    if (parts.length && !isJoined && ((!index && isWhite(behind)) || isLetter(next))) made.push(space);
  });
  return made;
}

export class Translator {
  // `model` is a direction in model.json; `read` returns the bytes of one of its files, given its name.
  static async load({ ort, Tokenizer, search, Confidence }, model, read) {
    const json = async (name) => JSON.parse(new TextDecoder().decode(await read(name)));
    // With split_special_tokens, the source's tokenizer must take special tokens for plain text.
    const asText = ({ added_tokens, ...rest }) => ({ ...rest, added_tokens: added_tokens.filter(({ special }) => !special) });
    const tokenizer = async (prefix, isSource) => {
      const [content, config] = [await json(`${prefix}tokenizer.json`), await json(`${prefix}tokenizer_config.json`)];
      const made = new Tokenizer(isSource && config.split_special_tokens ? asText(content) : content, config);
      // The end token may be an added token that is not in the vocabulary.
      for (const { content: token, id } of content.added_tokens) made.model.tokens_to_ids.set(token, id);
      return made;
    };
    const translator = new Translator();
    Object.assign(translator, { ort, search, model, source: await tokenizer("", true) });
    translator.kept = model.keptWords && new RegExp(model.keptWords, "gu");
    translator.target = await tokenizer(model.hasTargetTokenizer ? "target_tokenizer/" : "", false);
    const optional = (name) => (name in model.files ? json(name) : null);
    const confidence = await optional("confidence.json");
    translator.confidence = confidence && new Confidence(confidence, await optional("languages.json"));
    const options = { executionProviders: ["wasm"], graphOptimizationLevel: "all" };
    translator.encoder = await ort.InferenceSession.create(await read("encoder.onnx"), options);
    translator.decoder = await ort.InferenceSession.create(await read("decoder.onnx"), options);
    return translator;
  }

  // Whether the model reads reserved characters for kept words.
  get hides() {
    return Boolean(this.kept && this.model.reserved);
  }

  // What the model reads of a sentence, not yet cleaned, and its kept words.
  take(sentence) {
    return this.hides ? hide(sentence, this.kept, this.model.reserved) : takeOut(sentence, this.kept);
  }

  // For models with reserved characters: the parts of an output; see `restored`.
  restore(output, sentence, [read, kept]) {
    return restored(output, read, kept.map(({ start, end }) => sentence.slice(start, end)));
  }

  encode(sentence) {
    return this.source.encode(clean(sentence)).ids;
  }

  // Translates one sentence. Returns the translations, best first: { text, tokens, score, isCut, weights }, and of the
  // best { confidence, doubt }, if the model has a confidence.json. `options` override the model's search settings, such
  // as numBeams.
  async translate(sentence, options = {}, checkpoint = async () => {}) {
    const [left, kept] = this.take(sentence);
    if (!left.match(LETTER) && (!this.model.takesAnyText || (kept.length && !this.hides) || !clean(left))) {
      return [{ text: clean(sentence) && sentence.trim(), tokens: [], score: 0, isCut: false, weights: [] }];
    }
    const ids = this.encode(left);
    const { longestSource } = this.model;
    if (longestSource !== null && ids.length > longestSource) {
      const message = `the sentence has ${ids.length} tokens, but the model takes ${longestSource}`;
      throw Object.assign(new Error(message), { isTooLong: true });
    }
    const input = new this.ort.Tensor("int64", BigInt64Array.from(ids.map(BigInt)), [1, ids.length]);
    const { source } = await this.encoder.run({ input_ids: input });
    const decoder = new Decoder(this.ort, this.decoder, source, this.model);
    const settings = { ...this.model.search, ...options };
    const restored = ({ tokens }) => this.restore(decode(this.target, tokens), sentence, [left, kept]);
    const isWhole = (each) => !this.hides || restored(each)[1];
    // First those that have all kept words and no others, as `TextRules.best_ranks` in model/text.py.
    const found = await this.search(decoder, settings, checkpoint);
    found.sort((first, second) => isWhole(second) - isWhole(first));
    const [{ tokens, score }] = found;
    const sure = this.confidence?.of(ids, tokens.length, score, decode(this.target, tokens), this.model.isTranslator);
    const hasAll = isWhole(found[0]);
    const confidence = hasAll ? sure : sure && Math.min(sure, LOST_WORDS);
    const text = clean(left.replaceAll(/[\u{10ff00}-\u{10ff0f}]/gu, " "));
    const doubt = this.confidence?.doubt(confidence, ids, text, tokens.length, hasAll) ?? (hasAll ? undefined : "kept-word");
    const textOf = (each) => {
      if (!this.hides && !kept.length) return decode(this.target, each.tokens);
      const parts = this.hides ? restored(each)[0] : this.explain(sentence, each);
      return parts.map(({ text }) => text).join("");
    };
    return found.map(({ tokens, score, weights }, rank) => ({
      text: textOf({ tokens, weights }),
      tokens,
      score,
      isCut: !settings.endTokens.includes(tokens.at(-1)),
      weights,
      ...(rank ? {} : { confidence, doubt }),
    }));
  }

  // The words of a translation and the parts between them: { text, isWord, from: [{ start, end, weight }] }. `from` are
  // words of the source; their cross-attention weights are scaled to sum to 1. A kept word comes from itself.
  explain(sentence, { tokens, weights }) {
    const { languages } = this.model;
    const [left, kept] = this.take(sentence);
    if (!tokens.length) return [{ text: clean(sentence) && sentence.trim(), isWord: false, from: [] }];
    const text = decode(this.target, tokens);
    const read = clean(left);
    const sourceSpans = spans(this.source, this.encode(left), read);
    const targetSpans = spans(this.target, tokens, text);
    const wordsOf = (text) => words(text, languages[0]).filter(([, , isWord]) => isWord);
    // Replaced rather than removed, so that positions stay; unlike others, a soft hyphen does not divide a word.
    const [sourceWords, shown] = [wordsOf(read), wordsOf(spaced(left).replace(INVISIBLE, "\u00ad"))];
    const shownEnd = (end) => {
      while (left[end - 1] === LEFT_OUT) end--;
      return end;
    };
    // Where a place in what the model reads is in the sentence.
    const original = (place) => {
      const before = this.hides ? kept.findLast(({ at }) => at < place) : undefined;
      return before ? place - before.at - 2 + before.end : place;
    };
    const linked = (word) => {
      if (!word[2]) return { text: text.slice(word[0], word[1]), isWord: false, from: [] };
      const from = shown.map(([start, end]) => ({ start: original(start), end: original(shownEnd(end)), weight: 0 }));
      targetSpans.forEach((made, step) => {
        if (!overlaps(word, made)) return;
        sourceSpans.forEach((span, place) => {
          sourceWords.forEach((sourceWord, index) => {
            if (from[index] && overlaps(sourceWord, span)) from[index].weight += weights[step][place];
          });
        });
      });
      const sum = from.reduce((total, { weight }) => total + weight, 0);
      if (sum) for (const each of from) each.weight /= sum;
      return { text: text.slice(word[0], word[1]), isWord: true, from: from.filter(({ weight }) => weight > 0.02) };
    };
    if (this.hides) {
      return this.restore(text, sentence, [left, kept])[0].flatMap((part) => {
        if (part.at === undefined) {
          const { start, end } = kept[part.kept] ?? {};
          return [{ text: part.text, isWord: end > 0, from: end ? [{ start, end, weight: 1 }] : [] }];
        }
        return words(part.text, languages[1]).map(([start, end, isWord]) => linked([part.at + start, part.at + end, isWord]));
      });
    }
    const made = words(text, languages[1]).map(linked);
    return kept.length ? putBack(made, kept, sentence, left) : made;
  }
}
