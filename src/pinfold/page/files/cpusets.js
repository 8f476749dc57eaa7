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
