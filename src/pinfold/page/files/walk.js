/** Walking over a map with the arrow keys: to the nearest cell in that direction, by where cells are seen. */

const DIRECTIONS = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
};

/**
 * Where a key leads from a cell; null where it leads nowhere or is none of these keys.
 * @param {string} key of a KeyboardEvent
 * @param {HTMLElement} from
 * @param {HTMLElement[]} cells in the order of the map
 * @returns {HTMLElement|null}
 */
export function stepTo(key, from, cells) {
  if (key === "Home") return cells[0];
  if (key === "End") return cells.at(-1);
  const direction = DIRECTIONS[key];
  if (!direction) return null;
  const [dx, dy] = direction;
  const here = middle(from);
  let best = null;
  for (const cell of cells) {
    if (cell === from) continue;
    const there = middle(cell);
    const along = (there.x - here.x) * dx + (there.y - here.y) * dy;
    const aside = Math.abs((there.x - here.x) * dy) + Math.abs((there.y - here.y) * dx);
    // Straight on first: what is farther aside than ahead is in another direction.
    if (along < 1 || (dx ? aside > here.height / 2 : aside > along * 2 + here.width)) continue;
    const far = along + 3 * aside;
    if (!best || far < best.far) best = {cell, far};
  }
  if (best) return best.cell;
  // At the end of a row the next CPU goes on.
  const next = cells[cells.indexOf(from) + (dx || dy)];
  return dx ? (next ?? null) : null;
}

function middle(cell) {
  const box = cell.getBoundingClientRect();
  return {x: box.x + box.width / 2, y: box.y + box.height / 2, width: box.width, height: box.height};
}
