// Runs an exported folder in transformers.js in Node. Reads {batches, options, dtype} as JSON, and writes a result for
// each batch.

import { readFileSync } from "node:fs";
import { pipeline } from "@huggingface/transformers";

const { batches, options, dtype } = JSON.parse(readFileSync(0));
const session_options = { intraOpNumThreads: 1 };
const translate = await pipeline("translation", process.argv[2], { dtype, session_options, local_files_only: true });
const generate = translate.model.generate.bind(translate.model);
let tokens;
translate.model.generate = async (inputs) => {
  const sequences = await generate(inputs);
  tokens = sequences.tolist().map((row) => row.map(Number));
  return sequences;
};
const found = [];
for (const batch of batches) {
  const started = performance.now();
  const translations = await translate(batch, options);
  const milliseconds = performance.now() - started;
  found.push({ tokens, texts: translations.map((each) => each.translation_text), milliseconds });
}
console.log(JSON.stringify(found));
