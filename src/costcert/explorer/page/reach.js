// What a sticker can change at the model's input: runs (first, length) of rows for each of its tops, and of columns for each of its
// lefts. Every pixel in one of these rows and one of these columns may change.

const axisOfInput = (side, extent) => ({ runs: (at) => [[at, extent]], range: [0, side - extent], scale: 1, corner: 0 });

// A sticker in pixels of the input changes the pixels under it.
export const onInput = ({ height, width }, sticker) => ({
  picture: [height, width],
  down: axisOfInput(height, sticker.height),
  across: axisOfInput(width, sticker.width),
  budget: null,
});

// One on the original changes its footprint. Outermost places that were cropped change nothing, and are left out.
function axisOfOriginal(table, original, resized, corner) {
  const some = table.map((runs) => runs.length > 0);
  const range = some.includes(true) ? [some.indexOf(true), some.lastIndexOf(true)] : [0, table.length - 1];
  return { runs: (at) => table[at], range, scale: resized / original, corner };
}

export function onOriginal({ original, resized, corner, rows, columns, budget }) {
  return {
    picture: original,
    down: axisOfOriginal(rows, original[0], resized[0], corner[0]),
    across: axisOfOriginal(columns, original[1], resized[1], corner[1]),
    budget,
  };
}

// The place where a sticker stays when its reach changes: the same one, or the same share of another picture; first in the middle.
export function placeAfter(place, before, after) {
  const moved = (at, axis) => {
    const [low, high] = after[axis].range;
    if (at === null || !before) return Math.round((low + high) / 2);
    const [lowest, highest] = before[axis].range;
    const isSame = before.picture.join() === after.picture.join();
    const wanted = isSame ? at : Math.round(low + ((at - lowest) / Math.max(1, highest - lowest)) * (high - low));
    return Math.max(low, Math.min(high, wanted));
  };
  return { top: moved(place.top, "down"), left: moved(place.left, "across") };
}

// The rectangles of the input that change from this place.
export function rectangles(reach, { top, left }) {
  const columns = reach.across.runs(left);
  return reach.down.runs(top).flatMap(([y, height]) => columns.map(([x, width]) => ({ top: y, left: x, height, width })));
}

const span = (runs) => (runs.length ? runs[runs.length - 1][0] + runs[runs.length - 1][1] - runs[0][0] : 0);

// How much of the input changes from this place, height × width; of scattered pixels how many they are.
export function changed(reach, { top, left }) {
  const [rows, columns] = [reach.down.runs(top), reach.across.runs(left)];
  if (!rows.length || !columns.length) return "nothing";
  const size = `${span(rows)} × ${span(columns)} px`;
  const pixels = [rows, columns].map((runs) => runs.reduce((sum, [, length]) => sum + length, 0)).reduce((a, b) => a * b);
  return pixels === span(rows) * span(columns) ? size : `${pixels} of ${size}`;
}
