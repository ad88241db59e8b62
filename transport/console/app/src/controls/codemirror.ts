// The text editor, which is large and loaded by itself: line numbers, folding, faults at their
// lines, completion. It lives in a shadow root, where its style sheets are adopted ones: the
// page's policy forbids style elements.

import { acceptCompletion, autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, completionStatus, startCompletion, type Completion, type CompletionContext, type CompletionResult } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentLess, indentMore } from "@codemirror/commands";
import { json } from "@codemirror/lang-json";
import { bracketMatching, codeFolding, foldGutter, foldKeymap, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting, unfoldAll } from "@codemirror/language";
import { lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { Compartment, EditorState } from "@codemirror/state";
import { EditorView, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { hiddenName, HIDDEN_CHARS } from "../lib/hostile";
import { readJson, type Hint } from "../lib/jsonhints";
import type { Fault, Place } from "../lib/jsontext";

export interface Look {
  label: string;
  /** Said with the label: what the field is for, and what is wrong. */
  about: string;
  invalid: boolean;
  readOnly: boolean;
}

export interface Options extends Look {
  text: string;
  onInput: (text: string) => void;
  /** Lines that are seen at once. */
  rows: number;
  /** Tab indents, and leaves after Esc. Without it Tab always leaves. */
  tab: boolean;
  /** What may be written at a place, and what it replaces. */
  hints: (text: string, pos: number) => Promise<(Place & { hints: readonly Hint[] }) | null>;
}

export interface Editor {
  /** setText replaces the text, as one step that can be undone. */
  setText(text: string): void;
  setFaults(faults: readonly Fault[]): void;
  setLook(look: Look): void;
  focus(): void;
  /** select shows a part of the text and puts the cursor there. */
  select(place: Place): void;
  destroy(): void;
}

const LINE = 1.55;

const look = EditorView.theme({
  "&": { fontSize: "inherit", backgroundColor: "var(--bg)", color: "var(--fg)", border: "1px solid var(--line-strong)", borderRadius: "var(--r)", overflow: "hidden" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "1px" },
  "&.cm-invalid": { borderColor: "var(--bad)" },
  ".cm-scroller": { fontFamily: "var(--mono)", fontSize: ".88em", lineHeight: String(LINE), overflow: "auto", overscrollBehavior: "contain" },
  ".cm-content": { caretColor: "var(--fg)", padding: ".35rem 0" },
  "&.cm-readonly .cm-scroller": { backgroundColor: "var(--soft)" },
  ".cm-line": { padding: "0 .6rem 0 .3rem" },
  ".cm-gutters": { backgroundColor: "var(--soft)", color: "var(--dim)", border: "0", borderRight: "1px solid var(--line)" },
  ".cm-lineNumbers .cm-gutterElement": { minWidth: "2.2em", padding: "0 .25rem 0 .4rem" },
  ".cm-foldGutter .cm-gutterElement": { cursor: "pointer", width: "1em", textAlign: "center" },
  ".cm-gutter-lint": { width: "1.1em" },
  ".cm-gutter-lint .cm-gutterElement": { padding: "0 .15em" },
  ".cm-lint-marker-error": { content: "normal", display: "block", width: ".7em", height: ".7em", marginTop: ".42em", borderRadius: "1px", backgroundColor: "var(--bad)" },
  "&.cm-focused .cm-activeLine, .cm-activeLine": { backgroundColor: "transparent" },
  "&.cm-focused .cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--accent) 6%, transparent)" },
  ".cm-activeLineGutter": { backgroundColor: "transparent" },
  "&.cm-focused .cm-activeLineGutter": { backgroundColor: "var(--hover)", color: "var(--fg)" },
  "&.cm-focused .cm-matchingBracket": { backgroundColor: "var(--accent-soft)", outline: "1px solid var(--accent)" },
  "&.cm-focused .cm-nonmatchingBracket": { backgroundColor: "var(--bad-soft)" },
  ".cm-foldPlaceholder": { backgroundColor: "var(--accent-soft)", color: "var(--accent)", border: "0", borderRadius: "4px", padding: "0 .4em", margin: "0 .2em" },
  ".cm-lintRange-error": { backgroundImage: "none", textDecoration: "underline wavy var(--bad)", textDecorationSkipInk: "none", textUnderlineOffset: ".2em" },
  ".cm-lintPoint-error::after": { borderBottomColor: "var(--bad)" },
  ".cm-tooltip": { backgroundColor: "var(--raised)", color: "var(--fg)", border: "1px solid var(--line-strong)", borderRadius: "var(--r)", boxShadow: "var(--shadow)", maxWidth: "min(34rem, 90vw)", zIndex: "20" },
  ".cm-tooltip-lint": { padding: "0" },
  ".cm-diagnostic": { padding: ".35rem .6rem", fontFamily: "var(--font)", overflowWrap: "anywhere", borderLeft: "4px solid var(--bad)" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)", fontSize: ".88em", maxHeight: "15em", maxWidth: "min(34rem, 90vw)" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li": { display: "flex", gap: "1rem", justifyContent: "space-between", padding: ".18rem .6rem", lineHeight: "1.5" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent-soft)", color: "var(--fg)" },
  ".cm-completionDetail": { color: "var(--dim)", fontStyle: "normal", fontFamily: "var(--font)", marginLeft: "0" },
  ".cm-completionMatchedText": { textDecoration: "none", fontWeight: "700", color: "var(--accent)" },
  ".cm-tooltip.cm-completionInfo": { padding: ".4rem .6rem", fontFamily: "var(--font)", fontSize: ".92em", maxWidth: "min(20rem, 80vw)", overflowWrap: "anywhere" },
  ".cm-hidden": { padding: "0 .2em", borderRadius: "3px", backgroundColor: "var(--warn-soft)", color: "var(--warn)", fontWeight: "600", fontSize: ".82em" },
});

const colours = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--accent)" },
  { tag: tags.string, color: "var(--ok)" },
  { tag: tags.number, color: "var(--info)" },
  { tag: [tags.bool, tags.null], color: "var(--warn)", fontWeight: "600" },
  { tag: tags.invalid, color: "var(--bad)" },
]);

/** openEditor puts an editor into an element that has no shadow root yet. */
export function openEditor(host: HTMLElement, o: Options): Editor {
  const root = host.attachShadow({ mode: "open" });
  const about = document.createElement("span");
  about.id = "about";
  about.hidden = true;
  root.append(about);
  const parent = root.appendChild(document.createElement("div"));
  const dress = new Compartment();
  let last = o.text;
  const dressOf = (l: Look) => {
    about.textContent = l.about;
    return [
      EditorState.readOnly.of(l.readOnly),
      EditorView.contentAttributes.of({
        "aria-label": l.label,
        ...(l.about ? { "aria-describedby": "about" } : {}),
        ...(l.invalid ? { "aria-invalid": "true" } : {}),
        ...(l.readOnly ? { "aria-readonly": "true" } : {}),
        // Checkers of accessibility look for it on what scrolls.
        tabindex: "0",
        spellcheck: "false",
        autocapitalize: "off",
      }),
      EditorView.editorAttributes.of({ class: (l.invalid ? "cm-invalid " : "") + (l.readOnly ? "cm-readonly" : "") }),
    ];
  };
  const offer = async (c: CompletionContext): Promise<CompletionResult | null> => {
    if (c.state.readOnly || c.state.doc.length > 1 << 20) return null;
    const found = await o.hints(c.state.doc.toString(), c.pos);
    // Without being asked it only helps with what is being typed.
    if (!found || found.hints.length === 0 || (!c.explicit && found.from === found.to)) return null;
    const quote = c.state.sliceDoc(found.from, found.from + 1) === '"';
    return {
      // What is typed so far chooses among the names, without its quote.
      from: Math.min(c.pos, found.from + (quote ? 1 : 0)),
      options: found.hints.map(
        (h): Completion => ({
          label: h.label,
          detail: h.detail,
          ...(h.info ? { info: h.info } : {}),
          boost: h.first ? 1 : 0,
          apply: (view) => {
            // The whole token is replaced, also what of it stands behind the cursor.
            const head = view.state.selection.main.head;
            const { from, to } = readJson(view.state.doc.toString(), head).spot ?? { from: head, to: head };
            view.dispatch({ changes: { from, to, insert: h.insert }, selection: { anchor: from + h.cursor }, userEvent: "input.complete", scrollIntoView: true });
            // Behind the name of a field its value can be chosen at once.
            if (h.cursor < h.insert.length) setTimeout(() => startCompletion(view));
          },
        }),
      ),
      validFor: /^[^"\n]*$/,
    };
  };
  const view = new EditorView({
    parent,
    root,
    state: EditorState.create({
      doc: o.text,
      extensions: [
        look,
        EditorView.theme({ ".cm-scroller": { minHeight: `${Math.min(o.rows, 8) * LINE}em`, maxHeight: `max(${o.rows * LINE}em, 12em)` } }),
        lineNumbers(),
        lintGutter(),
        codeFolding(),
        foldGutter({ openText: "▾", closedText: "▸" }),
        highlightActiveLine(),
        highlightActiveLineGutter(),
        highlightSpecialChars({
          specialChars: HIDDEN_CHARS,
          render: (code) => {
            const mark = document.createElement("span");
            mark.className = "cm-hidden";
            mark.title = hiddenName(String.fromCodePoint(code));
            mark.textContent = mark.title.split(" ")[0]!;
            return mark;
          },
        }),
        history(),
        json(),
        syntaxHighlighting(colours),
        bracketMatching(),
        closeBrackets(),
        indentOnInput(),
        indentUnit.of("  "),
        EditorView.lineWrapping,
        autocompletion({ override: [offer], icons: false }),
        keymap.of([
          ...(o.tab
            ? [
                { key: "Tab", run: (v: EditorView) => acceptCompletion(v) || (!v.state.readOnly && indentMore(v)), shift: indentLess },
                {
                  key: "Escape",
                  run: (v: EditorView) => {
                    // From now on Tab leaves, until somebody writes again.
                    if (completionStatus(v.state) === null) v.setTabFocusMode(true);
                    return false;
                  },
                },
              ]
            : []),
          ...closeBracketsKeymap,
          ...completionKeymap,
          ...foldKeymap,
          ...lintKeymap,
          ...historyKeymap,
          ...defaultKeymap,
        ]),
        EditorView.updateListener.of((u) => {
          if (o.tab && (u.docChanged || (u.focusChanged && !u.view.hasFocus))) u.view.setTabFocusMode(false);
          if (!u.docChanged) return;
          last = u.state.doc.toString();
          if (!u.transactions.some((t) => t.isUserEvent("outside"))) o.onInput(last);
        }),
        dress.of(dressOf(o)),
      ],
    }),
  });
  host.focus = () => view.focus();
  return {
    setText: (text) => {
      if (text === last) return;
      last = text;
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text }, userEvent: "outside" });
      last = text;
    },
    setFaults: (faults) => {
      const most = view.state.doc.length;
      view.dispatch(setDiagnostics(view.state, faults.filter((f) => f.from <= most).map((f) => ({ from: f.from, to: Math.min(f.to, most), severity: "error" as const, message: f.message }))));
    },
    setLook: (l) => view.dispatch({ effects: dress.reconfigure(dressOf(l)) }),
    focus: () => view.focus(),
    select: ({ from, to }) => {
      const most = view.state.doc.length;
      unfoldAll(view);
      const at = Math.min(from, most);
      view.dispatch({ selection: { anchor: at, head: Math.min(to, most) }, effects: EditorView.scrollIntoView(at, { y: "center" }) });
      view.focus();
    },
    destroy: () => view.destroy(),
  };
}
