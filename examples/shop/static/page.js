// Small helpers of the page and of the live board.

export const $ = (id) => document.getElementById(id);

/** The first element of `html`. */
export const element = (html) => document.createRange().createContextualFragment(html).firstElementChild;

/** `text` with a capital first letter. */
export const capitalized = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;

/** Keeps the selection and the tooltip of a text that has not changed. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
