// The live preview of a key's theme.

import { useEffect, useRef, useState } from "preact/hooks";
import { narrow } from "../../controls/media";
import { loadPart } from "../../frame/chunk";
import type { Preview as Drawn, PreviewConfig } from "./embed-preview";

export function Preview({ config }: { config: PreviewConfig }) {
  const host = useRef<HTMLDivElement>(null);
  const [drawn, setDrawn] = useState<Drawn | null>(null);
  const [failed, setFailed] = useState(false);
  const inline = narrow.value;
  useEffect(() => {
    let left = false;
    let here: Drawn | null = null;
    loadPart(() => import("./embed-preview")).then(
      ({ Preview }) => {
        if (left || !host.current) return;
        here = new Preview(host.current);
        setDrawn(here);
      },
      () => setFailed(true),
    );
    return () => {
      left = true;
      here?.close();
    };
  }, []);
  const now = JSON.stringify(config);
  useEffect(() => drawn?.show(JSON.parse(now) as PreviewConfig, inline), [drawn, now, inline]);
  return (
    <section class="preview" aria-label="Preview">
      <h2>Preview</h2>
      <div class={inline ? "preview-page inline" : "preview-page"}>
        <div class="preview-window">
          <div ref={host} class="preview-host" {...(inline ? { "data-inline": "" } : {})} />
        </div>
        {failed && <p>The preview did not load.</p>}
      </div>
      <p class="dim">As a page with this key shows it. It answers from memory.</p>
    </section>
  );
}
