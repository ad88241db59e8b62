// The tree of org nodes, made of the flat list of the API.

export interface OrgNode {
  id: string;
  name: string;
  parent_id: string | null;
  manager_ids: string[];
}

export interface OrgTree<T extends OrgNode> {
  node: T;
  depth: number;
  children: OrgTree<T>[];
  /** Nodes below, at any depth. */
  size: number;
}

const byName = <T extends OrgNode>(a: T, b: T): number => a.name.localeCompare(b.name, "en", { numeric: true }) || (a.id < b.id ? -1 : 1);

/** Levels that are drawn below each other; what is deeper stands beside its parent. */
export const LEVELS = 24;

/**
 * treeOf returns the roots. A node whose parent is not in the list is a root too, and so is one of
 * each cycle, which the service forbids: every node of the list is in the tree exactly once.
 */
export function treeOf<T extends OrgNode>(nodes: readonly T[]): OrgTree<T>[] {
  const known = new Set(nodes.map((n) => n.id));
  const below = new Map<string, T[]>();
  const roots: T[] = [];
  for (const n of [...nodes].sort(byName)) {
    if (n.parent_id === null || !known.has(n.parent_id)) roots.push(n);
    else if (below.get(n.parent_id)?.push(n) === undefined) below.set(n.parent_id, [n]);
  }
  const seen = new Set<string>();
  const out: OrgTree<T>[] = [];
  const place = (first: T): void => {
    const todo: { n: T; into: OrgTree<T>[]; depth: number }[] = [{ n: first, into: out, depth: 0 }];
    for (let next = todo.pop(); next; next = todo.pop()) {
      if (seen.has(next.n.id)) continue;
      seen.add(next.n.id);
      const t: OrgTree<T> = { node: next.n, depth: next.depth, children: [], size: 0 };
      next.into.push(t);
      const deeper = next.depth + 1 < LEVELS;
      for (const c of (below.get(next.n.id) ?? []).slice().reverse()) todo.push({ n: c, into: deeper ? t.children : next.into, depth: deeper ? next.depth + 1 : next.depth });
    }
  };
  for (const n of roots) place(n);
  for (const n of nodes) if (!seen.has(n.id)) place(n);
  const count = (t: OrgTree<T>): number => (t.size = t.children.reduce((s, c) => s + count(c) + 1, 0));
  out.forEach(count);
  return out;
}

/** flatten returns the nodes in the order of the tree. */
export const flatten = <T extends OrgNode>(trees: readonly OrgTree<T>[]): OrgTree<T>[] => trees.flatMap((t) => [t, ...flatten(t.children)]);

/** under returns the ids of a node and all nodes below it: none of them can be its parent. */
export function under<T extends OrgNode>(nodes: readonly T[], id: string): Set<string> {
  const below = new Map<string, string[]>();
  for (const n of nodes) if (n.parent_id !== null && below.get(n.parent_id)?.push(n.id) === undefined) below.set(n.parent_id, [n.id]);
  const out = new Set<string>();
  const todo = [id];
  for (let next = todo.pop(); next !== undefined; next = todo.pop()) {
    if (out.has(next)) continue;
    out.add(next);
    todo.push(...(below.get(next) ?? []));
  }
  return out;
}

/** pathOf writes a node with the nodes above it: `Shop / Returns`. */
export function pathOf<T extends OrgNode>(nodes: readonly T[], id: string): string {
  const by = new Map(nodes.map((n) => [n.id, n]));
  const names: string[] = [];
  const seen = new Set<string>();
  for (let n = by.get(id); n && !seen.has(n.id); n = n.parent_id === null ? undefined : by.get(n.parent_id)) {
    seen.add(n.id);
    names.unshift(n.name);
  }
  return names.join(" / ");
}

/** pathsOf writes the path of every node as pathOf does, in one pass. */
export function pathsOf<T extends OrgNode>(nodes: readonly T[]): Map<string, string> {
  const by = new Map(nodes.map((n) => [n.id, n]));
  const out = new Map<string, string>();
  for (const n of nodes) {
    const chain: T[] = [];
    const seen = new Set<string>();
    let at: T | undefined = n;
    while (at && !out.has(at.id) && !seen.has(at.id)) {
      seen.add(at.id);
      chain.push(at);
      at = at.parent_id === null ? undefined : by.get(at.parent_id);
    }
    let path = (at && out.get(at.id)) ?? "";
    for (const below of chain.reverse()) out.set(below.id, (path = path ? path + " / " + below.name : below.name));
  }
  return out;
}
