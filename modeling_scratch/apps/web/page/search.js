// Greedy and beam search for one sentence. Hypotheses, ranking and stopping are those of Transformers' generate().

// Masks tokens that must not be chosen: suppressed ones, and end tokens before the minimum length.
function forbid(logProbs, rows, settings, length) {
  const size = logProbs.length / rows;
  const ends = length <= settings.minNewTokens ? settings.endTokens : [];
  for (const token of [...settings.suppressedTokens, ...ends]) {
    for (let row = 0; row < rows; row++) logProbs[row * size + token] = -Infinity;
  }
}

// The `count` best continuations of the hypotheses, best first.
function best(hypotheses, logProbs, count) {
  const size = logProbs.length / hypotheses.length;
  const found = [];
  hypotheses.forEach((hypothesis, row) => {
    for (let token = 0; token < size; token++) {
      const score = Math.fround(hypothesis.score + logProbs[row * size + token]);
      if (found.length === count && !(score > found[count - 1].score)) continue;
      let place = found.length === count ? count - 1 : found.length;
      while (place > 0 && found[place - 1].score < score) place--;
      if (found.length === count) found.pop();
      found.splice(place, 0, { score, token, row });
    }
  });
  return found;
}

// Returns hypotheses, best first: { tokens, weights, score }. `checkpoint` is awaited before each step; it may throw to
// end the search.
export async function search(decoder, settings, checkpoint) {
  // Greedy search is beam search with one beam that ends with its first hypothesis.
  const greedy = settings.numBeams === 1 ? { lengthPenalty: 0, earlyStopping: true } : {};
  const { numBeams, lengthPenalty, earlyStopping, maxNewTokens, endTokens } = { ...settings, ...greedy };
  // So many continuations that at least numBeams of them do not end.
  const width = Math.max(2, 1 + endTokens.length) * numBeams;
  let running = [{ tokens: [], weights: [], row: 0, score: 0 }];
  let finished = []; // best first
  for (let length = 1; ; length++) {
    await checkpoint();
    const { logProbs, weights } = await decoder.step(running);
    forbid(logProbs, running.length, settings, length);
    const continuations = best(running, logProbs, width).map(({ score, token, row }) => ({
      tokens: [...running[row].tokens, token],
      weights: [...running[row].weights, weights[row]],
      row, // in this step's outputs
      score,
      ended: length === maxNewTokens || endTokens.includes(token),
    }));
    running = continuations.filter(({ ended }) => !ended).slice(0, numBeams);
    if (!(earlyStopping === true && finished.length === numBeams)) {
      const ended = continuations.slice(0, numBeams).filter((each) => each.ended);
      const ranked = ended.map((each) => ({ ...each, rank: Math.fround(each.score / length ** lengthPenalty) }));
      finished = [...finished, ...ranked].sort((first, second) => second.rank - first.rank).slice(0, numBeams);
    }
    const isFull = finished.length === numBeams;
    if (!running.length || (earlyStopping === true && isFull)) return finished;
    const reach = earlyStopping === "never" && lengthPenalty > 0 ? maxNewTokens : length;
    const worst = isFull ? finished[numBeams - 1].rank : -Infinity;
    if (!(Math.fround(running[0].score / reach ** lengthPenalty) > worst)) return finished;
  }
}
