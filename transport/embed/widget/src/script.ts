const PATH = "/embed/v1/widget.js";

/** script is the tag that this code came with. */
export const script = (document.currentScript ?? document.querySelector(`script[src*="${PATH}"]`)) as HTMLScriptElement | null;

/** service is the address of the service that the script was loaded from, or "". */
export const service = script?.src ? address(new URL(script.src)) : "";

function address(url: URL): string {
  const at = url.pathname.lastIndexOf(PATH);
  return url.origin + (at > 0 ? url.pathname.slice(0, at) : "");
}
