// What the recorder finds out about an element. Used as the body of a function; it returns
// { at, focused, target, about }, functions on elements.
const norm = s => String(s || '').replace(/\s+/g, ' ').trim();
// A name that a selector can quote and a person would recognise.
const usable = s => s.length > 0 && s.length <= 80 && !/["\\{}`]/.test(s);
const volatile = s => /\d{4}|[0-9a-f]{8}|[:.]/i.test(s) || s.length > 60;
const textOf = e => norm(e.localName === 'input' ? e.value : e.textContent);
const shown = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0 };

// at returns the innermost element at a point, inside open shadow roots too.
const at = (x, y) => {
  let e = document.elementFromPoint(x, y);
  while (e && e.shadowRoot) {
    const inner = e.shadowRoot.elementFromPoint(x, y);
    if (!inner || inner === e) break;
    e = inner;
  }
  return e;
};
// focused returns the element that has the keyboard, null if it is the page.
const focused = () => {
  let e = document.activeElement;
  while (e && e.shadowRoot && e.shadowRoot.activeElement) e = e.shadowRoot.activeElement;
  return e && e !== document.body && e !== document.documentElement ? e : null;
};
// target returns the element that a click on e is meant for.
const target = e => {
  const t = e.closest('button, a[href], input, select, textarea, summary, label, option, [role=button], [role=link], [role=tab], [role=menuitem], [role=option], [role=checkbox], [role=switch], [contenteditable=""], [contenteditable=true]') || e;
  if (t.localName === 'label' && t.control && (t.control.type === 'checkbox' || t.control.type === 'radio')) return t.control;
  if (t.localName === 'option') return t.closest('select') || t;
  return t;
};

// find returns the elements that a candidate finds: those of css that contain text, or what rest
// finds inside of them.
const find = c => {
  let list = Array.from(document.querySelectorAll(c.css));
  if (c.text) list = list.filter(e => textOf(e).toLowerCase().includes(c.text.toLowerCase()));
  return c.rest ? Array.from(new Set(list.flatMap(e => Array.from(e.querySelectorAll(c.rest))))) : list;
};
const written = c => c.css + (c.text ? `:has-text("${c.text}")` : '') + (c.rest ? ' ' + c.rest : '');

// nameOf returns the accessible name, as far as it can be told without the accessibility tree.
const nameOf = e => {
  const by = e.getAttribute('aria-labelledby');
  if (by) return norm(by.split(/\s+/).map(id => { const l = document.getElementById(id); return l ? l.textContent : '' }).join(' '));
  return norm(e.getAttribute('aria-label') || e.getAttribute('alt') || '');
};
const pathOf = e => {
  let path = '';
  for (let n = e; n && n.nodeType === 1 && n.localName !== 'html'; n = n.parentElement) {
    if (n !== e && n.id && !volatile(n.id)) return `#${CSS.escape(n.id)} > ${path}`;
    const same = n.parentElement ? Array.from(n.parentElement.children).filter(s => s.localName === n.localName) : [n];
    const own = n.localName + (same.length > 1 ? `:nth-of-type(${same.indexOf(n) + 1})` : '');
    path = path ? own + ' > ' + path : own;
    if (n.localName === 'body') break;
  }
  return path;
};

// about describes an element: selectors in the order role and name, label, test id, CSS, each of
// which finds it alone, and a visible text that does. all: also those that find others.
const about = (e, all) => {
  const tag = e.localName, role = e.getAttribute('role'), type = tag === 'input' ? (e.type || 'text') : '';
  const base = role ? `${tag}[role="${CSS.escape(role)}"]` : tag;
  const tries = [];
  const add = c => { if (c.css.length < 400) tries.push(c) };
  const clickable = tag === 'button' || tag === 'a' || tag === 'summary' || /^(button|submit|reset)$/.test(type) || /^(button|link|tab|menuitem|option|switch|checkbox)$/.test(role || '');
  // role and name
  const label = norm(e.getAttribute('aria-label') || '');
  if (usable(label)) add({ css: `${base}[aria-label="${label}"]` });
  const alt = norm(e.getAttribute('alt') || '');
  if (usable(alt)) add({ css: `${base}[alt="${alt}"]` });
  const own = clickable || /^h[1-6]$/.test(tag) ? textOf(e) : '';
  if (tag !== 'input' && usable(own)) add({ css: base, text: own });
  if (tag === 'input' && clickable && usable(own)) add({ css: `input[type="${type}"][value="${own}"]` });
  // label
  for (const l of Array.from(e.labels || [])) {
    const text = norm(Array.from(l.querySelectorAll('select, option, textarea, input, script, style')).reduce((s, x) => s.replace(norm(x.textContent), ' '), norm(l.textContent)));
    if (!usable(text)) continue;
    if (l.contains(e)) add({ css: 'label', text, rest: tag });
    else if (l.nextElementSibling === e) add({ css: 'label', text, rest: null, next: tag });
  }
  const hint = norm(e.getAttribute('placeholder') || '');
  if (usable(hint)) add({ css: `${tag}[placeholder="${hint}"]` });
  // test id
  for (const a of ['data-testid', 'data-test-id', 'data-test', 'data-cy', 'data-qa']) {
    const v = e.getAttribute(a);
    if (v && usable(v)) add({ css: `[${a}="${v}"]` });
  }
  // CSS
  if (e.id && !volatile(e.id)) add({ css: '#' + CSS.escape(e.id) });
  const name = e.getAttribute('name');
  if (name && usable(name)) add({ css: `${tag}[name="${name}"]` + (type === 'radio' && usable(e.value) ? `[value="${e.value}"]` : '') });
  const href = tag === 'a' ? e.getAttribute('href') : '';
  if (href && usable(href) && !/[?#]|\d{3}/.test(href)) add({ css: `a[href="${href}"]` });
  const title = norm(e.getAttribute('title') || '');
  if (usable(title)) add({ css: `${base}[title="${title}"]` });
  add({ css: pathOf(e) });
  const selectors = [];
  for (const c of tries) {
    const s = c.next ? `label:has-text("${c.text}") + ${c.next}` : written(c);
    if (selectors.includes(s)) continue;
    if (all) { selectors.push(s); continue }
    try {
      const found = c.next ? find({ css: c.css, text: c.text }).map(l => l.nextElementSibling).filter(x => x && x.localName === c.next) : find(c);
      if (found.length === 1 && found[0] === e) selectors.push(s);
    } catch {}
  }
  // text
  let text = clickable && usable(own) ? own : '';
  if (text && !all) {
    const low = text.toLowerCase(), has = x => textOf(x).toLowerCase().includes(low);
    const least = Array.from(document.body.querySelectorAll('*')).filter(x => shown(x) && has(x) && !Array.from(x.children).some(has));
    if (least.length !== 1 || !e.contains(least[0])) text = '';
  }
  const kinds = { number: 'number', range: 'number', date: 'date' };
  return {
    selectors: selectors.slice(0, 8), text, tag, type, name: nameOf(e),
    kind: kinds[type] || (/^(decimal|numeric)$/.test(e.getAttribute('inputmode') || '') ? 'number' : ''),
    options: tag === 'select' ? Array.from(e.options).filter(o => o.value !== '' && !o.disabled).map(o => norm(o.label)).slice(0, 100) : [],
    choices: tag === 'select' ? Array.from(e.options).filter(o => !o.disabled).flatMap(o => [o.value, norm(o.label)]).slice(0, 1000) : [],
    secret: type === 'password' || /(current|new)-password|one-time-code/.test(e.getAttribute('autocomplete') || ''),
    ticks: type === 'checkbox' || type === 'radio', ticked: e.checked === true, radio: type === 'radio',
    field: tag === 'textarea' || tag === 'input' && !clickable && !/^(checkbox|radio|image|file|color)$/.test(type) || e.isContentEditable,
    framed: tag === 'iframe' || tag === 'frame', file: type === 'file',
    says: norm('value' in e && tag !== 'li' && tag !== 'button' ? e.value : e.innerText).slice(0, 300),
    wall: Array.from(document.querySelectorAll('input[type=password]')).some(shown),
  };
};
