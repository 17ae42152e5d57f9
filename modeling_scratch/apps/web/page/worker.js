// Translates in a thread of its own. Messages: { start }, { load } for each model, and any number of { translate }, each
// of which ends the one before.

let libraries; // a promise of what the models share
const translators = new Map(); // by the ids of their models
let newest = 0;

const reason = (error) => String(error?.message ?? error);

// Lets messages arrive, so that a new request can end the current one. A timer would wait four milliseconds.
const { port1, port2 } = new MessageChannel();
let go = () => {};
port1.onmessage = () => go();
const breathe = () =>
  new Promise((resolve) => {
    go = resolve;
    port2.postMessage(null);
  });

// In a page opened from disk, a worker cannot be a module and can import only blobs that it has created.
const importBytes = (bytes) => import(URL.createObjectURL(new Blob([bytes], { type: "text/javascript" })));

async function start({ shared, files }) {
  const imported = shared.modules.map((name) => importBytes(files[name]));
  const [ort, { Tokenizer }, { search }, { Confidence }, { Translator }] = await Promise.all(imported);
  ort.env.wasm.numThreads = 1; // threads need HTTP headers that static servers seldom send
  ort.env.wasm.wasmBinary = files[shared.wasm];
  return { ort, Tokenizer, search, Confidence, Translator };
}

async function load({ model, files }) {
  const all = await libraries;
  translators.set(model.id, await all.Translator.load(all, model, async (name) => files[name]));
}

async function translate({ number, sentences, options, id }) {
  const translator = translators.get(id);
  const checkpoint = async () => {
    await breathe();
    if (number !== newest) throw new Error("superseded");
  };
  for (const [index, sentence] of sentences.entries()) {
    let translations;
    try {
      const found = await translator.translate(sentence, options, checkpoint);
      await checkpoint();
      translations = found.map(({ weights, ...each }) => each);
      translations[0].words = translator.explain(sentence, found[0]);
    } catch (error) {
      if (number !== newest) return;
      if (!error.isTooLong) {
        postMessage({ failed: { number, problem: "failed", message: reason(error) } });
        return;
      }
      translations = [{ text: "", words: [], problem: "tooLong" }]; // continue with the other sentences
    }
    postMessage({ translated: { number, index, translations } });
  }
  postMessage({ done: number });
}

// One search at a time, since the runtime's sessions cannot run two steps at once.
let last = Promise.resolve();
onmessage = ({ data }) => {
  if (data.start) {
    libraries = start(data.start);
  } else if (data.load) {
    const { id } = data.load.model;
    const answer = (error) => postMessage({ loaded: { id, problem: error && reason(error) } });
    last = last.then(() => load(data.load)).then(() => answer(), answer);
  } else {
    newest = data.translate.number;
    last = last.then(() => data.translate.number === newest && translate(data.translate));
  }
};
