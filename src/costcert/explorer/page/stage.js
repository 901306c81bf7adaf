// The picture with the sticker on it, and the votes of the mutants below.

import { element } from "./ranking.js";
import { changed, rectangles } from "./reach.js";

const $ = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

// Calls `onMove({top, left})` while the sticker is dragged or moved by keys, `onHome()` for the worst place.
export function addStickerListeners(state, onMove, onHome) {
  const stage = $("stage");
  const sticker = $("sticker");
  const { height, width } = state.geometry;
  let grip = null;

  // In pixels of the picture that the sticker is on.
  const pixel = (event) => {
    const box = stage.getBoundingClientRect();
    const { down, across } = state.reach;
    const at = (share, side, axis) => (share * side + axis.corner) / axis.scale;
    return {
      x: at((event.clientX - box.left) / box.width, width, across),
      y: at((event.clientY - box.top) / box.height, height, down),
    };
  };
  stage.addEventListener("pointerdown", (event) => {
    if (!state.reach) return;
    const point = pixel(event);
    const inside = event.target === sticker;
    // The sticker is held where the pointer is, or by its centre when the pointer is beside it.
    grip = inside
      ? { x: point.x - state.left, y: point.y - state.top }
      : { x: state.width / 2, y: state.height / 2 };
    stage.setPointerCapture(event.pointerId);
    stage.classList.add("dragging");
    sticker.focus({ preventScroll: true });
    if (!inside) drag(event);
    event.preventDefault();
  });
  const drag = (event) => {
    if (!grip || !state.reach) return;
    const point = pixel(event);
    place(Math.round(point.y - grip.y), Math.round(point.x - grip.x));
  };
  const place = (top, left) => {
    top = clamp(top, ...state.reach.down.range);
    left = clamp(left, ...state.reach.across.range);
    if (top !== state.top || left !== state.left) onMove({ top, left });
  };
  const release = () => {
    grip = null;
    stage.classList.remove("dragging");
  };
  stage.addEventListener("pointermove", drag);
  stage.addEventListener("pointerup", release);
  stage.addEventListener("pointercancel", release);
  sticker.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 5 : 1;
    const steps = { ArrowUp: [-step, 0], ArrowDown: [step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step] };
    if (event.key in steps && !state.reach) return;
    if (event.key in steps) place(state.top + steps[event.key][0], state.left + steps[event.key][1]);
    else if (event.key === "Home") onHome();
    else return;
    event.preventDefault();
  });
}

export function drawStage(state) {
  const { height, width } = state.geometry;
  $("stage").style.aspectRatio = `${width} / ${height}`;
  $("stage").classList.toggle("tiny", Math.max(height, width) <= 96);
  const { reach } = state;
  const put = (box, { top, left, height: tall, width: wide }) =>
    Object.assign(box.style, {
      left: `${(100 * left) / width}%`,
      top: `${(100 * top) / height}%`,
      width: `${(100 * wide) / width}%`,
      height: `${(100 * tall) / height}%`,
    });
  const { down, across } = reach;
  const sticker = $("sticker");
  put(sticker, {
    top: state.top * down.scale - down.corner,
    left: state.left * across.scale - across.corner,
    height: state.height * down.scale,
    width: state.width * across.scale,
  });
  const isOnOriginal = state.on === "original";
  const boxes = isOnOriginal ? rectangles(reach, state) : [];
  $("footprint").replaceChildren(
    ...boxes.map((box) => {
      const shown = element("div");
      put(shown, box);
      return shown;
    })
  );
  const size = `${state.height} by ${state.width} pixels (height by width)`;
  const where = `at row ${state.top}, column ${state.left}`;
  const reached = `at the model’s input it changes ${changed(reach, state)}`;
  sticker.setAttribute(
    "aria-label",
    `${size}${isOnOriginal ? ` of the ${reach.picture.join(" by ")} picture` : ""}, ${where}${isOnOriginal ? `; ${reached}` : ""}. ` +
      "Arrow keys move it, Home finds its worst place."
  );
}

// One cell per mutant: its vote above, and its vote after the attack below. Blocks are drawn as two grids.
export function drawStrips(state, isTouched, rewritten, colour) {
  const box = $("strips");
  const { parts } = state.geometry;
  if (box.children.length !== parts.length) {
    box.replaceChildren(...parts.map(() => document.createElement("canvas")));
  }
  const style = getComputedStyle(document.documentElement);
  const cssColour = (name) => style.getPropertyValue(name).trim();
  const attack = cssColour("--attack");
  const ground = cssColour("--ground");
  let first = 0;
  parts.forEach((part, index) => {
    const [rows, columns] = [part.rows.length, part.columns.length];
    const canvas = box.children[index];
    const wide = box.clientWidth || 320;
    const isGrid = rows > 1 && columns > 1;
    const tall = isGrid ? Math.round((wide / 2 - 4) * (rows / columns)) : 46;
    const scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(wide * scale) || canvas.height !== Math.round(tall * scale)) {
      canvas.width = Math.round(wide * scale);
      canvas.height = Math.round(tall * scale);
      canvas.style.height = `${tall}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, wide, tall);
    const cell = (mutant, x, y, w, h, after) => {
      const controlled = isTouched[mutant] || state.election.unknown[mutant];
      const label = after && controlled ? rewritten[mutant] : state.election.hard[mutant];
      pen.fillStyle = label < 0 ? ground : colour(label);
      pen.fillRect(x, y, w, h);
      return controlled;
    };
    if (isGrid) {
      const [before, after] = drawGrids(state, isTouched, rewritten, colour, attack, { first, rows, columns });
      const side = wide / 2 - 4;
      pen.imageSmoothingEnabled = false;
      pen.drawImage(before, 0, 0, side, (side * rows) / columns);
      pen.drawImage(after, wide / 2 + 4, 0, side, (side * rows) / columns);
    } else {
      const across = rows === 1;
      const segments = across ? part.columns : part.rows;
      const axis = across ? state.geometry.width : state.geometry.height;
      const step = segments.length > 1 ? segments[1][0] - segments[0][0] : axis;
      const unit = wide / axis;
      segments.forEach(([start], i) => {
        const mutant = first + i;
        const x = start * unit;
        const w = Math.max(0.5, Math.min(step, axis - start) * unit - (unit * step > 4 ? 1 : 0));
        cell(mutant, x, 2, w, 16, false);
        const controlled = cell(mutant, x, 21, w, 16, true);
        if (controlled) {
          pen.fillStyle = attack;
          pen.fillRect(x, 39, Math.max(w, step * unit), 6);
        }
      });
    }
    first += rows * columns;
  });
}

// One pixel per block: there may be fifty thousand, and they are drawn on every movement.
function drawGrids(state, isTouched, rewritten, colour, attack, { first, rows, columns }) {
  const { hard, unknown } = state.election;
  const rgb = (name) => [1, 3, 5].map((at) => parseInt(name.slice(at, at + 2), 16));
  const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  const orange = rgb(attack);
  const plainColours = new Map();
  const attackedColours = new Map();
  const cached = (cache, label, mix) => {
    if (!cache.has(label)) cache.set(label, packed(rgb(label < 0 ? "#808080" : colour(label)).map(mix)));
    return cache.get(label);
  };
  const pictures = [new ImageData(columns, rows), new ImageData(columns, rows)];
  const [before, after] = pictures.map((picture) => new Uint32Array(picture.data.buffer));
  for (let i = 0; i < before.length; i++) {
    const mutant = first + i;
    before[i] = cached(plainColours, hard[mutant], (part) => part);
    after[i] =
      isTouched[mutant] || unknown[mutant]
        ? cached(attackedColours, rewritten[mutant], (part, channel) => 0.45 * part + 0.55 * orange[channel])
        : before[i];
  }
  return pictures.map((picture) => {
    const canvas = new OffscreenCanvas(columns, rows);
    canvas.getContext("2d").putImageData(picture, 0, 0);
    return canvas;
  });
}

export function stripsCaption(geometry) {
  const [part] = geometry.parts;
  if (geometry.parts.every((each) => each.rows.length > 1 && each.columns.length > 1)) {
    return "One cell per block: its vote (left), and its vote after the attack (right; orange: controlled by the attacker).";
  }
  const order = geometry.parts.length > 1 ? "" : part.rows.length > 1 ? ", from top to bottom" : "";
  return `One cell per strip${order}: its vote (above), and its vote after the attack (below; orange: controlled by the attacker).`;
}
