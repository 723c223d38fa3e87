// Makes what is wider than the window fit into it: letters of drawings and outputs get smaller as long as they can be
// read, and else their lines are folded; rows of a table become blocks, a line for each cell. Without this script
// lines are folded, and tables are read sideways.
"use strict";

const NARROW = window.matchMedia("(max-width: 46em)");

function fitOutputs() {
  const smallest = NARROW.matches ? 9 : 11.5; // pixels
  for (const pre of document.querySelectorAll(":is(.highlight-text, .highlight-output, .highlight-none, .output) pre")) {
    pre.style.fontSize = "";
    pre.classList.add("as-it-is");
    const style = getComputedStyle(pre);
    const padding = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
    const fits = (pre.clientWidth - padding) / (pre.scrollWidth - padding);
    if (fits >= 1) continue;
    const size = Math.floor(10 * fits * parseFloat(style.fontSize)) / 10;
    if (size < smallest) pre.classList.remove("as-it-is");
    else pre.style.fontSize = `${size}px`;
  }
}

function fitTables() {
  for (const wrapper of document.querySelectorAll(".table-wrapper")) {
    const table = wrapper.querySelector("table");
    table.classList.remove("stacked");
    if (wrapper.scrollWidth <= wrapper.clientWidth + 1) continue;
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.innerText.trim());
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, column) => (cell.dataset.head = heads[column] || ""));
    }
    table.classList.add("stacked");
  }
}

function fit() {
  fitOutputs();
  fitTables();
}

window.addEventListener("load", fit);
window.addEventListener("resize", fit);
