// Translates through the service that serves the page. Messages are those of worker.js.

const TOGETHER = 16; // sentences per request

export class Service {
  // `key` returns the API key; `mostCharacters` is the limit for a request.
  constructor(key, mostCharacters) {
    Object.assign(this, { key, mostCharacters });
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
      const answer = await this.ask("page/translate", { ...options, sentences: some, source, target }, signal).catch((error) => error);
      if (signal.aborted) return;
      const failed = [{ text: "", words: [], problem: answer.message, isPassing: true }];
      some.forEach((_, index) => {
        const translations = answer.translations?.[index] ?? failed;
        this.onmessage({ data: { translated: { number, index: first + index, translations } } });
      });
      first += some.length;
    }
    this.onmessage({ data: { done: number } });
  }

  // Groups sentences into requests within the limits.
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

  async ask(path, parameters, signal) {
    const body = JSON.stringify({ ...parameters, api_key: this.key() });
    const headers = { "Content-Type": "application/json" };
    const response = await fetch(path, { method: "POST", headers, body, signal }).catch(() => {
      throw new Error("The service does not answer.");
    });
    const answer = await response.json().catch(() => ({ error: `The service answered ${response.status}.` }));
    if (answer.error) throw new Error(answer.error);
    return answer;
  }
}
