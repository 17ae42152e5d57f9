// Translates through the service that the page is from. It takes and gives the messages of worker.js.

const TOGETHER = 16; // sentences in a request

export class Service {
  // `key` gives the key that requests carry.
  constructor(key) {
    this.key = key;
  }

  async postMessage({ translate: { number, sentences, options, languages } }) {
    this.running?.abort();
    const { signal } = (this.running = new AbortController());
    for (let first = 0; first < sentences.length; first += TOGETHER) {
      const some = sentences.slice(first, first + TOGETHER);
      let found;
      try {
        found = await this.ask(some, options, languages, signal);
      } catch (error) {
        if (signal.aborted) return;
        found = some.map(() => [{ text: "", words: [], problem: error.message, isPassing: true }]);
      }
      found.forEach((translations, index) => this.onmessage({ data: { translated: { number, index: first + index, translations } } }));
    }
    this.onmessage({ data: { done: number } });
  }

  async ask(sentences, options, [source, target], signal) {
    const body = JSON.stringify({ ...options, sentences, source, target, api_key: this.key() });
    const headers = { "Content-Type": "application/json" };
    const response = await fetch("page/translate", { method: "POST", headers, body, signal }).catch((error) => {
      throw signal.aborted ? error : new Error("The service does not answer.");
    });
    const answer = await response.json().catch(() => ({ error: `The service answered ${response.status}.` }));
    if (answer.error) throw new Error(answer.error);
    return answer.translations;
  }
}
