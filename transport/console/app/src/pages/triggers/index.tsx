// Triggers: what starts runs by itself, at its times or when it is called.

import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import type { Page } from "../../client/types";
import { ShownOnce } from "../../controls/dialog";
import { Listing } from "../../controls/list";
import { narrow } from "../../controls/media";
import { Empty } from "../../controls/states";
import { Status, Time } from "../../controls/text";
import { Heading } from "../../frame/heading";
import { href, leave } from "../../frame/router";
import { visible } from "../../lib/hostile";
import { useList } from "../../live/list";
import type { PageProps } from "../registry";
import { TriggerForm } from "./form";
import { OneTrigger } from "./one";
import { Target } from "./parts";
import type { TriggerView } from "./trigger";

export default function Triggers({ id }: PageProps) {
  return id ? <OneTrigger key={id} id={id} /> : <List />;
}

function List() {
  const [making, setMaking] = useState(false);
  const [made, setMade] = useState<{ id: string; secret: string } | null>(null);
  const list = useList<TriggerView>("triggers", {
    read: (cursor, s) => get<Page<TriggerView>>("/v1/triggers", { limit: 100, cursor }, s),
    one: (id, s) => get<TriggerView>("/v1/triggers/" + id, undefined, s).catch(unlessGone),
    concerns: (h) => h.event === "resource.changed" && h.data["kind"] === "trigger" && typeof h.data["id"] === "string" && h.data["id"],
  });
  const create = (
    <button type="button" class="primary" onClick={() => setMaking(true)}>
      New trigger
    </button>
  );
  const open = (id: string): void => {
    setMade(null);
    leave(href("triggers/" + id));
  };
  return (
    <>
      <Heading text="Triggers" actions={create} />
      <Listing
        name="Triggers"
        list={list}
        href={(t) => href("triggers/" + t.id)}
        link={(t) => <bdi class="one-line trigger-name">{visible(t.name)}</bdi>}
        columns={[
          { head: "Name", cell: () => null },
          { head: "State", cell: (t) => <Status of={t.enabled ? "enabled" : "paused"} /> },
          { head: "Starts", cell: (t) => <Target of={t.target} /> },
          {
            head: "When",
            cell: (t) =>
              t.schedule ? (
                <code class="one-line name" title={t.schedule.timezone ?? "UTC"}>
                  {t.schedule.cron}
                </code>
              ) : (
                "called as a hook"
              ),
          },
          { head: "Last fired", cell: (t) => (t.last_fired_at ? <Time at={t.last_fired_at} inside /> : "never"), wide: true },
          { head: "Next", cell: (t) => (t.next_fire_at ? <Time at={t.next_fire_at} inside /> : narrow.value ? null : "–") },
        ]}
        empty={
          <Empty title="No triggers yet" action={create}>
            A trigger starts runs by itself: at the times of a schedule, or when another system calls its hook.
          </Empty>
        }
      />
      {making && (
        <TriggerForm
          onClose={() => setMaking(false)}
          onDone={(t) => {
            setMaking(false);
            if (t.secret) setMade({ id: t.id, secret: t.secret });
            else open(t.id);
          }}
        />
      )}
      {made && (
        <ShownOnce value={made.secret} label="Secret" onClose={() => open(made.id)}>
          <p>The calls of this hook are signed with it: the system that calls needs it.</p>
        </ShownOnce>
      )}
    </>
  );
}
