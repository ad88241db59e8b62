// The documents that an answer cites.

/** Citation is one of the API: a chunk that the marks of an answer name. */
export interface Citation {
  document_id: string;
  document_name: string;
  /** The mark without its brackets. */
  cite: string;
  /** Left out if the document is gone. */
  knowledge_base_id?: string;
}

/** sources are the documents of citations, each once, in their order. */
export function sources(list: readonly Citation[]): Citation[] {
  const seen = new Set<string>();
  return list.filter((c) => !seen.has(c.document_id) && seen.add(c.document_id));
}

/** citesIn are those of the known citations, by mark, that a text has, in the text's order. */
export function citesIn(text: string, known: ReadonlyMap<string, Citation>): Citation[] {
  return [...text.matchAll(/\[(kb:[\w-]+#\d+)\]/g)].flatMap((m) => known.get(m[1]!.toLowerCase()) ?? []);
}

/**
 * unmarked is a text without the marks of these citations: names below the text say what it cites. A mark that names nothing
 * found stays. Of a text that is being written a mark under way is left out too.
 */
export function unmarked(text: string, list: readonly Citation[], live = false): string {
  const cites = new Set(list.map((c) => c.cite.toLowerCase()));
  const whole = text.replace(/ ?\[(kb:[\w-]+#\d+)\]/g, (mark, cite: string) => (cites.has(cite.toLowerCase()) ? "" : mark));
  return live ? whole.replace(/ ?\[kb:[\w#-]*$/, "") : whole;
}
