const PATH = "/embed/v1/widget.js";

/** script is the tag that this code came with. */
export const script: HTMLScriptElement | null =
  document.currentScript instanceof HTMLScriptElement ? document.currentScript : document.querySelector<HTMLScriptElement>(`script[src*="${PATH}"]`);

/** serviceOf is the address of the service that a script tag (null: ours) was loaded from. */
export function serviceOf(tag: HTMLScriptElement | null): string {
  const src = (tag ?? script)?.src;
  if (!src) return "";
  const url = new URL(src);
  const at = url.pathname.lastIndexOf(PATH);
  return url.origin + (at > 0 ? url.pathname.slice(0, at) : "");
}
