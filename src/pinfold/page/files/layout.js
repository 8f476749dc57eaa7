/**
 * How large cells are, and how boxes flow: as large as fits into a width and, if that can be, into a height.
 *
 * Everything is reckoned beforehand from a few lengths, which style/map.css has as well, so that nothing is measured
 * twice.
 */

const SMALLEST = 24; // WCAG 2.2, 2.5.8: what is touched has 24 pixels at least
const STRETCH = 2.1; // cells may be that much wider than high, to fill their box

/**
 * The lengths of a map whose cells are `cell` pixels high.
 * @param {number} cell
 * @param {number} rem pixels
 */
function lengthsOf(cell, rem) {
  const tight = cell < 2.1 * rem;
  return {
    cell,
    pad: tight ? 0.4 * rem : 0.6 * rem,
    gap: tight ? 0.4 * rem : 0.7 * rem,
    title: 1.5 * rem,
    line: 1.3 * rem,
    lean: 1.15 * rem,
    coreGap: tight ? 3 : 5,
    corePad: tight ? 1.5 : 2.5,
    between: tight ? 1 : 2,
  };
}

/**
 * How a machine is laid out.
 * @param {object} root a SceneBox
 * @param {number} width pixels
 * @param {number} height pixels, which may be too little
 * @param {number} rem pixels
 * @returns {{lengths: object, columns: Map<object, {across: number, each: number}>, height: number}} how many boxes or
 *   cores are beside each other in each box, and how wide each of them may be
 */
export function layOut(root, width, height, rem) {
  const threads = mostThreads(root);
  // A screen on a wall is read from afar, and a small machine would leave it empty.
  const largest = Math.round(Math.min(5 * rem, Math.max(3.2 * rem, Math.min(width, height) / 16)));
  let best = null;
  for (let cell = largest; cell >= SMALLEST; cell -= 1) {
    const columns = new Map();
    const lengths = lengthsOf(cell, rem);
    const needed = heightOf(root, width, {lengths, threads, columns}, 0);
    // Cells that are larger are worth something, less so once they can be read
    // with ease; to see all at once is worth more.
    const legible = 2.4 * rem;
    const worth = Math.min(cell, legible) / legible + (0.2 * Math.max(0, cell - legible)) / legible;
    const over = Math.max(0, needed / height - 1);
    const score = worth - 0.35 * Math.min(1, needed / height) - 4 * over;
    if (!best || score > best.score) best = {score, lengths, columns, height: needed};
  }
  return best;
}

function mostThreads(box) {
  const own = (box.cores ?? []).map((core) => core.cpus.length);
  return Math.max(1, ...own, ...(box.boxes ?? []).map(mostThreads));
}

function coreWidth(lengths) {
  return lengths.cell + 2 * lengths.corePad;
}

function least(box, lengths, depth) {
  const inside = (box.boxes ?? []).map((one) => least(one, lengths, below(box, depth)));
  const cores = box.cores?.length
    ? Math.min(4, box.cores.length) * (coreWidth(lengths) + lengths.coreGap)
    : 0;
  const {pad, title} = frameOf(box, lengths, depth);
  return Math.max(cores, ...inside, 4 * title) + 2 * pad;
}

/** A box within two others that has cores is lean: a small title and no frame, since there are many of them. */
export function isLean(box, depth) {
  return Boolean(box.title) && depth >= 2 && Boolean(box.cores?.length);
}

/** How deep what is inside a box is. */
export function below(box, depth) {
  return depth + (box.title ? 1 : 0);
}

function frameOf(box, lengths, depth) {
  if (!box.title) return {pad: 0, title: 0};
  return isLean(box, depth) ? {pad: 0, title: lengths.lean} : {pad: lengths.pad + 1, title: lengths.title};
}

/** The height of a box in a width; notes how many columns it has. */
function heightOf(box, width, room, depth) {
  const {lengths, threads, columns} = room;
  const {pad, title} = frameOf(box, lengths, depth);
  const inner = width - 2 * pad;
  let height = title + (box.devices ?? []).length * lengths.line + 2 * pad;
  if (box.cores?.length) {
    const count = box.cores.length;
    const fit = Math.max(1, Math.floor((inner + lengths.coreGap) / (coreWidth(lengths) + lengths.coreGap)));
    const across = tidy(count, fit);
    const each = Math.min((inner + lengths.coreGap) / across - lengths.coreGap, lengths.cell * STRETCH);
    columns.set(box, {across, each});
    const core = threads * lengths.cell + (threads - 1) * lengths.between + 2 * lengths.corePad;
    height += Math.ceil(count / across) * (core + lengths.coreGap) - lengths.coreGap;
  }
  if (box.boxes?.length) height += heightOfBoxes(box, inner, room, below(box, depth));
  return height;
}

function heightOfBoxes(box, inner, room, depth) {
  const {lengths} = room;
  const needed = Math.max(...box.boxes.map((one) => least(one, lengths, depth)));
  let found = null;
  for (let across = 1; across <= box.boxes.length; across++) {
    const each = (inner - (across - 1) * lengths.gap) / across;
    if (across > 1 && (each < needed || across !== tidy(box.boxes.length, across))) continue;
    const columns = new Map();
    const heights = box.boxes.map((one) => heightOf(one, each, {...room, columns}, depth));
    let height = -lengths.gap;
    for (let at = 0; at < heights.length; at += across) {
      height += Math.max(...heights.slice(at, at + across)) + lengths.gap;
    }
    if (!found || height < found.height - 1) found = {height, across, each, columns};
  }
  room.columns.set(box, {across: found.across, each: found.each});
  for (const [one, told] of found.columns) room.columns.set(one, told);
  return found.height;
}

/** How many beside each other, of those that fit, so that rows are alike: a divisor, or an even number. */
function tidy(count, fit) {
  if (fit >= count) return count;
  for (let across = fit; across > fit / 2; across--) if (count % across === 0) return across;
  for (const across of [64, 32, 16, 12, 8, 6, 4]) if (across <= fit && across > fit / 2) return across;
  return fit;
}
