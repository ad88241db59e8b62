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

/**
 * treeOf returns the roots. A node whose parent is not in the list is a root too, and so is one of
 * each cycle, which the service forbids: every node of the list is in the tree exactly once.
 */
export function treeOf<T extends OrgNode>(nodes: readonly T[]): OrgTree<T>[] {
  const known = new Set(nodes.map((n) => n.id));
  const below = new Map<string, T[]>();
  const roots: T[] = [];
  for (const n of nodes) {
    if (n.parent_id === null || !known.has(n.parent_id)) roots.push(n);
    else if (below.get(n.parent_id)?.push(n) === undefined) below.set(n.parent_id, [n]);
  }
  const seen = new Set<string>();
  const build = (n: T, depth: number): OrgTree<T> => {
    seen.add(n.id);
    const children = (below.get(n.id) ?? [])
      .filter((c) => !seen.has(c.id))
      .sort(byName)
      .map((c) => build(c, depth + 1));
    return { node: n, depth, children, size: children.reduce((s, c) => s + c.size + 1, 0) };
  };
  const out = roots.sort(byName).map((n) => build(n, 0));
  for (const n of nodes) if (!seen.has(n.id)) out.push(build(n, 0));
  return out;
}

/** flatten returns the nodes in the order of the tree. */
export const flatten = <T extends OrgNode>(trees: readonly OrgTree<T>[]): OrgTree<T>[] => trees.flatMap((t) => [t, ...flatten(t.children)]);

/** under returns the ids of a node and all nodes below it: none of them can be its parent. */
export function under<T extends OrgNode>(nodes: readonly T[], id: string): Set<string> {
  const found = flatten(treeOf(nodes)).find((t) => t.node.id === id);
  return new Set(found ? [id, ...flatten(found.children).map((t) => t.node.id)] : [id]);
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
