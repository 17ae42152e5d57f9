// Translates in a thread of its own. Messages: { load }, then any number of { translate }, each of which ends the one
// before.

let translator;
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

async function load({ model, files }) {
  const imported = model.modules.map((name) => importBytes(files[name]));
  const [ort, { Tokenizer }, { search }, { Confidence }, { Translator }] = await Promise.all(imported);
  ort.env.wasm.numThreads = 1; // threads need HTTP headers that static servers seldom send
  ort.env.wasm.wasmBinary = files[model.wasm];
  translator = await Translator.load({ ort, Tokenizer, search, Confidence }, model, async (name) => files[name]);
  postMessage({ loaded: true });
}

async function translate({ number, sentences, options }) {
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
      translations = [{ text: "", words: [], problem: reason(error) }]; // continue with the other sentences
    }
    postMessage({ translated: { number, index, translations } });
  }
  postMessage({ done: number });
}

// One search at a time, since the runtime's sessions cannot run two steps at once.
let last = Promise.resolve();
onmessage = ({ data }) => {
  if (data.load) {
    last = load(data.load).catch((error) => postMessage({ failed: `The model cannot be loaded (${reason(error)}). Reload the page, or export it again.` }));
    return;
  }
  newest = data.translate.number;
  last = last.then(() => data.translate.number === newest && translate(data.translate));
};
