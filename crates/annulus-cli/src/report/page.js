"use strict";
(() => {
  const duration = (ns) => {
    const [value, unit] = ns < 1e3 ? [ns, "ns"] : ns < 1e6 ? [ns / 1e3, "µs"] : ns < 1e9 ? [ns / 1e6, "ms"] : [ns / 1e9, "s"];
    return `${Number(value.toPrecision(3))} ${unit}`;
  };

  // Tables: a button in each heading sorts by its column.
  const number = (cell) => {
    const text = cell.textContent.replace(/,/g, "").replace("−", "-");
    const value = Number.parseFloat(text);
    return Number.isNaN(value) ? null : value;
  };
  const sort = (heading, at) => {
    const body = heading.closest("table").tBodies[0];
    const falling = heading.getAttribute("aria-sort") !== "descending";
    for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const sign = falling ? -1 : 1;
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [number(a.cells[at]), number(b.cells[at])];
      if (x === null && y === null) return sign * a.cells[at].textContent.localeCompare(b.cells[at].textContent);
      // Empty cells stay at the bottom in both directions.
      if (x === null || y === null) return x === null ? 1 : -1;
      return sign * (x - y);
    });
    body.append(...rows);
  };
  for (const row of document.querySelectorAll("thead tr")) {
    [...row.cells].forEach((heading, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(heading, at));
    });
  }

  // The JSON is parsed on first use, and saved unchanged.
  const parsed = new Map();
  const json = (comparison) => {
    if (!parsed.has(comparison)) parsed.set(comparison, JSON.parse(document.getElementById(`json-${comparison}`).textContent));
    return parsed.get(comparison);
  };
  for (const button of document.querySelectorAll("button[data-json]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const text = document.getElementById(button.dataset.json).textContent;
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      link.download = button.dataset.name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  // Heat maps: the cell under the pointer. Timelines in the page may be coarser than the map.
  const maps = document.getElementById("maps-of");
  if (!maps) return;
  const [low, shift, rows, length] = ["low", "shift", "rows", "length"].map((name) => Number(maps.dataset[name]));
  const first = (bucket) => (bucket < 16 ? bucket : (16 + (bucket % 16)) * 2 ** (Math.floor(bucket / 16) - 1));
  const timeline = (map) => {
    const run = json(Number(map.dataset.comparison)).runs[Number(map.dataset.run)];
    return (run.outcome && (run.outcome.timeline || (run.outcome.sample || {}).timeline)) || (run.sample || {}).timeline;
  };
  const showCell = (map, readout, event) => {
    const plot = map.querySelector(".plot").getBoundingClientRect();
    const across = (event.clientX - plot.left) / plot.width;
    const down = (event.clientY - plot.top) / plot.height;
    const line = timeline(map);
    if (!line || across < 0 || across >= 1 || down < 0 || down >= 1) {
      readout.textContent = "";
      return;
    }
    const slice = Math.floor((across * length) / line.slice_ns);
    const row = low + Math.floor((1 - down) * rows);
    const [from, until] = [first(row << shift), first((row + 1) << shift)];
    const pairs = line.latency[slice] || [];
    let [bucket, count] = [0, 0];
    for (let at = 0; at + 1 < pairs.length; at += 2) {
      bucket += pairs[at];
      if (bucket >> shift === row) count += pairs[at + 1];
    }
    const begin = slice * line.slice_ns;
    readout.textContent =
      `${duration(begin)} to ${duration(Math.min(begin + line.slice_ns, line.length_ns))}: ` +
      `${count.toLocaleString("en")} of ${(line.completions[slice] || 0).toLocaleString("en")} completions took ` +
      `${duration(from)} to ${duration(until)}`;
  };
  for (const map of maps.querySelectorAll("svg.map")) {
    const readout = document.createElement("p");
    readout.className = "readout";
    map.after(readout);
    map.addEventListener("pointermove", (event) => showCell(map, readout, event));
    map.addEventListener("pointerleave", () => (readout.textContent = ""));
  }
})();
