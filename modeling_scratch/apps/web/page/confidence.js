// How far to trust an output, as in model/confidence.py; and why an output is doubtful.

const DOUBTFUL = 0.5; // below this
const HASHES = 4;
const LOWEST = -1e6; // log-probability, in place of minus infinity
const MORE = 3; // tokens that are as usual are added to each text
const FARTHEST = 30; // from the threshold, in scales
const CLEARLY = Math.log(10) / 2; // per square root of a byte; measured with py3langid, which divides likewise

const unpacked = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
const latin = new TextDecoder("latin1"); // one character for each byte

// A hash of a 32-bit number: the finalizer of MurmurHash3.
function mixed(number) {
  number = Math.imul(number ^ (number >>> 16), 0x85ebca6b);
  number = Math.imul(number ^ (number >>> 13), 0xc2b2ae35);
  return (number ^ (number >>> 16)) >>> 0;
}

// A set of n-grams of tokens, as a Bloom filter.
class NgramSet {
  constructor(bits) {
    this.bits = bits;
  }

  has(...tokens) {
    const start = tokens.reduce((hash, token) => mixed(hash ^ (token + 2)), 0);
    const step = (mixed(start ^ 0x9e3779b9) | 1) >>> 0;
    for (let number = 0; number < HASHES; number++) {
      const place = (start + number * step) % (8 * this.bits.length);
      if (!((this.bits[Math.floor(place / 8)] >> (place % 8)) & 1)) return false;
    }
    return true;
  }
}

// Tells whether a text is in another language than `source`; see language_table.py.
export class LanguageTable {
  constructor({ source, languages, step, sequences }) {
    Object.assign(this, { source: languages.indexOf(source), count: languages.length, step, weights: new Map(), longest: 0 });
    const bytes = unpacked(sequences);
    const letters = latin.decode(bytes);
    for (let place = 0; place < bytes.length; ) {
      const middle = place + 1 + bytes[place]; // a sequence, and its weights, each after its length
      const end = middle + 1 + bytes[middle];
      this.weights.set(letters.slice(place + 1, middle), bytes.subarray(middle + 1, end));
      this.longest = Math.max(this.longest, bytes[place]);
      place = end;
    }
  }

  isForeign(text) {
    const isUpper = text === text.toUpperCase() && text !== text.toLowerCase();
    const bytes = latin.decode(new TextEncoder().encode((isUpper ? text.toLowerCase() : text).normalize("NFC")));
    const counts = new Map(); // of the longest known sequence that ends at each byte
    for (let end = 1; end <= bytes.length; end++) {
      for (let start = Math.max(0, end - this.longest); start < end; start++) {
        const weights = this.weights.get(bytes.slice(start, end));
        if (!weights) continue;
        counts.set(weights, (counts.get(weights) ?? 0) + 1);
        break;
      }
    }
    const scores = new Float64Array(this.count);
    for (const [weights, count] of counts) {
      for (const each of weights) scores[each >> 2] += Math.log1p(count) * this.step * ((each & 3) + 1);
    }
    return Math.max(...scores) - scores[this.source] > CLEARLY * Math.sqrt(bytes.length);
  }
}

const ratioOf = (length, ids) => (length + MORE) / (ids.length + MORE);

export class Confidence {
  // The contents of confidence.json and, if the page has it, languages.json.
  constructor({ signals, longest_source, known, reserved = [] }, table) {
    Object.assign(this, { signals, longest: longest_source, known: new NgramSet(unpacked(known)), reserved });
    this.table = table && new LanguageTable(table);
  }

  // `ids` are the source's tokens with the end token; `length` is the number of target tokens, of which
  // `logProbability` is that of the whole, and `text` the output; that of a translator has letters or digits.
  of(ids, length, logProbability, text, isTranslator) {
    if (!(isTranslator ? /[\p{L}\p{N}]/u : /\S/u).test(text)) return 0;
    const isKnown = (...tokens) => tokens.some((token) => this.reserved.includes(token)) || this.known.has(...tokens);
    let known = 0; // pairs and triples
    ids.forEach((id, index) => {
      const [first, second] = [ids[index - 2] ?? -1, ids[index - 1] ?? -1];
      known += isKnown(second, id) + isKnown(first, second, id);
    });
    const found = {
      mean_log_probability: Math.max(logProbability, LOWEST) / length,
      known_ngrams: (known / 2 + MORE) / (ids.length + MORE),
      length_ratio: ids.length / length,
      target_ratio: ratioOf(length, ids),
    };
    const distances = Object.entries(this.signals).map(([name, [least, scale]]) => (found[name] - least) / scale);
    const number = 1 / (1 + Math.exp(-Math.max(Math.min(...distances), -FARTHEST)));
    return this.isLonger(ids) ? Math.min(number, (DOUBTFUL * this.longest) / ids.length) : number;
  }

  isLonger(ids) {
    return this.longest !== null && ids.length > this.longest;
  }

  // Why the output for a text, of `length` tokens, is doubtful, as in texts.py: "language", "kept-word", "length", "short"
  // or "unlike"; undefined if it is not. `hasAll`: the model wrote each kept word once.
  doubt(confidence, ids, text, length, hasAll = true) {
    if (confidence >= DOUBTFUL) return undefined;
    if (this.table?.isForeign(text)) return "language";
    if (!hasAll) return "kept-word";
    if (this.isLonger(ids)) return "length";
    return ratioOf(length, ids) < this.signals.target_ratio?.[0] ? "short" : "unlike";
  }
}
