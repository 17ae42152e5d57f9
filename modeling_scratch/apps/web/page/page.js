// The page: sends text to the model in parts, and shows the outputs as words that can be pointed at and reworded.

import { Models, isOneFile, read } from "./models.js";
import { Service } from "./service.js";
import { STRINGS, speaker } from "./strings.js";
import { base, cut, placed, replaced } from "./text.js";
import { linked, wordings } from "./wordings.js";

const get = (id) => document.getElementById(id);
const [source, target, marks, line, popover] = ["source", "target", "marks", "line", "wordings"].map(get);
const WAIT = 120; // milliseconds after the last key press before the model runs
const CALM = 1000; // milliseconds after the last key press before a warning: an unfinished sentence is often doubtful
const PATIENCE = 400; // milliseconds before progress is shown
const LONG = 3000; // milliseconds after which the end of a translation is announced
const PAUSE = 5000; // milliseconds before a server that did not answer is asked again
const RETRIED = ["busy", "noAnswer"]; // problems that may pass
const LOWEST = 0.15; // of the largest weight: words with smaller ones are not marked
const BEAMS = 5; // hypotheses of the better search, if a direction has only a model whose own is greedy
const LONGEST_LINK = 8000; // characters, which browsers and servers of chats take
const LONGEST_FILE = 1_000_000; // bytes

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// What this tab keeps over a reload; nothing if the browser forbids it.
const kept = {
  get(name) {
    try {
      return sessionStorage.getItem(name);
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      sessionStorage.setItem(name, value);
    } catch {}
  },
};

// The first of the reader's languages that the page speaks: those of its models, and English.
function languageFor(tags) {
  const known = ["en", ...tags.map(base)].filter((language) => language in STRINGS);
  return navigator.languages.map(base).find((language) => known.includes(language)) ?? "en";
}

function localize(language, say) {
  document.documentElement.lang = language;
  for (const each of document.querySelectorAll("[data-say]")) each.textContent = say(each.dataset.say);
  for (const each of document.querySelectorAll("[data-label]")) each.ariaLabel = say(each.dataset.label);
}

const upper = (text, language) => text.slice(0, 1).toLocaleUpperCase(language) + text.slice(1);

// Copies without selecting anything, so that nothing scrolls.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text); // fails in pages served over http by other devices
    return true;
  } catch {
    let isCopied = false;
    const write = (event) => {
      event.preventDefault();
      event.clipboardData.setData("text/plain", text);
      isCopied = true;
    };
    document.addEventListener("copy", write, { once: true });
    document.execCommand("copy");
    document.removeEventListener("copy", write);
    return isCopied;
  }
}

// Shows a note: a beginning in bold, more text, and what the reader can do; or nothing.
function note(box, { lead = "", text = "", kind = "", actions = [] } = {}) {
  const shown = `${kind} ${lead} ${text}`;
  box.hidden = !(lead || text);
  if (box.hidden) box.replaceChildren();
  else if (box.dataset.shown !== shown) box.replaceChildren(element("p", {}, element("b", {}, lead), ` ${text}`), ...actions);
  box.dataset.shown = shown;
  box.className = `note ${kind}`;
}

function button(label, onclick) {
  return element("button", { type: "button", className: "framed", onclick }, label);
}

class Page {
  constructor(translator, directions) {
    const found = languageFor(directions.flatMap(({ languages }) => languages));
    Object.assign(this, { translator, directions, language: found, number: 0, known: new Map(), chosen: new Map() });
    Object.assign(this, { text: "", parts: [], sentences: [], missing: [], typed: -CALM, cleared: null });
    this.failure = translator.isKeyNeeded && !translator.key ? { problem: "key" } : null;
    translator.onmessage = ({ data }) => this.receive(data);
    translator.onprogress = (share, model) => model === this.model && this.showLoading(share);
    const codes = kept.get("codes");
    this.quality = kept.get("quality");
    this.restore();
    this.listen();
    this.use(directions.find((direction) => direction.codes.join() === (this.asked ?? codes)) ?? directions[0]);
    this.focus();
  }

  // Takes the text from the address, #text=..., or else that of before a reload.
  restore() {
    const given = new URLSearchParams(location.hash.slice(1));
    const before = source.value || kept.get("text") || "";
    source.value = given.get("text") ?? before;
    this.cleared = (given.has("text") && before) || null;
    this.asked = given.has("source") ? `${given.get("source")},${given.get("target")}` : null;
    if (given.has("text")) history.replaceState(null, "", location.pathname + location.search);
  }

  // -- the direction -------------------------------------------------------------------------------------------------

  // Takes the direction's model and search that the reader has chosen with "Faster" or "Better", or those that the page
  // begins with: its faster model if it has two, or else the search of its only one.
  async use(direction) {
    const isBetter = (this.quality ?? (direction.search.numBeams > 1 ? "better" : "faster")) === "better";
    const model = (isBetter && direction.better) || direction;
    const { numBeams } = model.search;
    this.beams = !isBetter ? 1 : numBeams > 1 ? numBeams : BEAMS;
    if (this.isReady) this.end();
    [this.direction, this.model] = [direction, model];
    [this.isReady, this.isStopped] = [false, false];
    this.number += 1; // what the model before still sends is of no use
    target.ariaBusy = "true";
    kept.set("codes", model.codes.join());
    if (this.failure?.problem !== "key") this.failure = null;
    note(get("note")); // about another model, or another attempt
    this.forget();
    this.describe();
    this.fit();
    try {
      await this.translator.load?.(model);
    } catch ({ message }) {
      if (model !== this.model) return;
      this.failure = { problem: "noModel", message };
      this.report();
      return;
    }
    if (model !== this.model) return;
    this.isReady = true;
    line.hidden = true;
    get("licenses").textContent = this.translator.licenses ?? "";
    this.translate(); // also text that was typed while the model was loaded
  }

  // Forgets all outputs. Those on the page stay, dimmed, until the new ones are there.
  forget() {
    this.known.clear();
    this.chosen.clear();
    for (const part of this.sentences) {
      part.before = part.node.textContent;
      this.fill(part);
    }
  }

  retry() {
    if (this.isReady) this.translate();
    else this.use(this.direction);
  }

  reverse() {
    const [from, to] = this.model.codes;
    return this.find(to, from);
  }

  find(from, to) {
    return this.directions.find(({ codes }) => codes[0] === from && codes[1] === to);
  }

  // The name of a side of a model, 0 or 1, in the page's language.
  nameOf({ codes, languages, sides, isTranslator }, side) {
    if (!isTranslator && this.directions.length === 1) return sides[side];
    try {
      const names = new Intl.DisplayNames(this.language, { type: "language", fallback: "none", languageDisplay: "standard" });
      return names.of(languages[side]) ?? sides[side];
    } catch {
      return isTranslator ? sides[side] : codes[side];
    }
  }

  describe() {
    const { model, translator } = this;
    this.say = speaker(model.isTranslator ? this.language : "en", model.isTranslator);
    localize(model.isTranslator ? this.language : "en", this.say);
    const names = [0, 1].map((side) => upper(this.nameOf(model, side), this.language));
    document.title = model.isTranslator && model.languages.length ? names.join(" → ") : model.title;
    get("title").textContent = model.isTranslator ? this.say("title") : model.title;
    this.describeDirections(names);
    source.placeholder = this.say(model.hasSentences ? "placeholder" : "placeholderLines");
    [source.lang, target.lang] = model.languages.length ? model.languages : ["", ""];
    [get("field").dataset.language, get("result").dataset.language] = names; // printed
    marks.lang = source.lang;
    this.describePlace();
    const chips = model.examples.map((text) => {
      return element("button", { type: "button", lang: source.lang, dir: "auto", onclick: () => this.set(text) }, text);
    });
    get("examples").replaceChildren(...chips);
    const facts = Object.fromEntries(model.facts);
    get("facts").replaceChildren(...model.facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
    get("summary").textContent = [facts["Trained on"] && this.say("trainedOn", { data: facts["Trained on"] }), facts.License]
      .filter(Boolean)
      .map((fact) => `${fact} · `)
      .join("");
    get("summary").lang = document.documentElement.lang;
    get("licensed").hidden = Boolean(translator.isRemote);
    get("about-wordings").hidden = model.isAligned === false;
    for (const id of ["share-page", "share-link"]) get(id).hidden = location.protocol === "file:";
    get("paste").hidden = !navigator.clipboard?.readText;
    this.describeQuality();
  }

  // Where the model runs, and so what happens to the text.
  describePlace() {
    const isLost = this.failure?.problem === "noAnswer";
    get("badge").hidden = false;
    get("badge").classList.toggle("lost", isLost);
    const { isRemote } = this.translator;
    get("place").textContent = this.say(isLost ? "lost" : isRemote ? "onServer" : "onDevice");
    const isOffline = isOneFile || navigator.serviceWorker?.controller;
    const promises = [isOffline && this.say("worksOffline"), this.say("nothingSent")].filter(Boolean);
    get("promise").textContent = ` · ${isRemote ? this.say("isSent", { host: location.host }) : promises.join(" · ")}`;
  }

  describeDirections(names) {
    const { model, directions } = this;
    const options = [
      new Map(directions.map((each) => [each.codes[0], this.nameOf(each, 0)])),
      new Map(directions.filter(({ codes }) => codes[0] === model.codes[0]).map((each) => [each.codes[1], this.nameOf(each, 1)])),
    ];
    ["from", "to"].forEach((id, side) => {
      const made = Array.from(options[side], ([value, name]) => {
        return element("option", { value, selected: value === model.codes[side] }, upper(name, this.language));
      });
      get(id).replaceChildren(...made);
      get(id).hidden = made.length < 2;
    });
    ["source-name", "target-name"].forEach((id, side) => {
      get(id).textContent = names[side];
      get(id).hidden = options[side].size > 1;
    });
    get("swap").hidden = !this.reverse();
  }

  describeQuality() {
    get("faster").ariaPressed = String(this.beams === 1);
    get("better").ariaPressed = String(this.beams > 1);
  }

  // -- what the reader does ------------------------------------------------------------------------------------------

  listen() {
    let timer;
    const onType = ({ isComposing }) => {
      this.isComposing = isComposing;
      this.cleared = null;
      this.typed = performance.now();
      target.ariaBusy = "true"; // already before `translate`
      this.fit();
      clearTimeout(timer);
      timer = setTimeout(() => this.translate(), WAIT);
    };
    source.addEventListener("input", onType);
    source.addEventListener("compositionend", onType);
    const on = (id, act) => get(id).addEventListener("click", act);
    on("paste", () => this.paste());
    on("open", () => get("file").click());
    on("clear", () => this.clear());
    on("copy", () => this.offer("copy", "copied", this.output()));
    on("download", () => this.download());
    on("share-link", () => this.shareLink());
    on("share-page", () => this.share("share-page", { title: document.title, url: location.href.split("#")[0] }));
    on("stop", () => (this.isStopped ? this.translate() : this.stop()));
    on("swap", () => this.swap());
    on("faster", () => this.prefer("faster"));
    on("better", () => this.prefer("better"));
    on("open-about", () => get("about").showModal());
    on("close-about", () => get("about").close());
    get("about").addEventListener("click", ({ target: hit }) => hit === get("about") && get("about").close());
    get("from").addEventListener("change", ({ target: { value } }) => {
      this.use(this.find(value, this.model.codes[1]) ?? this.directions.find(({ codes }) => codes[0] === value));
    });
    get("to").addEventListener("change", ({ target: { value } }) => this.use(this.find(this.model.codes[0], value)));
    get("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.translator.key = get("key").value;
      kept.set("key", this.translator.key);
      this.failure = null;
      this.translate();
      this.focus();
    });
    this.listenForWords();
    this.listenForFiles();
    window.addEventListener("online", () => this.failure && this.retry());
    window.addEventListener("hashchange", () => {
      this.restore();
      const direction = this.directions.find(({ codes }) => codes.join() === this.asked);
      if (direction && direction !== this.direction) this.use(direction);
      else this.set(source.value, this.cleared);
    });
  }

  listenForWords() {
    const wordAt = (node) => node.closest?.("#target .word");
    target.addEventListener("pointerover", ({ target: node }) => wordAt(node) && this.mark(wordAt(node)));
    target.addEventListener("pointerleave", () => this.mark(target.querySelector(".chosen")));
    target.addEventListener("click", ({ target: node }) => {
      if (wordAt(node) && getSelection().isCollapsed) this.explain(wordAt(node));
    });
    target.addEventListener("blur", () => popover.matches(":popover-open") || this.choose(null));
    target.addEventListener("keydown", (event) => this.move(event));
    popover.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const buttons = [...popover.querySelectorAll("button")];
      if (!step || !buttons.length) return;
      event.preventDefault();
      buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length].focus();
    });
    popover.addEventListener("toggle", ({ newState }) => {
      if (newState === "closed" && document.activeElement !== target) this.choose(null);
    });
  }

  listenForFiles() {
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    const show = (isDropping) => {
      get("card").classList.toggle("dropping", isDropping);
      get("card").dataset.drop = this.say("drop");
    };
    window.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      show(true);
    });
    window.addEventListener("dragleave", (event) => event.relatedTarget || show(false));
    window.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      show(false);
      this.openFile(event.dataTransfer.files[0]);
    });
    get("file").addEventListener("change", ({ target: input }) => {
      if (input.files[0]) this.openFile(input.files[0]);
      input.value = "";
    });
  }

  // Sets the text. Undo brings back what was `cleared`.
  set(text, cleared = null) {
    this.cleared = cleared;
    source.value = text;
    this.fit();
    this.translate();
    this.focus();
  }

  // Puts the cursor into the text, but does not open the keyboard of a phone.
  focus() {
    if (matchMedia("(pointer: fine)").matches) source.focus({ preventScroll: true });
  }

  clear() {
    if (this.cleared === null) this.set("", source.value);
    else this.set(this.cleared);
  }

  async paste() {
    try {
      const text = await navigator.clipboard.readText();
      source.focus({ preventScroll: true });
      document.execCommand("insertText", false, text); // unlike setRangeText, it can be undone with the keyboard
    } catch {
      note(get("file-note"), { lead: this.say("noPaste"), actions: [this.closing("file-note")] });
    }
  }

  swap() {
    const [text, output] = [source.value, this.output().trim() ? this.output() : source.value];
    const back = this.swapped?.output === text ? this.swapped.text : output;
    this.swapped = { text, output: back };
    source.value = back;
    this.cleared = null;
    this.use(this.reverse());
  }

  prefer(quality) {
    this.quality = quality;
    kept.set("quality", quality);
    this.use(this.direction);
  }

  // The output of the present text, without sentences that have none yet.
  output() {
    if (source.value !== this.text) return "";
    return this.parts.map(({ node, isSentence, shown }) => (isSentence && !shown ? "" : node.textContent)).join("");
  }

  // Copies a text, and says so on the button for a moment.
  async offer(id, done, text) {
    if (!(await copy(text))) {
      note(get("file-note"), { lead: this.say("noCopy"), actions: [this.closing("file-note")] });
      return;
    }
    get(id).textContent = get("spoken").textContent = this.say(done);
    setTimeout(() => {
      get(id).textContent = this.say(get(id).dataset.say);
      get("spoken").textContent = "";
    }, 2000);
  }

  download() {
    const url = URL.createObjectURL(new Blob([this.output()], { type: "text/plain" }));
    const ending = this.model.languages.length ? `.${this.model.codes[1]}` : "";
    element("a", { href: url, download: `${this.say("fileName")}${ending}.txt` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  }

  shareLink() {
    const [from, to] = this.model.codes;
    const direction = this.directions.length > 1 ? `source=${encodeURIComponent(from)}&target=${encodeURIComponent(to)}&` : "";
    const url = `${location.href.split("#")[0]}#${direction}text=${encodeURIComponent(source.value)}`;
    if (url.length <= LONGEST_LINK) this.share("share-link", { title: document.title, url });
    else note(get("file-note"), { lead: this.say("longLink"), actions: [this.closing("file-note")] });
  }

  async share(id, data) {
    if (navigator.share) await navigator.share(data).catch(() => {}); // the reader may decide not to
    else await this.offer(id, "linkCopied", data.url);
  }

  closing(id) {
    return button(this.say("close"), () => note(get(id)));
  }

  // -- files ---------------------------------------------------------------------------------------------------------

  async openFile(file) {
    const say = (kind, name, actions, more = {}) => {
      note(get("file-note"), { kind, lead: this.say(name, { name: file.name, ...more }), actions });
    };
    const close = this.closing("file-note");
    note(get("file-note"));
    if (file.type === "text/plain" || /\.txt$/i.test(file.name)) {
      if (file.size > LONGEST_FILE) return say("", "longFile", [close]);
      try {
        this.set(new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()), source.value || null);
      } catch {
        say("", "notText", [close]);
      }
      return;
    }
    const running = new AbortController();
    try {
      const formats = ["txt", ...((await this.translator.formats?.()) ?? [])].map((each) => `.${each.replace(/^\./, "")}`);
      if (!formats.some((ending) => file.name.toLowerCase().endsWith(ending))) {
        return say("", "onlyFormats", [close], { formats: [...new Set(formats)].join(", ") });
      }
      say("plain", "sending", [button(this.say("stop"), () => running.abort())]);
      const href = await this.translator.translateFile(file, this.model.codes, running.signal);
      say("plain", "fileReady", [element("a", { href, download: "", className: "button main" }, this.say("download")), close]);
    } catch ({ problem, message }) {
      const again = button(this.say("retry"), () => this.openFile(file));
      const known = { key: this.translator.key ? "keyWrong" : "keyWanted", noAnswer: "noAnswer" }[problem];
      const reason = known ? this.say(known) : message;
      if (problem === "key") {
        this.failure = { problem };
        this.report();
      }
      if (running.signal.aborted) note(get("file-note"));
      else note(get("file-note"), { kind: "failure", lead: this.say("fileFailed", { name: file.name }), text: reason, actions: [again, close] });
    }
  }

  // -- translating ---------------------------------------------------------------------------------------------------

  // After every change of the text.
  fit() {
    this.mark(target.querySelector(".chosen"));
    kept.set("text", source.value);
    get("start").hidden = Boolean(source.value.trim()) || !this.model.examples.length;
    get("clear").disabled = !source.value && this.cleared === null;
    get("clear").textContent = this.say(this.cleared === null ? "clear" : "undo");
    get("share-link").disabled = !source.value.trim();
    this.enable(this.output().trim());
    get("count").textContent = source.value && this.say("characters", { n: [...source.value].length });
  }

  enable(hasOutput) {
    for (const id of ["copy", "download"]) get(id).disabled = !hasOutput;
  }

  async translate() {
    target.ariaBusy = "true";
    if (!this.isReady) return; // `use` translates when the model has been loaded
    // The tokenizer composes letters and accents. Compose them in the field too, so that positions agree; but not
    // while an input method writes there.
    const composed = this.isComposing ? source.value : source.value.normalize("NFC");
    if (composed !== source.value) {
      const caret = source.value.slice(0, source.selectionStart).normalize("NFC").length;
      source.value = composed;
      source.setSelectionRange(caret, caret);
    }
    const text = source.value;
    const number = (this.number += 1);
    this.isStopped = false;
    const { id, codes, hasSentences, space } = this.model;
    const parts = this.translator.cut && hasSentences ? await this.translator.cut(text, codes) : null;
    if (number !== this.number) return;
    clearTimeout(this.again);
    this.text = text;
    this.arrange(placed(parts ?? cut(text, this.model), space));
    this.missing = [...new Set(this.sentences.map(({ text }) => text).filter((text) => !this.known.has(text)))];
    this.started = performance.now();
    clearTimeout(this.patience);
    this.patience = setTimeout(() => this.showProgress(), PATIENCE);
    if (!this.missing.length && this.failure?.problem !== "key") this.failure = null;
    this.report();
    this.translator.postMessage({ translate: { number, sentences: this.missing, options: { numBeams: this.beams }, id, codes } });
  }

  // Ends what is being translated.
  end() {
    this.number += 1;
    const { id, codes } = this.model;
    this.translator.postMessage({ translate: { number: this.number, sentences: [], options: {}, id, codes } });
  }

  stop() {
    this.end();
    this.isStopped = true;
    for (const part of this.sentences) if (!part.shown) part.node.textContent = "";
    this.report();
  }

  // Shows the parts of a text. What a sentence replaces stays, dimmed, until its output is there.
  arrange(parts) {
    const [before, after] = [this.sentences, parts.filter(({ isSentence }) => isSentence)];
    const from = replaced(before.map(({ text }) => text), after.map(({ text }) => text));
    after.forEach((part, index) => {
      const old = before[from[index]];
      const isSame = old?.text === part.text && old.shown === this.shownFor(part);
      part.node = isSame ? old.node : element("span", { className: "sentence" });
      part.node.shows = part;
      part.before = old?.node.textContent ?? "";
      if (isSame) part.shown = old.shown;
      else this.fill(part);
    });
    for (const part of parts) part.node ??= document.createTextNode(part.text);
    this.parts = parts;
    this.sentences = after;
    target.replaceChildren(...parts.map(({ node }) => node));
    this.mark();
  }

  // The output that is shown for a sentence: the best one, unless the reader has chosen another.
  shownFor({ text }) {
    return this.known.get(text)?.[this.chosen.get(text) ?? 0];
  }

  fill(part) {
    const { node } = part;
    const shown = (part.shown = this.shownFor(part));
    const [best] = this.known.get(part.text) ?? [];
    node.className = "sentence";
    if (!shown) {
      node.classList.add("stale");
      node.textContent = part.before;
    } else if (shown.problem) {
      node.classList.add("failed");
      node.textContent = part.text;
    } else {
      if (shown.isCut) node.classList.add("cut");
      if (best.doubt) node.classList.add("doubtful");
      let place = 0;
      const made = linked(shown, best, target.lang).map(({ text, isWord, from }) => {
        return isWord ? Object.assign(element("span", { className: "word" }, text), { from, place: place++ }) : text;
      });
      node.replaceChildren(...made);
    }
  }

  receive({ translated, failed, done }) {
    if (translated?.number === this.number) {
      this.failure = null;
      const text = this.missing[translated.index];
      this.known.set(text, translated.translations);
      for (const part of this.sentences) if (part.text === text) this.fill(part);
      this.enable(source.value === this.text);
      this.showProgress();
    }
    if (failed?.number === this.number) {
      this.failure = failed;
      if (RETRIED.includes(failed.problem)) this.again = setTimeout(() => this.translate(), PAUSE);
      this.report();
    }
    if (done === this.number) this.report();
  }

  // -- what the page says --------------------------------------------------------------------------------------------

  // Shows what there is to say about the current text.
  report() {
    const found = this.sentences.map(({ text }) => this.known.get(text)?.[0]);
    const isDone = this.isReady && source.value === this.text && found.every(Boolean);
    target.ariaBusy = String(!isDone && !this.isStopped && !this.failure);
    this.describePlace();
    this.fit();
    this.showProgress();
    get("key-form").hidden = this.failure?.problem !== "key";
    get("key-wanted").textContent = this.say(this.translator.key ? "keyWrong" : "keyWanted");
    clearTimeout(this.later);
    if (this.failure) {
      const { problem, message } = this.failure;
      const actions = [button(this.say("retry"), () => this.retry())];
      const lead = [problem, ...(RETRIED.includes(problem) ? ["keepsTrying"] : [])].map((each) => this.say(each)).join(" ");
      note(get("note"), problem === "key" ? {} : { kind: "failure", lead, text: message, actions });
      return;
    }
    const calm = this.typed + CALM - performance.now();
    if (calm > 0) this.later = setTimeout(() => this.report(), calm);
    else if (isDone && performance.now() - this.started > LONG + CALM) get("spoken").textContent = this.say("ready");
    note(get("note"), calm > 0 ? {} : this.warning(found.filter(Boolean)));
  }

  // Why some outputs are wrong, or may be.
  warning(found) {
    const count = (has) => found.filter(has).length;
    const about = (name, n, values) => (n ? [this.say(name, { n, ...values })] : []);
    const language = this.nameOf(this.model, 0);
    const reasons = ["language", "kept-word", "length", "short", "unlike"];
    const doubts = reasons.flatMap((name) => about(name, count(({ doubt }) => doubt === name), { language }));
    const rest = [
      ...about("doubtful", count(({ doubt }) => doubt)),
      ...about("tooLong", count(({ problem }) => problem)),
      ...about("cut", count(({ isCut }) => isCut)),
    ];
    return { lead: doubts.join(" "), text: rest.join(" ") };
  }

  showProgress() {
    const [n, done] = [this.sentences.length, this.sentences.filter(({ text }) => this.known.has(text)).length];
    const isRunning = this.isReady && done < n && !this.isStopped && !this.failure;
    const isSlow = isRunning && performance.now() - this.started >= PATIENCE - 1;
    const isLeft = done < n && (this.isStopped || isSlow);
    if (isRunning && !isSlow) return; // what was there, so that nothing flickers
    line.hidden = !isSlow;
    line.value = n && done / n;
    get("progress").textContent = n < 2 && !isLeft ? "" : this.say(isSlow ? "running" : "done", { done, n });
    get("stop").hidden = !isLeft;
    get("stop").textContent = this.say(this.isStopped ? "continue" : "stop");
    get("state").classList.toggle("busy", isLeft);
  }

  percent(share) {
    return new Intl.NumberFormat(document.documentElement.lang, { style: "percent" }).format(share);
  }

  showLoading(share) {
    line.hidden = false;
    line.value = share;
    get("progress").textContent = this.say("loading", { share: this.percent(share) });
    get("state").classList.add("busy");
  }

  // -- words ---------------------------------------------------------------------------------------------------------

  // Marks doubtful sentences behind the source's text and, in proportion to their weights, what a word comes from.
  mark(word = null) {
    const text = source.value;
    const [pieces, marked] = [[], word?.closest(".sentence").shows];
    let end = 0;
    for (const part of this.sentences) {
      const isDoubtful = Boolean(this.known.get(part.text)?.[0].doubt);
      const isThere = text.startsWith(part.text, part.start); // or the reader has changed it
      if (!isThere || !(isDoubtful || part === marked)) continue;
      const sentence = element("span", { className: isDoubtful ? "doubtful" : "" }, ...this.marked(part, part === marked ? word.from : []));
      pieces.push(text.slice(end, part.start), sentence);
      end = part.start + part.text.length;
    }
    marks.replaceChildren(...pieces, `${text.slice(end)}\n`);
  }

  marked({ text }, from) {
    const pieces = [];
    const strongest = Math.max(...from.map(({ weight }) => weight));
    let last = 0;
    for (const { start, end, weight } of from.toSorted((one, two) => one.start - two.start)) {
      if (weight < LOWEST * strongest || start < last) continue;
      const word = element("mark", {}, text.slice(start, end));
      word.style.setProperty("--weight", weight / strongest);
      pieces.push(text.slice(last, start), word);
      last = end;
    }
    return [...pieces, text.slice(last)];
  }

  // The one or two words that a word mainly comes from, in their order.
  origin(word) {
    const { text } = word.closest(".sentence").shows;
    const strongest = word.from.toSorted((one, two) => two.weight - one.weight).slice(0, 2);
    const main = strongest.filter(({ weight }) => weight > strongest[0].weight / 2).sort((one, two) => one.start - two.start);
    const bare = (each) => each.replace(/^[^\p{L}\p{N}]+|[^\p{L}\p{N}]+$/gu, "") || each; // without punctuation
    const words = main.map(({ start, end }) => bare(text.slice(start, end))).join(" … ");
    return words && this.say("cameFrom", { words });
  }

  // Arrow keys move through the words of the output.
  move(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return; // shortcuts of the browser
    const right = getComputedStyle(target).direction === "rtl" ? -1 : 1;
    const step = { ArrowRight: right, ArrowDown: 1, ArrowLeft: -right, ArrowUp: -1 }[event.key];
    const words = [...target.querySelectorAll(".word")];
    const now = words.findIndex((word) => word.classList.contains("chosen"));
    if (event.key === "Escape" && !popover.matches(":popover-open")) this.choose(null);
    if (now >= 0 && [" ", "Enter"].includes(event.key)) {
      event.preventDefault();
      this.explain(words[now]);
    }
    if (!step || !words.length) return;
    event.preventDefault();
    this.choose(words[(now + step + (now < 0 && step < 0 ? 1 : 0) + words.length) % words.length]);
  }

  choose(word) {
    for (const each of target.querySelectorAll(".chosen")) each.classList.remove("chosen");
    word?.classList.add("chosen");
    word?.scrollIntoView({ block: "nearest" });
    get("spoken").textContent = word ? [word.textContent, this.origin(word)].filter(Boolean).join(", ") : "";
    this.mark(word);
  }

  // Shows where a word comes from and its other wordings.
  explain(word) {
    const sentence = word.closest(".sentence");
    const { shows: part } = sentence;
    const outputs = this.known.get(part.text);
    const { start, end, options } = wordings(outputs, outputs.indexOf(part.shown), word.place, target.lang);
    this.choose(word);
    const words = [...sentence.querySelectorAll(".word")].slice(start, end);
    for (const each of words) each.classList.add("chosen");
    const isAlone = options.length < 2;
    const title = [this.origin(word), this.say(!isAlone ? "otherWordings" : this.beams > 1 ? "noWordings" : "otherWordings")];
    get("wordings-title").textContent = upper(title.filter(Boolean).join(" · "), this.language);
    const better = button(this.say("searchWordings"), () => {
      popover.hidePopover();
      this.prefer("better");
    });
    const choices = options.map((option) => this.option(part, word.place, option));
    get("options").replaceChildren(...(!isAlone ? choices : this.beams === 1 ? [better] : []));
    this.place(word);
  }

  option(part, place, { text, share, output, isShown }) {
    const bar = element("span", { className: "meter", ariaHidden: "true" }, element("i"));
    bar.firstChild.style.setProperty("--share", share);
    const percent = share < 0.005 ? `< ${this.percent(0.01)}` : this.percent(share);
    const wording = element("span", { lang: target.lang, dir: "auto" }, text);
    const made = element("button", { type: "button", ariaCurrent: isShown ? "true" : null }, wording, bar, element("small", {}, percent));
    made.onclick = () => {
      if (!isShown) this.chosen.set(part.text, output);
      for (const each of this.sentences) if (each.text === part.text) this.fill(each);
      target.focus({ preventScroll: true });
      popover.hidePopover();
      const words = part.node.querySelectorAll(".word");
      this.choose(words[Math.min(place, words.length - 1)]);
    };
    return made;
  }

  // Opens the wordings under a word, or above it, within the window.
  place(word) {
    popover.showPopover();
    const { clientWidth: width, clientHeight: height } = document.documentElement;
    const [at, box] = [word.getClientRects()[0], popover.getBoundingClientRect()];
    const start = getComputedStyle(word).direction === "rtl" ? at.right - box.width : at.left;
    const left = Math.max(8, Math.min(start, width - box.width - 8));
    const top = at.bottom + box.height + 8 > height && at.top > box.height + 8 ? at.top - box.height - 6 : at.bottom + 6;
    popover.style.left = `${left + scrollX}px`;
    popover.style.top = `${top + scrollY}px`;
    (popover.querySelector("[aria-current]") ?? popover.querySelector("button"))?.focus({ preventScroll: true });
  }
}

let installing;
window.addEventListener("beforeinstallprompt", (event) => {
  event.preventDefault();
  installing = event;
  get("install").hidden = false;
});
window.addEventListener("appinstalled", () => (get("install").hidden = true));
get("install").addEventListener("click", () => installing.prompt());

async function start() {
  get("closed").remove();
  const { service, shared, directions } = JSON.parse(new TextDecoder().decode(await read(document.documentElement.dataset.model)));
  get("app").hidden = false;
  const translator = service ? new Service(service, kept.get("key") ?? "") : new Models(shared);
  new Page(translator, directions);
}

start().catch((error) => {
  const language = languageFor(Object.keys(STRINGS));
  const say = speaker(language, true);
  localize(language, say);
  get("app").hidden = false;
  const again = button(say("retry"), () => location.reload());
  note(get("note"), { kind: "failure", lead: say("noModel"), text: error.message, actions: [again] });
});
