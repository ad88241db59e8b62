// Pictures of pages that skills have visited.

import { useState } from "preact/hooks";
import { Dialog } from "../../controls/dialog";
import { visible } from "../../lib/hostile";
import { shotURL } from "../../lib/skills";

/** Shot is a small picture that opens large. Pictures are deleted after some time: then there is none. */
export function Shot({ of, label, large = false }: { of: string | undefined; label: string; large?: boolean }) {
  const [open, setOpen] = useState(false);
  const [gone, setGone] = useState(""); // the picture that is not there
  const src = shotURL(of);
  if (!src) return null;
  if (gone === src) return <span class="dim">no picture any more</span>;
  const alt = "Picture of " + visible(label);
  return (
    <>
      <button type="button" class={"shot" + (large ? " large" : "")} aria-label={"Open the " + alt.toLowerCase().replace(/^picture/, "picture")} onClick={() => setOpen(true)}>
        <img src={src} alt="" loading="lazy" decoding="async" onError={() => setGone(src)} />
      </button>
      {open && (
        <Dialog title={visible(label)} onClose={() => setOpen(false)} class="wide">
          <img class="shot-full" src={src} alt={alt} />
          <div class="actions">
            <button type="button" onClick={() => setOpen(false)}>
              Close
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}
