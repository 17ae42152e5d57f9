// Other wordings of a word. A search finds several outputs for a sentence; compared word by word, they show how else
// it could be put. Choosing a wording means choosing the best output that has it.

import { wordsOf } from "./text.js";

const justWords = (text, language) => wordsOf(text, language).filter(({ isWord }) => isWord);

// Indices of equal words in two lists, [first, second], as many as possible: the longest common subsequence.
export function matches(first, second) {
  const lengths = first.map(() => new Array(second.length + 1).fill(0)).concat([new Array(second.length + 1).fill(0)]);
  for (let row = first.length - 1; row >= 0; row--) {
    for (let column = second.length - 1; column >= 0; column--) {
      const isSame = first[row] === second[column];
      const [below, right] = [lengths[row + 1][column], lengths[row][column + 1]];
      lengths[row][column] = isSame ? lengths[row + 1][column + 1] + 1 : Math.max(below, right);
    }
  }
  const found = [];
  for (let [row, column] = [0, 0]; row < first.length && column < second.length; ) {
    if (first[row] === second[column]) found.push([row++, column++]);
    else if (lengths[row + 1][column] >= lengths[row][column + 1]) row++;
    else column++;
  }
  return found;
}

// Indices of words that stand for each other: equal words, and words in equal numbers between equal ones.
function aligned(first, second) {
  const found = [];
  let [row, column] = [0, 0];
  for (const [nextRow, nextColumn] of [...matches(first, second), [first.length, second.length]]) {
    if (nextRow - row === nextColumn - column) {
      for (; row < nextRow; row++, column++) found.push([row, column]);
    }
    if (nextRow < first.length) found.push([nextRow, nextColumn]);
    [row, column] = [nextRow + 1, nextColumn + 1];
  }
  return found;
}

// What words start to end - 1 of the first list correspond to: the smallest range around them whose neighbours are
// aligned, and its counterpart in the second list, which is empty only if the list is.
// [start, end, start, end]
function counterpart([start, end], pairs, first, second) {
  if (!second.length) return [start, end, 0, 0];
  const ends = [[-1, -1], ...pairs, [first.length, second.length]];
  const inside = ends.filter(([row]) => row >= start && row < end);
  const before = inside[0]?.[0] === start ? [start - 1, inside[0][1] - 1] : ends.findLast(([row]) => row < start);
  const after = inside.at(-1)?.[0] === end - 1 ? [end, inside.at(-1)[1] + 1] : ends.find(([row]) => row >= end);
  const found = [before[0] + 1, after[0], before[1] + 1, after[1]];
  if (found[2] < found[3]) return found;
  // Left out in the second list: together with the next word, or else with the one before.
  if (found[1] < first.length) return counterpart([found[0], found[1] + 1], pairs, first, second);
  return found[0] > 0 ? counterpart([found[0] - 1, found[1]], pairs, first, second) : found;
}

// The wordings of a word in several outputs for a sentence, { text, score }, with the natural logarithms of their
// probabilities. Returns { start, end, options }: which words of the shown output the wordings stand for, and the
// wordings by their share, largest first, { text, share, output, isShown }.
export function wordings(outputs, shown, place, language) {
  const all = outputs.map(({ text }) => justWords(text, language));
  const words = all.map((row) => row.map(({ text }) => text));
  const pairs = words.map((row) => aligned(words[shown], row));
  let [start, end] = [place, place + 1];
  for (let isLarger = true; isLarger; ) {
    const found = words.map((row, index) => counterpart([start, end], pairs[index], words[shown], row));
    const [first, last] = [Math.min(...found.map((each) => each[0])), Math.max(...found.map((each) => each[1]))];
    isLarger = first < start || last > end;
    [start, end] = [first, last];
  }
  const best = Math.max(...outputs.map(({ score }) => score));
  const weights = outputs.map(({ score }) => Math.exp(score - best));
  const sum = weights.reduce((total, weight) => total + weight);
  const options = new Map();
  const order = [shown, ...outputs.keys()].filter((output, index, list) => list.indexOf(output) === index);
  for (const output of order) {
    const [, , from, to] = counterpart([start, end], pairs[output], words[shown], words[output]);
    if (from >= to) continue;
    const [head, tail] = [all[output][from], all[output][to - 1]];
    const text = outputs[output].text.slice(head.start, tail.start + tail.text.length);
    const option = options.get(text) ?? { text, share: 0, output, isShown: output === shown };
    option.share += weights[output] / sum;
    options.set(text, option);
  }
  return { start, end, options: [...options.values()].sort((one, two) => two.share - one.share) };
}

// The words of an output and what is between them, with the words of the source that they come from: { text, isWord,
// from }. `best` is the output whose words the model has linked. In another output, a word that is also in the best
// one comes from the same words; others come from those of the words that they replace.
export function linked(output, best, language) {
  const made = wordsOf(best.text, language).map((word) => ({ ...word, from: [] }));
  let start = 0;
  for (const { text, from } of best.words) {
    for (const word of made) if (word.start >= start && word.start < start + text.length) word.from = from;
    start += text.length;
  }
  if (output.text === best.text) return made;
  const first = made.filter(({ isWord }) => isWord);
  const all = wordsOf(output.text, language).map((word) => ({ ...word, from: [] }));
  const second = all.filter(({ isWord }) => isWord);
  const pairs = aligned(first.map(({ text }) => text), second.map(({ text }) => text));
  let [row, column] = [0, 0];
  for (const [nextRow, nextColumn] of [...pairs, [first.length, second.length]]) {
    const from = first.slice(row, nextRow).flatMap((word) => word.from);
    for (const word of second.slice(column, nextColumn)) word.from = from;
    if (second[nextColumn]) second[nextColumn].from = first[nextRow].from;
    [row, column] = [nextRow + 1, nextColumn + 1];
  }
  return all;
}
