// The pages, in the order of the navigation. A page is a folder of pages with an index.tsx whose
// default export is its component; it gets the rest of the path as `id`. A page that is not in
// this list does not exist: it is neither in the navigation nor in the search.

import type { ComponentType } from "preact";
import { Activity, BookOpen, Bot, Braces, ChartColumn, CodeXml, Contact, House, Inbox, MessagesSquare, MousePointerClick, ScrollText, Settings, ShieldCheck, Webhook, Workflow, Wrench, Zap } from "lucide";
import type { IconNode } from "../controls/icon";
import type { Role } from "../client/types";

export interface PageProps {
  /** What follows the page's name in the path, "" for nothing. */
  id: string;
}

export interface PageDef {
  /** The first segment of the path; "" is Home. */
  path: string;
  name: string;
  role: Role;
  icon: IconNode;
  /** Whether the path may have an id. */
  items: boolean;
  /** false: reached by links only, such as threads. */
  nav?: boolean;
  /** The key after g. */
  key?: string;
  load: () => Promise<{ default: ComponentType<PageProps> }>;
}

export const pages: readonly PageDef[] = [
  { path: "", name: "Home", role: "member", icon: House, items: false, key: "h", load: () => import("./home") },
  { path: "approvals", name: "Approvals", role: "member", icon: Inbox, items: true, key: "a", load: () => import("./approvals") },
  { path: "playground", name: "Playground", role: "member", icon: MessagesSquare, items: false, key: "p", load: () => import("./playground") },
  { path: "runs", name: "Runs", role: "member", icon: Activity, items: true, key: "r", load: () => import("./runs") },
  { path: "threads", name: "Threads", role: "member", icon: MessagesSquare, items: true, nav: false, load: () => import("./thread") },
  { path: "agents", name: "Agents", role: "member", icon: Bot, items: true, load: () => import("./agents") },
  { path: "workflows", name: "Workflows", role: "member", icon: Workflow, items: true, load: () => import("./workflows") },
  { path: "triggers", name: "Triggers", role: "admin", icon: Zap, items: true, load: () => import("./triggers") },
  { path: "tools", name: "Tools", role: "admin", icon: Wrench, items: false, load: () => import("./tools") },
  { path: "policies", name: "Policies", role: "admin", icon: ShieldCheck, items: false, load: () => import("./policies") },
  { path: "knowledge", name: "Knowledge", role: "member", icon: BookOpen, items: true, load: () => import("./knowledge") },
  { path: "skills", name: "Browser skills", role: "member", icon: MousePointerClick, items: true, load: () => import("./skills") },
  { path: "webhooks", name: "Webhooks", role: "admin", icon: Webhook, items: true, load: () => import("./webhooks") },
  { path: "embed", name: "Embed", role: "admin", icon: CodeXml, items: true, load: () => import("./embed") },
  { path: "end-users", name: "End users", role: "member", icon: Contact, items: true, load: () => import("./end-users") },
  { path: "usage", name: "Usage", role: "member", icon: ChartColumn, items: false, load: () => import("./usage") },
  { path: "audit", name: "Audit", role: "admin", icon: ScrollText, items: false, load: () => import("./audit") },
  { path: "settings", name: "Settings", role: "admin", icon: Settings, items: false, load: () => import("./settings") },
  { path: "api", name: "API", role: "member", icon: Braces, items: false, load: () => import("./api") },
];
