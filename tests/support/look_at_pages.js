// Run by tests/support/browser.py in a page of its own, after cut.js. ASKED has the pages of a site and the widths of windows.
"use strict";

const LETTERS_MIN = 9.5; // pixels, of words in pictures

// Shows a page in a frame of this width, and returns its document once it is laid out.
async function shown(page, width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width: ${width}px; height: 900px; border: 0`;
  const loaded = new Promise((resolve) => (frame.onload = resolve));
  frame.src = page;
  document.body.replaceChildren(frame);
  await loaded;
  await frame.contentDocument.fonts.ready;
  return frame.contentDocument;
}

async function smallLetters(article) {
  const found = [];
  for (const picture of article.querySelectorAll('img[src$=".svg"]')) {
    const answer = await fetch(picture.src);
    const svg = new DOMParser().parseFromString(await answer.text(), "image/svg+xml").documentElement;
    const inlined = document.body.appendChild(document.importNode(svg, true));
    const scale = picture.clientWidth / inlined.viewBox.baseVal.width;
    const sizes = [...inlined.querySelectorAll("text")].map((one) => scale * parseFloat(getComputedStyle(one).fontSize));
    inlined.remove();
    if (Math.min(...sizes) < LETTERS_MIN) {
      found.push(`${words(picture)} has letters of ${Math.min(...sizes).toFixed(1)} pixels`);
    }
  }
  return found;
}

async function lookAtAll() {
  const found = [];
  for (const page of ASKED.pages) {
    for (const width of ASKED.widths) {
      const view = await shown(page, width);
      const article = view.querySelector("article") || view.body;
      const told = [...cut(article, view.defaultView), ...(await smallLetters(article))];
      if (view.scrollingElement.scrollWidth > width) {
        told.push(...beyond(article, width), "the page is wider than the window");
      }
      found.push(...told.map((one) => `${page} at ${width}: ${one}`));
    }
  }
  return found;
}

lookAtAll()
  .catch((error) => [`the look at the pages failed: ${error.stack}`])
  .then((found) => fetch("/found", { method: "POST", body: JSON.stringify(found) }));
