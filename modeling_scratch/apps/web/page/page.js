// The page: sends text to the worker in parts, and shows the outputs as words that can be pointed at.

const get = (id) => document.getElementById(id);
const [source, target, marks, status, loading] = ["source", "target", "marks", "status", "loading"].map(get);
const WAIT = 120; // milliseconds after the last key press before the model runs
const CALM = 1000; // milliseconds after the last key press before a warning: an unfinished sentence is often doubtful
const LOWEST = 0.04; // words with smaller weights are not marked

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Shows a status, which screen readers also read aloud.
function say(text, isFailure = false) {
  status.textContent = text;
  status.classList.toggle("failure", isFailure);
}

// -- files: next to the page or, in a single-file page, compressed inside it -----------------------------------------

const embedded = get("files") && JSON.parse(get("files").textContent);

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function fetched(name, progress) {
  const response = await fetch(name, { cache: "no-cache" }); // another export has files with the same names
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  const parts = [];
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return new Uint8Array(await new Blob(parts).arrayBuffer());
    parts.push(value);
    progress(value.length);
  }
}

async function read(name, progress = () => {}) {
  try {
    return await (embedded ? unpacked(embedded[name]) : fetched(name, progress));
  } catch (error) {
    throw new Error(`${name} cannot be loaded (${error.message}). Reload the page, or export it again.`);
  }
}

// Reads files, { name: path }. Returns their contents by name.
async function readAll(paths, progress) {
  const entries = Object.entries(paths).map(async ([name, path]) => [name, await read(path, progress)]);
  return Object.fromEntries(await Promise.all(entries));
}

// -- text ------------------------------------------------------------------------------------------------------------

const TRANSLATABLE = /[\p{L}\p{N}]/u; // as `is_translatable` in languages.py
const NUMBER = /^\d+(\.\d+)*\.\s+$/; // of a heading or a list item
const WITHOUT_SPACES = new Set(["bo", "ja", "km", "lo", "my", "th", "yue", "zh"]); // no spaces between sentences

// The language without region, de for de-AT: browsers know its code even if they reject the tag.
const base = (tag) => tag?.split("-")[0].toLowerCase();

// Cuts a text into sentences, or into lines for a model without languages, and the parts between them: [text, is a
// sentence]. Only sentences go to the model.
function cut(text, { languages, hasSentences, takesAnyText, keptWords }) {
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
function placed(parts, target) {
  const isSpaceless = WITHOUT_SPACES.has(base(target));
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

// Why the outputs for some sentences are doubtful, for people; `doubts` are those of confidence.js.
function warning(doubts, { languages, hasSentences }) {
  const isOne = doubts.length === 1;
  const [verb, seem] = isOne ? ["is", "does not seem"] : ["are", "do not seem"];
  const input = `${isOne ? "its" : "their"} ${hasSentences ? "sentence" : "input"}${isOne ? "" : "s"}`;
  const reasons = {
    language: `${seem} to be in ${new Intl.DisplayNames("en", { type: "language" }).of(base(languages[0]) ?? "und")}`,
    length: `${verb} longer than any that this model has learnt from`,
    unlike: `${verb} unlike what this model has learnt`,
  };
  const found = [...new Set(doubts)].map((doubt) => reasons[doubt]);
  return `The underlined output${isOne ? "" : "s"} may be wrong: ${input} ${found.join(", or ")}.`;
}

const shortened = (text) => (text.length > 40 ? `${text.slice(0, 40)}…` : text);

// Highlights words behind the source's text field, in proportion to their weights.
function mark(start = 0, from = []) {
  const text = source.value;
  const pieces = [];
  const strongest = Math.max(...from.map(({ weight }) => weight));
  let end = 0;
  for (const each of from.filter(({ weight }) => weight >= LOWEST)) {
    const word = element("mark", {}, text.slice(start + each.start, start + each.end));
    word.style.setProperty("--weight", (0.75 * each.weight) / strongest);
    pieces.push(text.slice(end, start + each.start), word);
    end = start + each.end;
  }
  marks.replaceChildren(...pieces, `${text.slice(end)}\n`);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text); // fails in pages served over http by other devices
    return true;
  } catch {
    getSelection().selectAllChildren(target);
    return document.execCommand("copy");
  }
}

// -- the page ----------------------------------------------------------------------------------------------------------

class Page {
  constructor(worker, models) {
    Object.assign(this, { worker, number: 0, known: new Map(), parts: [], missing: [], text: "", typed: -CALM });
    worker.onmessage = ({ data }) => this.receive(data);
    models.forEach((model, index) => get("direction").append(element("option", { value: index }, model.title)));
    get("directions").hidden = models.length < 2;
    this.listen(models);
    this.use(models[0]);
  }

  async use(model) {
    Object.assign(this, { model, isReady: false });
    this.known.clear();
    this.describe();
    this.fit();
    try {
      await this.worker.load?.(model);
    } catch (error) {
      if (model === this.model) say(error.message, true);
      return;
    }
    if (model !== this.model) return;
    this.isReady = true;
    this.translate();
  }

  describe() {
    const { model } = this;
    document.title = get("title").textContent = model.title;
    [get("source-side").textContent, get("target-side").textContent] = model.sides;
    source.placeholder = `Type or paste text${model.hasSentences ? "" : ", one input per line"}`;
    [source.lang, target.lang] = model.languages.length ? model.languages : ["", ""];
    marks.lang = source.lang;
    for (const list of ["beams", "examples", "facts"]) get(list).replaceChildren();
    const beams = [...new Set([1, 5, model.search.numBeams])].sort((first, second) => first - second);
    for (const number of beams) {
      const name = number === 1 ? "greedy, fastest" : `beam of ${number}`;
      get("beams").append(element("option", { value: number, selected: number === model.search.numBeams }, name));
    }
    for (const text of model.examples) {
      const button = element("button", { type: "button", lang: source.lang, dir: "auto" }, text);
      button.onclick = () => this.set(text);
      get("examples").append(button);
    }
    for (const [name, value] of model.facts) get("facts").append(element("dt", {}, name), element("dd", {}, value));
    get("about").hidden = !model.facts.length;
    get("hint").hidden = model.isAligned === false;
  }

  listen(models) {
    let timer;
    get("direction").onchange = ({ target: { value } }) => this.use(models[value]);
    get("key").onchange = () => this.translate();
    source.addEventListener("input", () => {
      get("time").textContent = "";
      this.typed = performance.now();
      this.fit();
      clearTimeout(timer);
      timer = setTimeout(() => this.translate(), WAIT);
    });
    get("clear").onclick = () => this.set("");
    get("copy").onclick = async () => {
      const best = ({ text }) => this.known.get(text)?.[0];
      const isLeft = (part) => part.isSentence && (!best(part) || best(part).problem);
      const text = this.parts.map((part) => (part.isSentence && !isLeft(part) ? best(part).text : part.text));
      const left = this.parts.filter(isLeft).length;
      const copied = left ? `Copied; ${left} ${left === 1 ? "part has" : "parts have"} no output yet.` : "Copied.";
      say((await copy(text.join(""))) ? copied : "The browser does not allow copying: select the text and copy it.");
    };
    get("beams").onchange = () => {
      this.known.clear();
      this.translate();
    };
    get("several").onchange = () => this.showAlternatives();
    target.addEventListener("pointerover", ({ target: word }) => word.explain?.());
    target.addEventListener("pointerleave", () => this.choose(null));
    target.addEventListener("click", ({ target: word }) => word.explain && this.choose(word));
    target.addEventListener("blur", () => this.choose(null));
    target.addEventListener("keydown", (event) => this.move(event));
  }

  set(text) {
    source.value = text;
    this.fit();
    this.translate();
    source.focus();
  }

  fit() {
    mark();
    get("clear").hidden = !source.value;
    get("examples").hidden = Boolean(source.value.trim());
  }

  // Arrow keys move through the words of the output.
  move(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return; // shortcuts of the browser
    const right = getComputedStyle(target).direction === "rtl" ? -1 : 1;
    const step = { ArrowRight: right, ArrowDown: 1, ArrowLeft: -right, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") this.choose(null);
    const words = [...target.querySelectorAll(".word")];
    if (!step || !words.length) return;
    event.preventDefault();
    const now = words.findIndex((word) => word.classList.contains("chosen"));
    this.choose(words[(now + step + (now < 0 && step < 0 ? 1 : 0) + words.length) % words.length]);
  }

  choose(word) {
    const before = target.querySelector(".chosen");
    before?.classList.remove("chosen");
    if (word) {
      word.classList.add("chosen");
      word.explain();
      say([word.dataset.from, word.parentElement.title].filter(Boolean).join(". "));
    } else {
      mark();
      if (before) this.report();
    }
  }

  async translate() {
    if (!this.isReady) return; // `use` translates when the model has been loaded
    // The tokenizer composes letters and accents. Compose them in the field too, so that positions agree.
    const composed = source.value.normalize("NFC");
    if (composed !== source.value) {
      const caret = source.value.slice(0, source.selectionStart).normalize("NFC").length;
      source.value = composed;
      source.setSelectionRange(caret, caret);
    }
    const text = source.value;
    const number = (this.number += 1);
    const { languages, codes, hasSentences } = this.model;
    const parts = this.worker.cut && hasSentences ? await this.worker.cut(text, codes) : null;
    if (number !== this.number) return;
    this.text = text;
    this.parts = placed(parts ?? cut(text, this.model), languages[1]);
    const texts = this.parts.filter(({ isSentence }) => isSentence).map(({ text }) => text);
    for (const text of texts) if (this.known.get(text)?.[0].isPassing) this.known.delete(text);
    this.missing = [...new Set(texts.filter((text) => !this.known.has(text)))];
    this.started = this.missing.length ? performance.now() : null;
    get("time").textContent = "";
    mark();
    this.show();
    const options = { numBeams: Number(get("beams").value) };
    this.worker.postMessage({ translate: { number, sentences: this.missing, options, codes } });
  }

  receive({ translated, done }) {
    if (translated?.number === this.number) {
      const text = this.missing[translated.index];
      this.known.set(text, translated.translations);
      this.parts.forEach((part, index) => {
        if (part.text === text) this.shown[index].replaceWith((this.shown[index] = this.element(part)));
      });
      this.showAlternatives();
    }
    if (done === this.number) this.report();
  }

  // Shows the status of the current text.
  report() {
    const found = this.parts.filter(({ isSentence }) => isSentence).map((part) => [part, this.known.get(part.text)?.[0]]);
    const wrong = found.find(([, best]) => best?.problem);
    clearTimeout(this.later);
    target.ariaBusy = String(found.some(([, best]) => !best));
    if (wrong) say(`“${shortened(wrong[0].text)}”: ${wrong[1].problem}`, true);
    else if (target.ariaBusy === "false") {
      const doubts = found.map(([, best]) => best.doubt).filter(Boolean);
      const calm = this.typed + CALM - performance.now();
      if (doubts.length && calm > 0) this.later = setTimeout(() => target.querySelector(".chosen") || this.report(), calm);
      const notes = doubts.length && calm <= 0 ? [warning(doubts, this.model)] : [];
      if (found.some(([, best]) => best.isCut)) notes.push("An output was cut off at the maximum length.");
      say(notes.join(" "));
    }
    if (this.started !== null && target.ariaBusy === "false") {
      get("time").textContent = `${Math.round(performance.now() - this.started)} ms`;
      this.started = null;
    }
  }

  show() {
    this.shown = this.parts.map((part) => this.element(part));
    target.replaceChildren(...this.shown);
    get("copy").hidden = !this.parts.some(({ isSentence }) => isSentence);
    this.report();
    this.showAlternatives();
  }

  // The node of a part: white space, a sentence without output (yet), or the words of its output.
  element(part) {
    if (!part.isSentence) return document.createTextNode(part.text);
    const best = this.known.get(part.text)?.[0];
    if (!best) return element("span", { className: "stale" }, "…");
    if (best.problem) return element("span", { className: "failed", title: best.problem }, part.text);
    const made = best.words.map(({ text, isWord, from }) => {
      if (!isWord) return text;
      const word = element("span", { className: "word" }, text);
      word.explain = () => source.value === this.text && mark(part.start, from);
      const strongest = from.toSorted((first, second) => second.weight - first.weight).slice(0, 2);
      word.dataset.from = `${text}: ${strongest.map(({ start, end }) => part.text.slice(start, end)).join(", ")}`;
      return word;
    });
    const classes = [best.isCut && "cut", best.doubt && "doubtful"].filter(Boolean).join(" ");
    return element("span", { className: classes, title: best.doubt ? warning([best.doubt], this.model) : "" }, ...made);
  }

  // Shows all outputs that were found for the last sentence.
  showAlternatives() {
    const last = this.parts.findLast(({ isSentence }) => isSentence);
    const found = (this.known.get(last?.text) ?? []).filter(({ problem }) => !problem);
    const isShown = get("several").checked && found.length > 0;
    get("alternatives").hidden = !isShown;
    if (!isShown) return;
    const items = found.map(({ text, score }) => {
      const translation = element("span", { lang: target.lang, dir: "auto" }, text);
      return element("li", {}, translation, " ", element("small", {}, score.toFixed(2)));
    });
    const note = "Scores are logarithms of probabilities. Beam search finds several outputs.";
    get("alternatives").replaceChildren(element("ol", {}, ...items), element("small", {}, note));
  }
}

// The models of an export, which run in a worker; each is loaded when it is first chosen. Messages are those of worker.js.
class Models {
  constructor(shared) {
    Object.assign(this, { shared, worker: null, loaded: new Map() });
  }

  // Loads a model, unless it has been loaded.
  load(model) {
    const codes = model.codes.join();
    if (!this.loaded.has(codes)) {
      const loaded = this.start(model, codes);
      this.loaded.set(codes, loaded);
      loaded.catch(() => this.loaded.delete(codes)); // so that it can be tried again
    }
    return this.loaded.get(codes);
  }

  async start(model, codes) {
    say("Loading …");
    loading.hidden = false;
    try {
      await this.fetch(model, codes);
      say("");
    } finally {
      loading.hidden = true;
    }
  }

  async fetch(model, codes) {
    let [done, total] = [0, model.bytes + (this.worker ? 0 : this.shared.bytes)];
    const progress = (bytes) => {
      done += bytes;
      loading.value = done / total;
    };
    this.worker ??= this.startWorker(progress);
    const [worker, files] = await Promise.all([this.worker, readAll(model.files, progress)]);
    const loaded = new Promise((resolve, reject) => {
      worker.addEventListener("error", ({ message }) => reject(new Error(message ?? "This browser cannot run the model.")));
      worker.addEventListener("message", ({ data: { loaded } }) => {
        if (loaded?.codes === codes) loaded.problem ? reject(new Error(loaded.problem)) : resolve();
      });
    });
    worker.postMessage({ load: { model, files, codes } }, buffersOf(files));
    return loaded;
  }

  async startWorker(progress) {
    try {
      const files = await readAll(this.shared.files, progress);
      get("licenses").textContent = new TextDecoder().decode(files[this.shared.licenses]);
      const worker = new Worker(URL.createObjectURL(new Blob([files[this.shared.worker]], { type: "text/javascript" })));
      worker.addEventListener("message", (event) => event.data.loaded || this.onmessage(event));
      worker.postMessage({ start: { shared: this.shared, files } }, buffersOf(files));
      return worker;
    } catch (error) {
      this.worker = null;
      throw error;
    }
  }

  async postMessage(message) {
    (await this.worker).postMessage(message);
  }
}

const buffersOf = (files) => Object.values(files).map(({ buffer }) => buffer);

// For a page served by `scratch serve`: an object with the worker's interface, through which the service translates.
async function connect({ isKeyNeeded, mostCharacters }) {
  const { Service } = await import("./service.js");
  get("promise").textContent = "The model runs on the server of this page, which receives your text.";
  get("licensed").hidden = true;
  get("keys").hidden = !isKeyNeeded;
  return new Service(() => get("key").value, mostCharacters);
}

async function start() {
  say("Loading …");
  const { service, shared, directions } = JSON.parse(new TextDecoder().decode(await read("model.json")));
  const translator = service ? await connect(service) : new Models(shared);
  await translator.load?.(directions[0]);
  new Page(translator, directions); // translates text that was typed during loading
}

start().catch((error) => say(error.message, true));
