// Browser skills: the list, one skill, and the recorder.

import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import { can } from "../../client/session";
import type { Page } from "../../client/types";
import { Listing } from "../../controls/list";
import { Empty } from "../../controls/states";
import { RiskMark, Status, Time } from "../../controls/text";
import { Heading } from "../../frame/heading";
import { href, query } from "../../frame/router";
import { useList } from "../../live/list";
import { plural, statusText } from "../../lib/format";
import { brief } from "../../lib/hostile";
import type { PageProps } from "../registry";
import { OneSkill } from "./one";
import { Recorder } from "./record";
import { StartRecorder } from "./start";
import type { Detail, Skill } from "./types";

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export default function Skills({ id }: PageProps) {
  if (id) return <OneSkill key={id} id={id} />;
  const session = query.value.get("record") ?? "";
  if (ID.test(session) && can("admin")) {
    const of = query.value.get("of") ?? "";
    return <Recorder key={session} id={session} of={ID.test(of) ? of : ""} />;
  }
  return <List />;
}

function List() {
  const [making, setMaking] = useState(false);
  const list = useList<Skill>("skills", {
    read: (cursor, s) => get<Page<Skill>>("/v1/browser-skills", { limit: 100, cursor }, s),
    one: (id, s) => get<Detail>("/v1/browser-skills/" + id, undefined, s).then((d) => d.skill, unlessGone),
    concerns: (h) => h.event === "resource.changed" && h.data.kind === "browser_skill" && typeof h.data.id === "string" && h.data.id,
  });
  const create = can("admin") ? (
    <button type="button" class="primary" onClick={() => setMaking(true)}>
      New browser skill
    </button>
  ) : null;
  return (
    <>
      <Heading text="Browser skills" actions={create} />
      <Listing
        name="Browser skills"
        list={list}
        href={(k) => href("skills/" + k.id)}
        link={(k) => <bdi>{brief(k.name, 100)}</bdi>}
        columns={[
          { head: "Name", cell: () => null },
          { head: "Host", cell: (k) => <bdi>{brief(k.definition.target_hosts[0] ?? "", 40) + (k.definition.target_hosts.length > 1 ? ` and ${k.definition.target_hosts.length - 1} more` : "")}</bdi>, wide: true },
          { head: "Steps", cell: (k) => plural(k.definition.steps.length, "step"), num: true },
          { head: "Decided", cell: (k) => statusText(k.policy.approval), wide: true },
          { head: "Risk", cell: (k) => <RiskMark of={k.policy.risk_level} /> },
          { head: "State", cell: (k) => <Status of={k.enabled ? "enabled" : "paused"} /> },
          { head: "Changed", cell: (k) => <Time at={k.updated_at} inside /> },
        ]}
        empty={
          <Empty title="No browser skills yet" action={create}>
            A browser skill lets agents use a web system that has no API, as a person would.
          </Empty>
        }
      />
      {making && <StartRecorder title="New browser skill" onClose={() => setMaking(false)} />}
    </>
  );
}
