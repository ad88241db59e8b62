// The documents that an answer cites (open-parts.md, Embed): their marks in its text.

import type { Citation } from "./api";

const MARK = /[ \t]*(\[kb:[\da-f-]{36}#\d+])/gi;
/** What may still become a mark, at the end of a text under way. */
const PART = /[ \t]*\[(k(b(:[^\]\s]*)?)?)?$/i;

/** small is a number in raised digits. */
export const small = (n: number): string => ("" + n).replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[+d]!);

/** documents are the cited documents, each once. */
export const documents = (sources: Citation[] = []): Citation[] => sources.filter((s, i) => sources.findIndex((x) => x.document_id === s.document_id) === i);

/** cited replaces the marks of a text by the small numbers of their documents, and removes all others. */
export const cited = (text: string, sources: Citation[] = [], live = false): string =>
  text
    .replace(MARK, (_, mark: string) => {
      const s = sources.find((x) => `[${x.cite}]` === mark.toLowerCase());
      return s ? small(documents(sources).findIndex((x) => x.document_id === s.document_id) + 1) : "";
    })
    .replace(live ? PART : "", "");
