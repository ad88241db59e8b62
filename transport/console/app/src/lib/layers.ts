// Where the nodes and edges of a graph are drawn: in layers, each node behind those that lead
// to it. Long edges get a place in every layer that they pass, so that they cross no node.

export interface Box {
  x: number;
  y: number;
}

export interface Size {
  width: number;
  height: number;
}

export interface Line {
  /** The place of the edge in the list that was given. */
  edge: number;
  path: string;
  arrow: string;
  /** Where a label may stand: the middle of the first piece. */
  label: Box;
}

export interface Drawing extends Size {
  nodes: ReadonlyMap<string, Box>;
  /** The ids from layer to layer, and in a layer in order. */
  order: readonly string[];
  lines: readonly Line[];
}

export interface Look {
  node: Size;
  /** Between layers, and between the nodes of one. */
  gap: number;
  space: number;
  /** More room behind a layer with labelled edges. */
  labelled: number;
  down: boolean;
}

/** Long edges pass at most so many layers in sum; the others are drawn straight. */
const PASSES = 3000;
/** What a passing edge takes of a layer. */
const THIN = 14;
const SWEEPS = 10;

interface Cell {
  id: string | null;
  layer: number;
  size: number;
  at: number; // the middle, across the layers
  before: Cell[];
  behind: Cell[];
}

/** layout places a graph. Edges of unknown nodes are left out; cycles do no harm. */
export function layout(ids: readonly string[], edges: readonly { from: string; to: string; label?: boolean }[], look: Look): Drawing {
  const index = new Map<string, number>();
  for (const id of ids) if (!index.has(id)) index.set(id, index.size);
  const n = index.size;
  const out: number[][] = Array.from({ length: n }, () => []);
  const drawn: { edge: number; from: number; to: number }[] = [];
  const seen = new Set<string>();
  edges.forEach((e, i) => {
    const from = index.get(e.from);
    const to = index.get(e.to);
    if (from === undefined || to === undefined || from === to || seen.has(from + ">" + to)) return;
    seen.add(from + ">" + to);
    drawn.push({ edge: i, from, to });
    out[from]!.push(to);
  });
  const layer = layersOf(n, out);
  const layers: Cell[][] = Array.from({ length: Math.max(0, ...layer) + 1 }, () => []);
  const across = look.down ? look.node.width : look.node.height;
  const cells: Cell[] = [...index.keys()].map((id, i) => ({ id, layer: layer[i]!, size: across, at: 0, before: [], behind: [] }));
  for (const c of cells) layers[c.layer]!.push(c);
  let passes = 0;
  const ways = drawn.map(({ edge, from, to }) => {
    // An edge of a cycle leads back: it is laid from its end, and drawn from its beginning.
    const back = layer[from]! >= layer[to]!;
    const [a, b] = back ? [cells[to]!, cells[from]!] : [cells[from]!, cells[to]!];
    const way: Cell[] = [a];
    const long = b.layer - a.layer - 1;
    if (a.layer !== b.layer && passes + long <= PASSES) {
      passes += Math.max(0, long);
      for (let l = a.layer + 1; l < b.layer; l++) {
        const c: Cell = { id: null, layer: l, size: THIN, at: 0, before: [], behind: [] };
        layers[l]!.push(c);
        way.push(c);
      }
    }
    way.push(b);
    for (let i = 1; i < way.length; i++) {
      if (way[i]!.layer === way[i - 1]!.layer) continue;
      way[i - 1]!.behind.push(way[i]!);
      way[i]!.before.push(way[i - 1]!);
    }
    return { edge, back, way };
  });
  sort(layers);
  place(layers, look.space);

  const depth = look.down ? look.node.height : look.node.width;
  const starts: number[] = [];
  let at = 0;
  layers.forEach((_, l) => {
    starts.push(at);
    const wide = ways.some((w) => edges[w.edge]!.label && Math.min(w.way[0]!.layer, w.way[w.way.length - 1]!.layer) === l);
    at += depth + look.gap + (wide ? look.labelled : 0);
  });
  const ends = layers.map((_, l) => starts[l]! + depth);
  const low = Math.min(...layers.flat().map((c) => c.at - c.size / 2));
  for (const c of layers.flat()) c.at -= low;
  const most = Math.max(0, ...layers.flat().map((c) => c.at + c.size / 2));
  const point = (along: number, side: number): Box => (look.down ? { x: side, y: along } : { x: along, y: side });
  const nodes = new Map(cells.map((c) => [c.id!, point(starts[c.layer]!, c.at - c.size / 2)]));
  const lines = ways.map(({ edge, back, way }) => {
    const stops: [number, number][] = [];
    way.forEach((c, i) => {
      if (i > 0) stops.push([starts[c.layer]!, c.at]);
      if (i < way.length - 1) stops.push([ends[c.layer]!, c.at]);
    });
    if (back) stops.reverse();
    return { edge, ...line(stops, point, back) };
  });
  const along = Math.max(0, at - look.gap);
  return {
    nodes,
    order: layers.flatMap((l) => l.flatMap((c) => (c.id === null ? [] : [c.id]))),
    lines,
    width: Math.ceil(look.down ? most : along),
    height: Math.ceil(look.down ? along : most),
  };
}

/** layersOf gives each node the length of the longest way to it. Edges that lead back do not count. */
function layersOf(n: number, out: readonly number[][]): number[] {
  const state = new Uint8Array(n); // 1: on the way, 2: done
  const sorted: number[] = [];
  const back = new Set<string>();
  for (let first = 0; first < n; first++) {
    if (state[first]) continue;
    const stack: [number, number][] = [[first, 0]];
    state[first] = 1;
    while (stack.length > 0) {
      const top = stack[stack.length - 1]!;
      const next = out[top[0]]![top[1]++];
      if (next === undefined) {
        state[top[0]] = 2;
        sorted.push(top[0]);
        stack.pop();
      } else if (state[next] === 1) back.add(top[0] + ">" + next);
      else if (!state[next]) {
        state[next] = 1;
        stack.push([next, 0]);
      }
    }
  }
  sorted.reverse();
  const layer = new Array<number>(n).fill(0);
  const fed = new Uint8Array(n);
  for (const a of sorted)
    for (const b of out[a]!) {
      if (back.has(a + ">" + b)) continue;
      layer[b] = Math.max(layer[b]!, layer[a]! + 1);
      fed[b] = 1;
    }
  // What nothing leads to stands right before what it leads to.
  for (const a of sorted) {
    const next = out[a]!.filter((b) => !back.has(a + ">" + b));
    if (!fed[a] && next.length > 0) layer[a] = Math.min(...next.map((b) => layer[b]!)) - 1;
  }
  return layer;
}

/** sort orders the cells of each layer so that few edges cross: by the mean place of their neighbours, there and back. */
function sort(layers: Cell[][]): void {
  const rank = (l: Cell[]): void => l.forEach((c, i) => (c.at = i));
  layers.forEach(rank);
  const sweep = (l: Cell[], near: (c: Cell) => Cell[]): void => {
    const keys = new Map(l.map((c) => [c, near(c).length ? near(c).reduce((s, x) => s + x.at, 0) / near(c).length : c.at]));
    l.sort((a, b) => keys.get(a)! - keys.get(b)! || a.at - b.at);
    rank(l);
  };
  for (let n = 0; n < SWEEPS; n++) {
    if (n % 2 === 0) for (let l = 1; l < layers.length; l++) sweep(layers[l]!, (c) => c.before);
    else for (let l = layers.length - 2; l >= 0; l--) sweep(layers[l]!, (c) => c.behind);
  }
}

/** place moves each cell near the middle of its neighbours, without overlaps and in the order of its layer. */
function place(layers: Cell[][], space: number): void {
  for (const l of layers) {
    let at = 0;
    for (const c of l) {
      c.at = at + c.size / 2;
      at += c.size + space;
    }
  }
  const settle = (l: Cell[], near: (c: Cell) => Cell[]): void => {
    // Without the room that those before a cell take, the places only have to increase: neighbours
    // that want to pass each other are pooled at their mean.
    const pools: { sum: number; n: number }[] = [];
    const room: number[] = [];
    let taken = 0;
    l.forEach((c, i) => {
      taken += i === 0 ? 0 : l[i - 1]!.size / 2 + space + c.size / 2;
      room.push(taken);
      const wish = near(c).length ? near(c).reduce((s, x) => s + x.at, 0) / near(c).length : c.at;
      pools.push({ sum: wish - taken, n: 1 });
      while (pools.length > 1 && pools[pools.length - 2]!.sum / pools[pools.length - 2]!.n > pools[pools.length - 1]!.sum / pools[pools.length - 1]!.n) {
        const last = pools.pop()!;
        pools[pools.length - 1]!.sum += last.sum;
        pools[pools.length - 1]!.n += last.n;
      }
    });
    let i = 0;
    for (const p of pools) for (let k = 0; k < p.n; k++, i++) l[i]!.at = p.sum / p.n + room[i]!;
  };
  for (let n = 0; n < SWEEPS; n++) {
    if (n % 2 === 0) for (let l = 1; l < layers.length; l++) settle(layers[l]!, (c) => c.before);
    else for (let l = layers.length - 2; l >= 0; l--) settle(layers[l]!, (c) => c.behind);
  }
}

const round = (n: number): number => Math.round(n * 10) / 10;

/** line draws an edge through its stops: curved between layers, straight through one. */
function line(stops: readonly [number, number][], point: (along: number, side: number) => Box, back: boolean): { path: string; arrow: string; label: Box } {
  const text = (along: number, side: number): string => {
    const p = point(along, side);
    return `${round(p.x)} ${round(p.y)}`;
  };
  const [a0, s0] = stops[0]!;
  let path = "M" + text(a0, s0);
  for (let i = 1; i < stops.length; i++) {
    const [a, s] = stops[i - 1]!;
    const [b, t] = stops[i]!;
    const mid = (a + b) / 2;
    path += i % 2 === 1 ? `C${text(mid, s)} ${text(mid, t)} ${text(b, t)}` : `L${text(b, t)}`;
  }
  const [end, side] = stops[stops.length - 1]!;
  const tail = end + (back ? 7 : -7);
  const [a1, s1] = stops[1]!;
  return { path, arrow: `M${text(tail, side - 4)}L${text(end, side)}L${text(tail, side + 4)}`, label: point((a0 + a1) / 2, (s0 + s1) / 2) };
}
