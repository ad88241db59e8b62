// The drawing, which is loaded where it is needed.

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Loading } from "../../controls/states";
import { loadPart } from "../../frame/chunk";
import type { GraphProps } from "./graph";

let loaded: ComponentType<GraphProps> | null = null;

/** LazyGraph draws a graph once its part of the console is there. */
export function LazyGraph(p: GraphProps) {
  const [G, setG] = useState<ComponentType<GraphProps> | null>(() => loaded);
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    if (G) return;
    let here = true;
    loadPart(() => import("./graph")).then(
      (m) => {
        loaded = m.Graph;
        if (here) setG(() => m.Graph);
      },
      () => here && setFailed(true),
    );
    return () => {
      here = false;
    };
  }, []);
  if (failed) return <p role="alert">The drawing could not be loaded. The tab Table shows the same.</p>;
  return G ? <G {...p} /> : <Loading />;
}
