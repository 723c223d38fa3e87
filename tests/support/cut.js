// What of a page cannot be seen, for tests/support/browser.py and tests/support/driven_browser.py.
"use strict";

function words(element) {
  const text = (element.innerText || element.getAttribute("src") || "").trim().split("\n")[0].slice(0, 60);
  return `${element.tagName.toLowerCase()} "${text}"`;
}

// What is wider than the box that it scrolls in, or is cut by. What one writes into scrolls with what is written.
function cut(article, view) {
  const found = [];
  for (const element of article.querySelectorAll("*")) {
    if (element.matches("input, textarea, select")) continue;
    const style = view.getComputedStyle(element);
    const beyond = element.scrollWidth - element.clientWidth;
    if (style.overflowX !== "visible" && style.display !== "inline" && element.clientWidth > 1 && beyond > 1) {
      found.push(`${words(element)} has ${beyond} pixels that are not seen`);
    }
  }
  return found;
}

// What makes the whole page wider than the window.
function beyond(article, width) {
  const wide = [...article.querySelectorAll("*")].filter((one) => one.getBoundingClientRect().right > width + 1);
  return wide.slice(-3).map((one) => `${words(one)} makes the page wider than the window`);
}
