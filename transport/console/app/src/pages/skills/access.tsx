// Which agents may call a skill.

import { useEffect, useState } from "preact/hooks";
import { can } from "../../client/session";
import { Failed, useAction, useAsking } from "../../controls/action";
import { Confirm, Dialog } from "../../controls/dialog";
import { FormActions, Select, useFirst } from "../../controls/form";
import { Empty, Unread } from "../../controls/states";
import { ShortId, Time } from "../../controls/text";
import { announce } from "../../frame/announce";
import { href } from "../../frame/router";
import { visible } from "../../lib/hostile";
import { agents } from "../../live/names";
import type { Grant, Skill } from "./types";

const OPS = { run: "run", dry_run: "dry run", "*": "run and dry run" } as const;

export function Access({ skill: k, grants, again }: { skill: Skill; grants: Grant[]; again: () => void }) {
  const [making, setMaking] = useState(false);
  const act = useAction();
  const [revoking, setRevoking] = useAsking<Grant | null>(act, null);
  const admin = can("admin");
  useEffect(() => agents.read(), []);
  const nameOf = (g: Grant): string => {
    if (!g.agent_id) return "agents of an org node";
    const a = agents.of(g.agent_id);
    return a ? visible(a.name) : "…" + g.agent_id.slice(-8);
  };
  const create = admin ? (
    <button type="button" class="primary" onClick={() => setMaking(true)}>
      New grant
    </button>
  ) : null;
  const revoke = (): void => {
    void act.run(async (i) => {
      await i.send("DELETE", `/v1/browser-skills/${k.id}/grants/${revoking!.id}`);
      setRevoking(null);
      announce("The grant is revoked");
      again();
    });
  };
  return (
    <>
      {create && grants.length > 0 && <div class="filters">{create}</div>}
      {grants.length === 0 ? (
        <Empty title="No grants yet" action={create}>
          No agent may call it before it is granted.
        </Empty>
      ) : (
        <div class="table-wrap" tabIndex={0} role="group" aria-label="Grants, scrolls sideways">
          <table class="table" aria-label="Grants">
            <thead>
              <tr>
                <th scope="col">Agent</th>
                <th scope="col">May</th>
                <th scope="col">Made</th>
                {admin && (
                  <th scope="col">
                    <span class="sr">Actions</span>
                  </th>
                )}
              </tr>
            </thead>
            <tbody>
              {grants.map((g) => (
                <tr key={g.id} data-id={g.id}>
                  <th scope="row">
                    {g.agent_id ? (
                      <a href={href("agents/" + g.agent_id)}>
                        <bdi>{nameOf(g)}</bdi>
                      </a>
                    ) : (
                      <>
                        Agents of node <ShortId id={g.node_id ?? ""} />
                      </>
                    )}
                  </th>
                  <td>{OPS[g.op]}</td>
                  <td>
                    <Time at={g.created_at} inside />
                  </td>
                  {admin && (
                    <td class="num">
                      <button type="button" class="small" onClick={() => setRevoking(g)}>
                        Revoke
                      </button>
                    </td>
                  )}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {making && (
        <New
          skill={k}
          onClose={() => setMaking(false)}
          onMade={() => {
            setMaking(false);
            again();
          }}
        />
      )}
      {revoking && (
        <Confirm title={`Revoke the grant of ${nameOf(revoking)}?`} action="Revoke" busy={act.busy} onClose={() => setRevoking(null)} onConfirm={revoke}>
          <p>Its next call of this operation is refused. Its manifest stays as it is.</p>
          <Failed act={act} />
        </Confirm>
      )}
    </>
  );
}

function New({ skill: k, onClose, onMade }: { skill: Skill; onClose: () => void; onMade: () => void }) {
  const known = agents.all.value;
  const all = known ?? [];
  const [agent, setAgent] = useState("");
  const [op, setOp] = useState<keyof typeof OPS>("*");
  const act = useAction();
  const fields = act.problem?.fields ?? {};
  const first = useFirst(all[0]?.id);
  const chosen = all.find((a) => a.id === (agent || first))?.id ?? "";
  const send = (e: Event): void => {
    e.preventDefault();
    void act.run(async (i) => {
      await i.send("POST", `/v1/browser-skills/${k.id}/grants`, { agent_id: chosen, ops: op === "*" ? ["run", "dry_run"] : [op] });
      announce("Granted");
      onMade();
    });
  };
  return (
    <Dialog title="New grant" onClose={onClose}>
      <form onSubmit={send}>
        <Failed act={act} hide={Object.keys(fields).length > 0 && Object.keys(fields).every((k) => k === "agent_id" || k === "ops")} />
        {known ? (
          <Select label="Agent" value={chosen} onChange={setAgent} choices={all.map((a) => ({ value: a.id, label: visible(a.name) }))} error={fields["agent_id"]} hint={all.length === 0 ? "There is no agent yet." : agents.note} />
        ) : (
          <Unread of={agents} what="the agents" />
        )}
        <Select label="May" value={op} onChange={(v) => setOp(v as keyof typeof OPS)} choices={Object.entries(OPS).map(([value, label]) => ({ value, label }))} error={fields["ops"]} />
        <p class="dim">The agent's newest manifest gets the tools too. It is published as a new version at once.</p>
        <FormActions onClose={onClose} action="Create" disabled={act.busy || !chosen} />
      </form>
    </Dialog>
  );
}
