/** Lists of CPUs, as the kernel writes them: `0-3,8`. */

/**
 * @param {string} text
 * @returns {number[]} ascending
 */
export function parseCPUs(text) {
  const found = [];
  for (const range of text.split(",")) {
    if (!range) continue;
    const [first, last = first] = range.split("-").map(Number);
    for (let cpu = first; cpu <= last; cpu++) found.push(cpu);
  }
  return found;
}

/**
 * @param {Iterable<number>} cpus
 * @returns {string}
 */
export function formatCPUs(cpus) {
  const sorted = [...cpus].sort((one, other) => one - other);
  const ranges = [];
  for (let at = 0; at < sorted.length; at++) {
    const first = sorted[at];
    while (sorted[at + 1] === sorted[at] + 1) at++;
    ranges.push(first === sorted[at] ? `${first}` : `${first}-${sorted[at]}`);
  }
  return ranges.join(",");
}
