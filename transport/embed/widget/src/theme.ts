// What a key's theme may do to the widget. Everything is checked here before it
// comes near a style sheet or the network.

export const ACCENT = "#2563eb";
export const Z_INDEX = 2147483000;

export const accent = (v: string | undefined): string => (v && /^#[0-9a-f]{6}$/i.test(v) ? v : ACCENT);

/** fonts is a list of font names, or "" where it is anything else. */
export const fonts = (v: string | undefined): string =>
  v && v.length <= 200 && /^[\p{L}\p{N} ,'"_-]+$/u.test(v) && ["'", '"'].every((q) => v.split(q).length % 2 === 1) ? v : "";

/** zIndex is a whole number of 31 bits, or ours. */
export const zIndex = (v: number | undefined): number => (v! >= 0 && (v! | 0) === v ? v : Z_INDEX);

/**
 * avatar is a picture that may be shown, or "": one of the service or of the page
 * itself. Any other host would learn of every visitor, with address and time, only
 * because a chat was there; and every page would have to open its content security
 * policy for it.
 */
export function avatar(v: string | undefined, baseUrl: string, page: string): string {
  if (!v) return "";
  try {
    const url = new URL(v, baseUrl + "/");
    return /^https?:/.test(url.protocol) && (url.origin === new URL(baseUrl).origin || url.origin === page) ? url.href : "";
  } catch {
    return "";
  }
}

/** ink is black or white, whichever is easier to read on a colour (WCAG 2). */
export function ink(colour: string): "#000" | "#fff" {
  // The power comes close enough to the two parts of sRGB's curve.
  const channel = (at: number): number => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2;
  const light = 0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5);
  return 1.05 / (light + 0.05) >= (light + 0.05) / 0.05 ? "#fff" : "#000";
}
