// Tools: the servers, the credentials for them, and who may call what.

import type { ComponentChildren } from "preact";
import { Tabs } from "../../controls/tabs";
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

export default function Tools() {
  const tab = choice<TabName>("tab", ["servers", "connections", "access"], "servers");
  const tabs = (children: ComponentChildren) => (
    <Tabs label="Tools" tabs={TABS} open={tab} onOpen={(t) => setQuery({ tab: t === "servers" ? null : t, open: null, agent: null, tool: null, page: null })}>
      {children}
    </Tabs>
  );
  if (tab === "connections") return <Connections tabs={tabs} />;
  if (tab === "access") return <Access tabs={tabs} />;
  return <Servers tabs={tabs} />;
}
