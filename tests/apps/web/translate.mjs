// Runs the translator of an exported page's first direction in Node. Reads {texts, cases} as JSON, and writes {ids,
// translations}.

import { readFileSync } from "node:fs";
import { resolve } from "node:path";

const folder = resolve(process.argv[2]);
const read = (name) => readFileSync(`${folder}/${name}`);
const { shared, directions } = JSON.parse(read("model.json"));
const model = directions[0];
const importBytes = (name) => import(`data:text/javascript;base64,${read(name).toString("base64")}`);
const [ort, { Tokenizer }, { search }, { Confidence }, { Translator }] = await Promise.all(
  shared.modules.map((name) => (name.startsWith("runtime/") ? import(`${folder}/${name}`) : importBytes(name))),
);
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmBinary = read(shared.wasm);
const translator = await Translator.load({ ort, Tokenizer, search, Confidence }, model, async (name) => read(model.files[name]));
const { texts, cases } = JSON.parse(readFileSync(0));
const translations = [];
for (const [sentence, { alignmentHeads = model.alignmentHeads, ...options }] of cases) {
  translator.model.alignmentHeads = alignmentHeads;
  const started = performance.now();
  const found = await translator.translate(sentence, options);
  const milliseconds = performance.now() - started;
  const words = translator.explain(sentence, found[0]);
  const attention = found[0].weights.map((each) => [...each]);
  translations.push({ found: found.map(({ weights, ...rest }) => rest), words, attention, milliseconds });
}
console.log(JSON.stringify({ ids: texts.map((text) => translator.encode(text)), translations }));
