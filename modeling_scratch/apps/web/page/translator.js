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

// As `clean` in batched_generation.py: removes invisible characters, and replaces white space of any kind by one space.
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
    const prefix = decode(tokenizer, ids.slice(0, index + 1));
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

export class Translator {
  // `model` is the content of model.json; `read` returns the bytes of another file of the export, given its name.
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
    translator.target = await tokenizer(model.hasTargetTokenizer ? "target_tokenizer/" : "", false);
    const optional = (name) => (model.files.includes(name) ? json(name) : null);
    const confidence = await optional("confidence.json");
    translator.confidence = confidence && new Confidence(confidence, await optional("languages.json"));
    const options = { executionProviders: ["wasm"], graphOptimizationLevel: "all" };
    translator.encoder = await ort.InferenceSession.create(await read("encoder.onnx"), options);
    translator.decoder = await ort.InferenceSession.create(await read("decoder.onnx"), options);
    return translator;
  }

  encode(sentence) {
    return this.source.encode(clean(sentence)).ids;
  }

  // Translates one sentence. Returns the translations, best first: { text, tokens, score, isCut, weights }, and of the
  // best { confidence, doubt }, if the model has a confidence.json. `options` override the model's search settings, such
  // as numBeams.
  async translate(sentence, options = {}, checkpoint = async () => {}) {
    if (!clean(sentence)) return [{ text: "", tokens: [], score: 0, isCut: false, weights: [] }];
    const ids = this.encode(sentence);
    const { longestSource } = this.model;
    if (longestSource !== null && ids.length > longestSource) {
      throw new Error(`The text has ${ids.length} tokens, but the model takes ${longestSource}. Split it.`);
    }
    const input = new this.ort.Tensor("int64", BigInt64Array.from(ids.map(BigInt)), [1, ids.length]);
    const { source } = await this.encoder.run({ input_ids: input });
    const decoder = new Decoder(this.ort, this.decoder, source, this.model);
    const settings = { ...this.model.search, ...options };
    const found = await this.search(decoder, settings, checkpoint);
    const [{ tokens, score }] = found;
    const confidence = this.confidence?.of(ids, tokens.length, score);
    const doubt = this.confidence?.doubt(confidence, ids, clean(sentence));
    return found.map(({ tokens, score, weights }, rank) => ({
      text: decode(this.target, tokens),
      tokens,
      score,
      isCut: !settings.endTokens.includes(tokens.at(-1)),
      weights,
      ...(rank ? {} : { confidence, doubt }),
    }));
  }

  // The words of a translation and the parts between them: { text, isWord, from: [{ start, end, weight }] }. `from` are
  // words of the source; their cross-attention weights are scaled to sum to 1.
  explain(sentence, { text, tokens, weights }) {
    const { languages } = this.model;
    const read = clean(sentence);
    const sourceSpans = spans(this.source, this.encode(sentence), read);
    const targetSpans = spans(this.target, tokens, text);
    const wordsOf = (text) => words(text, languages[0]).filter(([, , isWord]) => isWord);
    // Replaced rather than removed, so that positions stay; unlike others, a soft hyphen does not divide a word.
    const [sourceWords, shown] = [wordsOf(read), wordsOf(spaced(sentence).replace(INVISIBLE, "\u00ad"))];
    return words(text, languages[1]).map((word) => {
      if (!word[2]) return { text: text.slice(word[0], word[1]), isWord: false, from: [] };
      const from = shown.map(([start, end]) => ({ start, end, weight: 0 }));
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
    });
  }
}
