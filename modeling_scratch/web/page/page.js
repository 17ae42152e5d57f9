// The page: what is typed goes to the worker sentence by sentence, and comes back as words that one can point at.

const get = (id) => document.getElementById(id);
const [source, target, marks, status] = ["source", "target", "marks", "status"].map(get);
const WAIT = 120; // milliseconds without a key before the text is translated
const LOWEST = 0.04; // weights below it are not marked

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function say(text, isFailure = false) {
  status.textContent = text;
  status.classList.toggle("failure", isFailure);
}

// -- files: beside the page, or inside it, compressed, if it is a page of one file -----------------------------------

const embedded = get("files") && JSON.parse(get("files").textContent);

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function fetched(name, progress) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name} cannot be loaded (${response.status}).`);
  const parts = [];
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return new Uint8Array(await new Blob(parts).arrayBuffer());
    parts.push(value);
    progress(value.length);
  }
}

async function readAll(names, total) {
  let read = 0;
  const progress = (bytes) => {
    read += bytes;
    say(`Loading: ${Math.min(99, Math.round((100 * read) / total))} %`);
  };
  say("Loading …");
  const files = await Promise.all(names.map((name) => (embedded ? unpacked(embedded[name]) : fetched(name, progress))));
  return Object.fromEntries(names.map((name, index) => [name, files[index]]));
}

// -- text ------------------------------------------------------------------------------------------------------------

// The sentences of a text and what is between them: { text, start, isSentence }.
function sentences(text, language) {
  const found = [];
  for (const line of text.matchAll(/[^\n]+|\n+/g)) {
    for (const { segment, index } of new Intl.Segmenter(language, { granularity: "sentence" }).segment(line[0])) {
      const [, before, sentence, after] = segment.match(/^(\s*)(.*?)(\s*)$/s);
      let start = line.index + index;
      for (const [part, isSentence] of [[before, false], [sentence, true], [after, false]]) {
        if (part) found.push({ text: part, start, isSentence });
        start += part.length;
      }
    }
  }
  return found;
}

// Marks words of the source behind the text field, each as strongly as its weight.
function mark(sentence, from = []) {
  const text = source.value;
  let end = 0;
  const pieces = [];
  const strongest = Math.max(...from.map(({ weight }) => weight));
  for (const { start, end: until, weight } of from) {
    if (weight < LOWEST) continue;
    const word = element("mark", {}, text.slice(sentence.start + start, sentence.start + until));
    word.style.setProperty("--weight", (0.75 * weight) / strongest);
    pieces.push(text.slice(end, sentence.start + start), word);
    end = sentence.start + until;
  }
  marks.replaceChildren(...pieces, `${text.slice(end)}\n`);
}

// -- the translator ----------------------------------------------------------------------------------------------------

class Page {
  constructor(worker, model) {
    Object.assign(this, { worker, model, number: 0, known: new Map(), shown: [] });
    this.options = { numBeams: model.search.numBeams };
    worker.onmessage = ({ data }) => this.receive(data);
    this.describe();
    this.listen();
  }

  describe() {
    const { model } = this;
    document.title = get("title").textContent = model.title;
    [get("source-language"), get("target-language")].forEach((heading, side) => {
      heading.textContent = model.languageNames[side] ?? heading.textContent;
    });
    if (model.languages[0]) source.lang = model.languages[0];
    if (model.languages[1]) target.lang = model.languages[1];
    source.dir = target.dir = "auto";
    const beams = [...new Set([1, 5, model.search.numBeams])].sort((first, second) => first - second);
    for (const number of beams) {
      const name = number === 1 ? "greedy, fastest" : `beam of ${number}`;
      get("beams").append(element("option", { value: number, selected: number === this.options.numBeams }, name));
    }
    for (const text of model.examples) {
      const button = element("button", { type: "button" }, text);
      button.onclick = () => this.set(text);
      get("examples").append(button);
    }
    for (const [name, value] of model.facts) get("facts").append(element("dt", {}, name), element("dd", {}, value));
  }

  listen() {
    let timer;
    source.addEventListener("input", () => {
      this.fit();
      clearTimeout(timer);
      timer = setTimeout(() => this.translate(), WAIT);
    });
    get("clear").onclick = () => this.set("");
    get("copy").onclick = async () => {
      await navigator.clipboard.writeText(target.textContent);
      say("Copied.");
    };
    get("beams").onchange = ({ target: { value } }) => {
      this.options = { numBeams: Number(value) };
      this.known.clear();
      this.translate();
    };
    get("several").onchange = () => this.show();
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
    mark({ start: 0 });
    get("clear").hidden = !source.value;
    get("examples").hidden = Boolean(source.value.trim());
  }

  // Arrow keys move through the words of the translation.
  move(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") this.choose(null);
    const words = [...target.querySelectorAll(".word")];
    if (!step || !words.length) return;
    event.preventDefault();
    const now = words.findIndex((word) => word.classList.contains("chosen"));
    this.choose(words[(now + step + (now < 0 && step < 0 ? 1 : 0) + words.length) % words.length]);
  }

  choose(word) {
    target.querySelector(".chosen")?.classList.remove("chosen");
    word?.classList.add("chosen");
    if (word) word.explain();
    else mark({ start: 0 });
    if (word) say(word.dataset.from);
  }

  translate() {
    this.parts = sentences(source.value, this.model.languages[0]);
    this.missing = [...new Set(this.parts.filter((part) => part.isSentence && !this.known.has(part.text)).map((part) => part.text))];
    this.number += 1;
    this.started = performance.now();
    this.show();
    this.worker.postMessage({ translate: { number: this.number, sentences: this.missing, options: this.options } });
  }

  receive({ translated, done }) {
    if (translated?.number === this.number) {
      this.known.set(this.missing[translated.index], translated.translations);
      this.show();
    }
    if (done !== this.number || !this.missing.length) return;
    const best = this.parts.filter(({ isSentence }) => isSentence).map(({ text }) => this.known.get(text)[0]);
    const problem = best.find((each) => each.problem)?.problem;
    if (problem) say(problem, true);
    else if (best.some(({ isCut }) => isCut)) say("A translation was cut at the greatest length.");
    else say(`${Math.round(performance.now() - this.started)} ms`);
  }

  show() {
    let last = "";
    const children = this.parts.flatMap((part) => {
      if (!part.isSentence) return [part.text];
      const found = this.known.get(part.text);
      if (!found) return [element("span", { className: "stale" }, "…")];
      last = part.text;
      return [this.sentence(part, found[0])];
    });
    target.replaceChildren(...children);
    target.ariaBusy = String(this.parts.some((part) => part.isSentence && !this.known.has(part.text)));
    get("copy").hidden = !children.length;
    if (!children.length) say("");
    this.showAlternatives(last);
  }

  sentence(part, { words, isCut, problem }) {
    if (problem) return element("span", { className: "failed", title: problem }, part.text);
    const made = words.map(({ text, isWord, from }) => {
      if (!isWord) return text;
      const word = element("span", { className: "word" }, text);
      word.explain = () => mark(part, from);
      const strongest = from.toSorted((first, second) => second.weight - first.weight).slice(0, 2);
      word.dataset.from = `${text}: ${strongest.map(({ start, end }) => part.text.slice(start, end)).join(", ")}`;
      return word;
    });
    return element("span", { className: isCut ? "cut" : "" }, ...made);
  }

  showAlternatives(sentence) {
    const found = (this.known.get(sentence) ?? []).filter(({ problem }) => !problem);
    const isShown = get("several").checked && found.length > 0;
    get("alternatives").hidden = !isShown;
    if (!isShown) return;
    const items = found.map(({ text, score }) => element("li", { lang: target.lang }, text, " ", element("small", {}, score.toFixed(2))));
    const note = "Scores are the logarithm of a translation's probability. A beam finds several.";
    get("alternatives").replaceChildren(element("ol", {}, ...items), element("small", {}, note));
  }
}

async function start() {
  const { "model.json": description } = await readAll(["model.json"], 1e4);
  const model = JSON.parse(new TextDecoder().decode(description));
  const files = { "model.json": description, ...(await readAll(model.files, model.bytes)) };
  const code = new Blob([files["worker.js"]], { type: "text/javascript" });
  const worker = new Worker(URL.createObjectURL(code));
  const loaded = new Promise((resolve, reject) => {
    worker.onerror = (event) => reject(new Error(event.message ?? "This browser cannot run the translator."));
    worker.onmessage = ({ data }) => (data.failed ? reject(new Error(data.failed)) : resolve());
  });
  const buffers = Object.values(files).map(({ buffer }) => buffer);
  worker.postMessage({ load: { ...model, files } }, buffers);
  await loaded;
  say("");
  const page = new Page(worker, model);
  if (source.value) page.set(source.value); // typed while it loaded
}

start().catch((error) => say(error.message, true));
