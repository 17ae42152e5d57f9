// Translates through the service that serves the page. Messages are those of worker.js.

const TOGETHER = 16; // sentences per request
// What the page says about an answer with such a status; see strings.js.
const PROBLEMS = { 403: "key", 429: "busy", 502: "noAnswer", 503: "noAnswer", 504: "noAnswer" };
const NO_KEY = "Please contact the server operator to get an API key"; // with status 400, as other errors

// An error with the `problem` and, if the page has no words for it, the service's `message`.
function failure(problem, message = "") {
  return Object.assign(new Error(message), { problem });
}

async function answerOf(request) {
  const response = await request.catch((error) => {
    throw error.name === "AbortError" ? error : failure("noAnswer");
  });
  const answer = await response.json().catch(() => ({}));
  if (response.ok && !answer.error) return answer;
  const problem = answer.error?.startsWith(NO_KEY) ? "key" : PROBLEMS[response.status];
  throw failure(problem ?? "failed", answer.error ?? String(response.status));
}

export class Service {
  // `mostCharacters` is the limit for a request.
  constructor({ mostCharacters, isKeyNeeded }, key) {
    Object.assign(this, { mostCharacters, isKeyNeeded, key, isRemote: true });
  }

  // The parts of a text, [text, is a sentence]; null for a blank text, or if the service fails.
  async cut(text, [source, target]) {
    if (!text.trim()) return null;
    return this.ask("page/sentences", { text, source, target }).then(
      ({ parts }) => parts,
      () => null, // the request that translates the sentences will report the error
    );
  }

  async postMessage({ translate: { number, sentences, options, codes } }) {
    this.running?.abort();
    const { signal } = (this.running = new AbortController());
    const [source, target] = codes;
    let first = 0;
    for (const some of this.grouped(sentences)) {
      let translations = [[{ text: "", words: [], problem: "tooLong" }]];
      try {
        const parameters = { ...options, sentences: some, source, target };
        if (some[0].length <= this.mostCharacters) ({ translations } = await this.ask("page/translate", parameters, signal));
      } catch ({ problem, message }) {
        if (!signal.aborted) this.onmessage({ data: { failed: { number, problem, message } } });
        return;
      }
      for (const [index, found] of translations.entries()) {
        if (found[0].problem) found[0].problem = "tooLong"; // the only one that the service has for a sentence
        this.onmessage({ data: { translated: { number, index: first + index, translations: found } } });
      }
      first += some.length;
    }
    this.onmessage({ data: { done: number } });
  }

  // Groups sentences into requests within the limits; a sentence above them is alone.
  grouped(sentences) {
    const groups = [];
    let room = 0;
    for (const sentence of sentences) {
      if (sentence.length > room || groups.at(-1).length === TOGETHER) {
        groups.push([]);
        room = this.mostCharacters;
      }
      groups.at(-1).push(sentence);
      room -= sentence.length;
    }
    return groups;
  }

  ask(path, parameters, signal) {
    const body = JSON.stringify({ ...parameters, api_key: this.key });
    return this.post(path, { headers: { "Content-Type": "application/json" }, body, signal });
  }

  async post(path, options) {
    if (this.isKeyNeeded && !this.key) throw failure("key");
    return answerOf(fetch(path, { method: "POST", ...options }));
  }

  // The endings of the files that the service translates.
  async formats() {
    return (await answerOf(fetch("frontend/settings"))).supportedFilesFormat;
  }

  // Translates a file. Returns the address of the translated one.
  async translateFile(file, [source, target], signal) {
    const body = new FormData();
    for (const [name, value] of Object.entries({ file, source, target, api_key: this.key })) body.append(name, value);
    return (await this.post("translate_file", { body, signal })).translatedFileUrl;
  }
}
