// The tree of org nodes: agents, connections and grants hang on it, and managers decide below theirs.

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { User } from "../../client/types";
import { Failed, once, useAction } from "../../controls/action";
import { Confirm, Dialog } from "../../controls/dialog";
import { FormActions, Select, TextField } from "../../controls/form";
import { Empty, ErrorState, Loading, Unread } from "../../controls/states";
import { Status } from "../../controls/text";
import { announce } from "../../frame/announce";
import { noteOf, readAll, useAll, type All } from "../../live/all";
import { useResource, type Resource } from "../../live/resource";
import { plural, shortId } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { flatten, pathsOf, treeOf, under, type OrgNode, type OrgTree } from "../../lib/org";

/** Above so many nodes only the upper levels are open. */
const MANY = 150;

type Asking = { what: "new"; parent: string | null } | { what: "edit" | "delete" | "managers"; node: OrgNode } | null;

export function Org() {
  const nodes = useResource<All<OrgNode>>("org", (s) => readAll<OrgNode>("/v1/org-nodes", s, {}, 20), (h) => h.event === "resource.changed" && (h.data["kind"] === "org_node" || h.data["kind"] === "user"));
  const [asking, setAsking] = useState<Asking>(null);
  const [toggled, setToggled] = useState<ReadonlySet<string>>(new Set());
  const all = nodes.data.value;
  const error = nodes.error.value;
  const create = (
    <button type="button" class="primary" onClick={() => setAsking({ what: "new", parent: null })}>
      New org node
    </button>
  );
  const close = (): void => setAsking(null);
  const tree = useMemo(() => treeOf(all?.items ?? []), [all]);
  const put = (n: OrgNode): void => nodes.fact((old) => old && { ...old, items: old.items.some((x) => x.id === n.id) ? old.items.map((x) => (x.id === n.id ? n : x)) : [...old.items, n] });
  if (!all) return error ? <ErrorState problem={error} retry={() => void nodes.reload()} /> : <Loading />;
  const isOpen = (t: OrgTree<OrgNode>): boolean => (all.items.length <= MANY || t.depth < 1) !== toggled.has(t.node.id);
  const toggle = (id: string): void => {
    const next = new Set(toggled);
    if (!next.delete(id)) next.add(id);
    setToggled(next);
  };
  return (
    <>
      <div class="filters">{create}</div>
      {error && <ErrorState problem={error} retry={() => void nodes.reload()} />}
      {all.cut && <p class="alert warn">There are more nodes than are shown here. The API lists all of them.</p>}
      {all.items.length === 0 ? (
        <Empty title="No org nodes yet" action={create}>
          Nodes are the parts of your organisation. A credential, a grant or a manager of a node is for the agents on it and below it.
        </Empty>
      ) : (
        <Level trees={tree} label="Org nodes" open={isOpen} toggle={toggle} ask={setAsking} />
      )}
      {asking?.what === "new" && (
        <NodeForm
          nodes={all.items}
          parent={asking.parent}
          onClose={close}
          onSaved={(n) => {
            close();
            put(n);
            announce(`${visible(n.name)} is made`);
          }}
        />
      )}
      {asking?.what === "edit" && (
        <NodeForm
          old={asking.node}
          nodes={all.items}
          parent={asking.node.parent_id}
          onClose={close}
          onSaved={(n) => {
            close();
            put(n);
            announce(`${visible(n.name)} is saved`);
          }}
        />
      )}
      {asking?.what === "delete" && (
        <Remove
          node={asking.node}
          onClose={close}
          onDone={() => {
            close();
            nodes.fact((old) => old && { ...old, items: old.items.filter((x) => x.id !== asking.node.id) });
          }}
        />
      )}
      {asking?.what === "managers" && <Managers id={asking.node.id} nodes={nodes} onClose={close} />}
    </>
  );
}

/** Nodes of a level that are shown at first, and with each click more. */
const SHOWN = 200;

function Level({ trees, label, open, toggle, ask }: { trees: readonly OrgTree<OrgNode>[]; label?: string; open: (t: OrgTree<OrgNode>) => boolean; toggle: (id: string) => void; ask: (a: Asking) => void }) {
  const [n, setN] = useState(SHOWN);
  const list = useRef<HTMLUListElement>(null);
  // The button may be gone: the first of what came has the focus.
  useLayoutEffect(() => {
    if (n > SHOWN) list.current?.children[n - SHOWN]?.querySelector("button")?.focus();
  }, [n]);
  return (
    <ul class="org" ref={list} {...(label ? { "aria-label": label } : {})}>
      {trees.slice(0, n).map((t) => {
        const n = t.node;
        const name = visible(n.name);
        return (
          <li key={n.id} data-id={n.id}>
            <div class="org-row">
              {t.children.length > 0 ? (
                <button type="button" class="tree-toggle" aria-expanded={open(t)} aria-label={`Nodes below ${name}`} onClick={() => toggle(n.id)}>
                  <span aria-hidden="true">{open(t) ? "▾" : "▸"}</span>
                </button>
              ) : (
                <span class="org-leaf" aria-hidden="true">
                  ·
                </span>
              )}
              <strong class="org-name">
                <bdi>{name}</bdi>
              </strong>
              <span class="dim">
                {n.manager_ids.length > 0 && plural(n.manager_ids.length, "manager")}
                {!open(t) && t.size > 0 && ` ${t.size} below`}
              </span>
              <div class="actions" role="group" aria-label={name}>
                <button type="button" class="small" onClick={() => ask({ what: "new", parent: n.id })}>
                  Add below
                </button>
                <button type="button" class="small" onClick={() => ask({ what: "edit", node: n })}>
                  Edit
                </button>
                <button type="button" class="small" onClick={() => ask({ what: "managers", node: n })}>
                  Managers
                </button>
                <button type="button" class="small" onClick={() => ask({ what: "delete", node: n })}>
                  Delete
                </button>
              </div>
            </div>
            {t.children.length > 0 && open(t) && <Level trees={t.children} open={open} toggle={toggle} ask={ask} />}
          </li>
        );
      })}
      {trees.length > n && (
        <li>
          <button type="button" class="more" onClick={() => setN(n + SHOWN)}>
            Show more
          </button>
        </li>
      )}
    </ul>
  );
}

function NodeForm({ old, nodes, parent, onClose, onSaved }: { old?: OrgNode; nodes: readonly OrgNode[]; parent: string | null; onClose: () => void; onSaved: (n: OrgNode) => void }) {
  const [f, setF] = useState({ name: old?.name ?? "", parent_id: parent ?? "" });
  const act = useAction();
  const fields = act.problem?.fields ?? {};
  const places = useMemo(() => {
    const not = old ? under(nodes, old.id) : new Set<string>();
    const paths = pathsOf(nodes);
    return flatten(treeOf(nodes))
      .filter((t) => !not.has(t.node.id))
      .map((t) => ({ value: t.node.id, label: visible(paths.get(t.node.id) ?? t.node.name) }));
  }, [nodes, old?.id]);
  const dirty = f.name !== (old?.name ?? "") || f.parent_id !== (parent ?? "");
  return (
    <Dialog title={old ? "Edit org node" : "New org node"} onClose={onClose} dirty={dirty}>
      <form
        onSubmit={(e) => {
          e.preventDefault();
          void act.run(async (i) => {
            const body = { name: f.name.trim(), parent_id: f.parent_id || null };
            if (!old) onSaved(await i.send<OrgNode>("POST", "/v1/org-nodes", body));
            else {
              const changes = { ...(body.name !== old.name ? { name: body.name } : {}), ...(body.parent_id !== old.parent_id ? { parent_id: body.parent_id } : {}) };
              if (Object.keys(changes).length > 0) onSaved(await i.send<OrgNode>("PATCH", "/v1/org-nodes/" + old.id, changes));
              else onClose();
            }
          });
        }}
      >
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((k) => k === "name" || k === "parent_id")} />
        <TextField label="Name" value={f.name} onInput={(name) => setF({ ...f, name })} error={fields["name"]} required />
        <Select label="Parent" value={f.parent_id} onChange={(parent_id) => setF({ ...f, parent_id })} choices={[{ value: "", label: "None (a top node)" }, ...places]} error={fields["parent_id"]} hint={old && f.parent_id !== (old.parent_id ?? "") ? "All nodes below it move along: their agents get the credentials, grants and managers of the new place." : undefined} />
        <FormActions onClose={onClose} action={old ? "Save" : "Create"} disabled={act.busy} />
      </form>
    </Dialog>
  );
}

function Remove({ node, onClose, onDone }: { node: OrgNode; onClose: () => void; onDone: () => void }) {
  const act = useAction();
  const name = visible(node.name);
  return (
    <Confirm
      title={`Delete ${name}?`}
      action="Delete"
      busy={act.busy}
      onClose={onClose}
      onConfirm={() =>
        void act.run(async (i) => {
          await i.send("DELETE", "/v1/org-nodes/" + node.id);
          announce(`${name} is deleted`);
          onDone();
        })
      }
    >
      <p>Its managers lose their role on it. A node that others, agents, connections or grants refer to is not deleted.</p>
      <Failed act={act} />
    </Confirm>
  );
}

function Managers({ id, nodes, onClose }: { id: string; nodes: Resource<All<OrgNode>>; onClose: () => void }) {
  const users = useAll<User>("/v1/users", "user");
  const act = useAction();
  const [chosen, setChosen] = useState("");
  const rows = useRef<string[]>([]);
  const node = nodes.data.value?.items.find((n) => n.id === id);
  if (!node) return null;
  const people = users.data.value?.items ?? [];
  // Who is removed stays in place while the dialog is open: the next one must not come under the hand.
  for (const m of node.manager_ids) if (!rows.current.includes(m)) rows.current.push(m);
  const others = people.filter((u) => !node.manager_ids.includes(u.id));
  const change = (user: string, on: boolean): void => {
    void act.run(async (i) => {
      await i.send(on ? "PUT" : "DELETE", `/v1/org-nodes/${id}/managers/${user}`);
      setChosen("");
      nodes.fact((old) => old && { ...old, items: old.items.map((n) => (n.id === id ? { ...n, manager_ids: on ? [...n.manager_ids, user] : n.manager_ids.filter((m) => m !== user) } : n)) });
      announce(on ? "The manager is added" : "The manager is removed");
    });
  };
  const choose = (user: string): void => {
    setChosen(user);
    act.clear(); // Try again would add the one before
  };
  return (
    <Dialog title={`Managers of ${visible(node.name)}`} onClose={onClose}>
      <p class="dim">They decide approvals that ask for a manager, for agents on this node and below it.</p>
      <Failed act={act} />
      {rows.current.length === 0 ? (
        <p>There are none.</p>
      ) : (
        <ul class="plain managers" aria-label="Managers">
          {rows.current.map((m) => {
            const u = people.find((x) => x.id === m);
            const email = u ? visible(u.email) : "user " + shortId(m);
            return (
              <li key={m} data-id={m}>
                <bdi>{email}</bdi>
                {node.manager_ids.includes(m) ? (
                  <button type="button" class="small" disabled={act.busy} aria-label={`Remove ${email}`} onClick={once(() => change(m, false))}>
                    Remove
                  </button>
                ) : (
                  <Status of="removed" />
                )}
              </li>
            );
          })}
        </ul>
      )}
      {!users.data.value ? <Unread of={users} what="the users" /> : <Select label="User" value={chosen} onChange={choose} choices={[{ value: "", label: others.length === 0 ? "Nobody else" : "Choose a user" }, ...others.map((u) => ({ value: u.id, label: `${visible(u.email)} (${u.role})` }))]} hint={noteOf(users.data.value)} />}
      <div class="actions">
        <button type="button" disabled={!chosen || act.busy} onClick={() => change(chosen, true)}>
          Add manager
        </button>
        <button type="button" class="primary" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
