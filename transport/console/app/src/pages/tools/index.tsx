// Tools: the servers, the credentials for them, and who may call what.

import { useState } from "preact/hooks";
import { Tabs } from "../../controls/tabs";
import { Heading } from "../../frame/heading";
import { choice, setQuery } from "../../frame/router";
import { Access } from "./access";
import { Connections } from "./connections";
import { Servers } from "./servers";

const TABS = [
  { id: "servers", name: "Servers" },
  { id: "connections", name: "Connections" },
  { id: "access", name: "Access" },
] as const;
type TabName = (typeof TABS)[number]["id"];

/** What each tab makes. */
const NEW: Record<TabName, string> = { servers: "New server", connections: "New connection", access: "New grant" };

export default function Tools() {
  const tab = choice<TabName>("tab", ["servers", "connections", "access"], "servers");
  const [making, setMaking] = useState<TabName | null>(null);
  const create = (
    <button type="button" class="primary" onClick={() => setMaking(tab)}>
      {NEW[tab]}
    </button>
  );
  const given = { create, making: making === tab, onMade: () => setMaking(null) };
  // One heading and one row of tabs for all of them: changing the tab keeps the focus.
  return (
    <>
      <Heading text="Tools" actions={create} />
      <Tabs label="Tools" tabs={TABS} open={tab} onOpen={(t) => setQuery({ tab: t === "servers" ? null : t, open: null, agent: null, tool: null, page: null })}>
        {tab === "servers" && <Servers {...given} />}
        {tab === "connections" && <Connections {...given} />}
        {tab === "access" && <Access {...given} />}
      </Tabs>
    </>
  );
}
