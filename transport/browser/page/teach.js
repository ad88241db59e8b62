// What a person does in a page, told to the recorder through svcTaught. It follows element.js.
if (window.top === window && !window.svcTeaches) {
  window.svcTeaches = true;
  const held = new WeakMap(); // what was told of a field last
  const tell = (kind, e, more) => window.svcTaught(JSON.stringify({ kind, at: performance.timeOrigin + performance.now(), about: about(e, false), ...more }));
  const inner = ev => { const e = ev.composedPath()[0]; return e && e.nodeType === 1 ? e : null };
  const typed = e => {
    if (held.get(e) === e.value || e.value === e.defaultValue && !held.has(e)) return;
    held.set(e, e.value);
    tell('type', e, { value: e.value });
  };
  const button = 'button:not([type=button]):not([type=reset]), input[type=submit], input[type=image]';
  addEventListener('click', ev => {
    const from = inner(ev);
    if (!ev.isTrusted || !from) return;
    const e = target(from);
    if (ev.altKey) { // marks, and does nothing
      ev.preventDefault();
      ev.stopImmediatePropagation();
      if (ev.shiftKey) tell('commit', e); else tell('pick', from);
      return;
    }
    const d = about(e, true);
    if (d.field || d.ticks || d.tag === 'select' || d.file || d.framed) return; // their changes are told
    tell('click', e);
  }, true);
  for (const kind of ['mousedown', 'mouseup', 'pointerdown', 'pointerup']) {
    addEventListener(kind, ev => { if (ev.isTrusted && ev.altKey) ev.stopImmediatePropagation() }, true);
  }
  addEventListener('change', ev => {
    const e = inner(ev);
    if (!ev.isTrusted || !e) return;
    if (e.type === 'checkbox' || e.type === 'radio') tell('check', e, { value: String(e.checked) });
    else if (e.localName === 'select') tell('select', e, { value: e.selectedIndex < 0 ? '' : norm(e.options[e.selectedIndex].label) });
    else if ('value' in e) typed(e);
  }, true);
  addEventListener('keydown', ev => {
    const e = inner(ev);
    if (!ev.isTrusted || ev.key !== 'Enter' || ev.isComposing || !e || e.localName !== 'input') return;
    if (e.type === 'checkbox' || e.type === 'radio' || e.type === 'submit' || e.type === 'button') return;
    typed(e);
    if (!e.form || !e.form.querySelector(button)) tell('press', e, { value: 'Enter' }); // else the form's button is clicked
  }, true);
}
