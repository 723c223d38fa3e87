// Run by tests/support/driven_browser.py within a page of `kbatch ui`.
"use strict";

function shownName(element) {
  const text = element.getAttribute("aria-label") || element.innerText || element.name || "";
  return `${element.tagName.toLowerCase()} "${text.trim().slice(0, 60)}"`;
}

function within(url) {
  return url.origin === location.origin ? [url.pathname + url.search] : [];
}

// Addresses of links; of forms as they are, and with each other choice of theirs.
function leadsTo() {
  const found = [...document.querySelectorAll("a[href]")].flatMap((one) => within(new URL(one.href)));
  for (const form of document.forms) {
    const send = (change) => {
      const fields = new URLSearchParams(new FormData(form));
      for (const [name, value] of change) fields.set(name, value);
      const url = new URL(form.action);
      url.search = fields.toString();
      found.push(...within(url));
    };
    send([]);
    for (const option of form.querySelectorAll("option:not([disabled])")) {
      send([[option.closest("select").name, option.value]]);
    }
    for (const box of form.querySelectorAll("input[type=checkbox], input[type=radio]")) send([[box.name, box.value]]);
  }
  return [...new Set(found)];
}

function couldRun() {
  const found = [];
  if ("hit" in window) found.push(`window.hit is ${window.hit}`);
  if (document.scripts.length) found.push(`${document.scripts.length} scripts`);
  for (const element of document.querySelectorAll("iframe, frame, object, embed, base, meta[http-equiv], template, math")) {
    found.push(element.outerHTML.slice(0, 200));
  }
  for (const element of document.querySelectorAll("*")) {
    for (const { name, value } of element.attributes) {
      if (name.startsWith("on") || name === "style") found.push(`${name}="${value.slice(0, 100)}"`);
      const address = ["href", "src", "action", "formaction", "xlink:href", "data", "poster"].includes(name);
      if (address && value !== "data:," && new URL(value, location).origin !== location.origin) found.push(`${name}="${value.slice(0, 100)}"`);
    }
  }
  return found;
}

// A region that a person can scroll sideways, and a screen reader names.
function mayScroll(element) {
  return element.tabIndex === 0 && element.hasAttribute("aria-label");
}

function tooWide(width) {
  const page = document.scrollingElement;
  const regions = [...document.querySelectorAll("*")].filter((one) => getComputedStyle(one).overflowX === "auto");
  const found = regions.filter((one) => one.scrollWidth > one.clientWidth && !mayScroll(one)).map((one) => `${shownName(one)} scrolls, and has no name`);
  const outside = (line) => !regions.some((one) => mayScroll(one) && line.startsWith(words(one)));
  found.push(...cut(document.body, window).filter(outside));
  if (page.scrollWidth > width) {
    const wide = [...document.querySelectorAll("body *")].filter((one) => !regions.some((region) => region !== one && region.contains(one)));
    found.push(`the page has ${page.scrollWidth} pixels`, ...wide.filter((one) => one.getBoundingClientRect().right > width + 1).slice(-3).map(shownName));
  }
  return found;
}

const FOCUSABLE = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]";

function canScroll(element) {
  const { overflowX, overflowY } = getComputedStyle(element);
  const scrolls = (overflow) => overflow === "auto" || overflow === "scroll";
  return (scrolls(overflowX) && element.scrollWidth > element.clientWidth) || (scrolls(overflowY) && element.scrollHeight > element.clientHeight);
}

function markFocusable() {
  const wanted = [...document.querySelectorAll("body *")].filter((one) => (one.matches(FOCUSABLE) || canScroll(one)) && one.checkVisibility() && !one.disabled);
  // Of radio buttons with one name, Tab goes to one.
  const first = wanted.filter((one) => one.type !== "radio" || one.checked);
  first.forEach((one, index) => (one.dataset.place = index));
  return first.map(shownName);
}

function focused() {
  const one = document.activeElement;
  const style = getComputedStyle(one);
  const box = one.getBoundingClientRect();
  return {
    place: one.dataset.place === undefined ? -1 : Number(one.dataset.place),
    name: shownName(one),
    ring: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
    color: style.outlineColor,
    ground: getComputedStyle(document.body).backgroundColor,
    isSeen: box.width > 0 && box.height > 0 && box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth,
  };
}
