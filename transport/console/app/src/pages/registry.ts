// The pages, in the order of the navigation. A page is a folder of pages with an index.tsx whose
// default export is its component; it gets the rest of the path as `id`. A page that is not in
// this list does not exist: it is neither in the navigation nor in the search.

import type { ComponentType } from "preact";
import { Activity, Bot, Braces, ChartColumn, CodeXml, Contact, House, ScrollText, Settings, Webhook, Inbox, MessagesSquare } from "lucide";
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
  { path: "agents", name: "Agents", role: "member", icon: Bot, items: true, load: () => import("./agents") },
  { path: "webhooks", name: "Webhooks", role: "admin", icon: Webhook, items: true, load: () => import("./webhooks") },
  { path: "embed", name: "Embed", role: "admin", icon: CodeXml, items: true, load: () => import("./embed") },
  { path: "end-users", name: "End users", role: "member", icon: Contact, items: true, load: () => import("./end-users") },
  { path: "usage", name: "Usage", role: "member", icon: ChartColumn, items: false, load: () => import("./usage") },
  { path: "audit", name: "Audit", role: "admin", icon: ScrollText, items: false, load: () => import("./audit") },
  { path: "settings", name: "Settings", role: "admin", icon: Settings, items: false, load: () => import("./settings") },
  { path: "api", name: "API", role: "member", icon: Braces, items: false, load: () => import("./api") },
  { path: "threads", name: "Threads", role: "member", icon: MessagesSquare, items: true, nav: false, load: () => import("./thread") },
];
