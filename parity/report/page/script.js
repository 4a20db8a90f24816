"use strict";
const by = (id) => document.getElementById(id), bad = "XWMNRDEO";
const head = [...document.querySelectorAll("#table thead th")], rows = [...document.querySelectorAll("#table tbody tr")].map((tr) => ({
  tr, name: tr.cells[0].textContent.toLowerCase(), cells: [...tr.cells].slice(1), texts: [...tr.cells].slice(1).map((td) => td.textContent) }));
const wanted = { odd: (x) => !".v-".includes(x), finding: (x) => bad.includes(x), all: () => true };
function show() {
  const word = by("filter").value.trim().toLowerCase(), only = by("dtype").value, pass = by("pass").value, status = by("status").value;
  const fits = wanted[status] || ((x) => x === status), columns = head.slice(1).map((h) => !only || h.textContent === only);
  const part = (text) => pass && text ? text[+pass] : text;
  let n = 0;
  for (const r of rows) {
    const on = r.name.includes(word) && r.texts.some((text, k) => columns[k] && text && [...part(text)].some(fits));
    r.tr.hidden = !on; n += on;
    if (on) r.cells.forEach((td, k) => {
      const text = part(r.texts[k]);
      if (td.textContent !== text) td.textContent = text;
      const style = "mono" + ([...text].some((x) => bad.includes(x)) ? " bad" : /[uf]/.test(text) ? " cool" : "") + (columns[k] ? "" : " gone");
      if (td.className !== style) td.className = style;
    });
  }
  head.slice(1).forEach((h, k) => h.classList.toggle("gone", !columns[k]));
  by("shown").textContent = n + " of " + rows.length + " ops";
}
for (const id of ["filter", "dtype", "pass", "status"]) by(id).addEventListener("input", show);
show();
const meanings = JSON.parse(by("meanings").textContent);
by("table").addEventListener("mouseover", (e) => {
  const td = e.target.closest("td");
  if (!td || td.title || !td.textContent) return;
  const pass = by("pass").value, names = pass ? [meanings.passes[+pass]] : meanings.passes;
  td.title = [...td.textContent].map((x, k) => names[k] + ": " + meanings.letters[x]).join("\n");
});
by("pass").addEventListener("input", () => { for (const td of document.querySelectorAll("#table td[title]")) td.removeAttribute("title"); });
const causes = [...document.querySelectorAll("details.cause")].map((d) => ({ d, text: d.textContent.toLowerCase() }));
function choose() {
  const words = by("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let n = 0;
  for (const c of causes) { const on = words.every((w) => c.text.includes(w)); c.d.hidden = !on; n += on; }
  by("found").textContent = n + " of " + causes.length + " causes";
}
if (by("search")) { by("search").addEventListener("input", choose); choose(); }
document.addEventListener("click", async (e) => {
  const b = e.target.closest("button.copy");
  if (!b) return;
  try { await navigator.clipboard.writeText(b.nextElementSibling.textContent); b.textContent = "copied"; }
  catch { getSelection().selectAllChildren(b.nextElementSibling); b.textContent = "selected: copy it"; }
});
function reach() {
  const d = location.hash && by(decodeURIComponent(location.hash.slice(1)));
  if (d && d.tagName === "DETAILS") { d.open = true; d.scrollIntoView(); }
}
addEventListener("hashchange", reach);
reach();
