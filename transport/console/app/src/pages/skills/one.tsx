// One browser skill: its steps, past runs, policy, and who may call it.

import { get } from "../../client/api";
import { can } from "../../client/session";
import { Failed, useAction, useAsking, type Act } from "../../controls/action";
import { Confirm } from "../../controls/dialog";
import { ErrorState, Loading } from "../../controls/states";
import { Tabs } from "../../controls/tabs";
import { Copy, RiskMark, Status, Stranger } from "../../controls/text";
import { announce } from "../../frame/announce";
import { NotFound } from "../../frame/frame";
import { Heading } from "../../frame/heading";
import { choice, href, leave, navigate } from "../../frame/router";
import { useResource } from "../../live/resource";
import { visible } from "../../lib/hostile";
import { Access } from "./access";
import { DryRun } from "./dryrun";
import { PolicyTab } from "./policy";
import { Runs } from "./runs";
import { StartRecorder } from "./start";
import { Steps } from "./steps";
import type { Detail } from "./types";

const TABS = [
  { id: "steps", name: "Steps" },
  { id: "runs", name: "Runs" },
  { id: "policy", name: "Policy" },
  { id: "access", name: "Access" },
] as const;
type TabName = (typeof TABS)[number]["id"];

export function OneSkill({ id }: { id: string }) {
  const path = "/v1/browser-skills/" + id;
  const r = useResource<Detail>(id, (s) => get<Detail>(path, undefined, s), (h) => h.event === "resource.changed" && (h.data.id === id || h.data.parent_id === id));
  const d = r.data.value;
  const error = r.error.value;
  // Here, so that a deletion leads away also when the page learns first that the skill is gone.
  const act = useAction();
  const [asking, setAsking] = useAsking<Asking>(act, "");
  if (error && (error.status === 404 || error.status === 400)) return <NotFound />;
  if (!d)
    return (
      <>
        <Heading text="Browser skills" />
        {error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading />}
      </>
    );
  return <Loaded d={d} changed={(now) => r.fact((old) => now ?? old)} again={() => void r.reload()} act={act} asking={asking} setAsking={setAsking} />;
}

type Asking = "" | "dry" | "delete" | "pause" | "record";

function Loaded({ d, changed, again, act, asking, setAsking }: { d: Detail; changed: (d: Detail) => void; again: () => void; act: Act; asking: Asking; setAsking: (to: Asking) => void }) {
  const k = d.skill;
  const path = "/v1/browser-skills/" + k.id;
  const tab = choice<TabName>("tab", ["steps", "runs", "policy", "access"], "steps");
  const admin = can("admin");
  const name = visible(k.name);
  const toggle = (enabled: boolean): void => {
    void act.run(async (i) => {
      const now = await i.send<Detail>("PATCH", path, { enabled });
      setAsking("");
      changed(now);
      announce(now.skill.enabled ? "Agents may call it again" : "It is paused");
    });
  };
  const remove = (): void => {
    void act.run(async (i) => {
      await i.send("DELETE", path);
      setAsking("");
      leave(href("skills"));
    });
  };
  return (
    <>
      <Heading
        text="Browser skills"
        actions={
          <>
            <Copy text={k.id} label="Copy ID" />
            {admin && (
              <>
                <button type="button" class="primary" onClick={() => setAsking("dry")}>
                  Dry run
                </button>
                <button type="button" onClick={() => setAsking("record")}>
                  Record again
                </button>
                <button type="button" disabled={act.busy} onClick={() => (k.enabled ? setAsking("pause") : toggle(true))}>
                  {k.enabled ? "Pause" : "Resume"}
                </button>
                <button type="button" onClick={() => setAsking("delete")}>
                  Delete
                </button>
              </>
            )}
          </>
        }
      />
      <h2 class="item-name">
        <bdi>{name}</bdi>
      </h2>
      <p class="dim">
        <a href={href("skills")}>All browser skills</a> · <code>{k.slug}</code> · <Status of={k.enabled ? "enabled" : "paused"} /> <RiskMark of={k.policy.risk_level} />
        {k.description && (
          <>
            {" "}
            · <Stranger text={k.description} line />
          </>
        )}
      </p>
      {asking === "" && <Failed act={act} />}
      <Tabs label="Parts of the skill" tabs={TABS} open={tab} onOpen={(t) => void navigate(href("skills/" + k.id, { tab: t === "steps" ? null : t }), true)}>
        {tab === "steps" && <Steps d={k.definition} runs={d.runs} secrets={k.credential_meta} />}
        {tab === "runs" && <Runs skill={k} />}
        {tab === "policy" && <PolicyTab key={k.id} k={k} changed={changed} />}
        {tab === "access" && <Access skill={k} grants={d.grants} again={again} />}
      </Tabs>
      {asking === "dry" && <DryRun skill={k} onClose={() => setAsking("")} onRan={again} />}
      {asking === "record" && <StartRecorder title={`Record ${name} again`} url={k.definition.start_url} of={k.id} onClose={() => setAsking("")} />}
      {asking === "pause" && (
        <Confirm title={`Pause ${name}?`} action="Pause" busy={act.busy} onClose={() => setAsking("")} onConfirm={() => toggle(false)}>
          <p>No agent gets its tools. Approvals that wait commit nothing.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking === "delete" && (
        <Confirm title={`Delete ${name}?`} action="Delete" busy={act.busy} onClose={() => setAsking("")} onConfirm={remove}>
          <p>Its grants, secrets and past runs are deleted too. Agents that name it get nothing of it.</p>
          <Failed act={act} />
        </Confirm>
      )}
    </>
  );
}
