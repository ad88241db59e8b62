// The fields of an embed key as a form holds them: texts, and what they mean for the API.

import type { Schemas } from "../../client/types";

type EmbedKey = Schemas["EmbedKey"];
type Theme = Schemas["EmbedTheme"];
type Display = Schemas["EmbedDisplayConfig"];

/** linesOf reads a list that is typed one per line. */
export const linesOf = (text: string): string[] => text.split("\n").map((l) => l.trim()).filter(Boolean);

/** errorOf joins what the service says of a field and of its parts: `allowed_origins[1]`. */
export function errorOf(fields: Record<string, string>, path: string): string | undefined {
  const all = Object.keys(fields).filter((k) => k === path || k.startsWith(path + "[") || k.startsWith(path + "."));
  if (all.length === 0) return undefined;
  return all.map((k) => (k === path ? fields[k]! : `${partOf(k.slice(path.length))}: ${fields[k]!}`)).join("; ");
}

/** partOf names an entry by its line: `[1]` is line 2. */
const partOf = (rest: string): string => {
  const m = /^\[(\d+)\]$/.exec(rest);
  return m ? `line ${Number(m[1]) + 1}` : rest.replace(/^\./, "");
};

export interface Draft {
  name: string;
  origins: string;
  rate: string;
  required: boolean;
  theme: Record<"color_scheme" | "accent" | "radius" | "density" | "position" | "font_family" | "avatar_url" | "z_index", string>;
  config: Record<"title" | "greeting" | "starter_prompts" | "placeholder" | "disclaimer" | "launcher_label" | "locale" | "contact_url", string> & Record<"show_history" | "show_tool_activity" | "show_sources", boolean>;
}

export function draftOf(k: EmbedKey): Draft {
  const t = k.theme;
  const c = k.config;
  return {
    name: k.name,
    origins: k.allowed_origins.join("\n"),
    rate: String(k.rate_limit_per_min),
    required: k.identity_required,
    theme: {
      color_scheme: t.color_scheme ?? "auto",
      accent: t.accent ?? "#2563eb",
      radius: t.radius ?? "soft",
      density: t.density ?? "normal",
      position: t.position ?? "right",
      font_family: t.font_family ?? "",
      avatar_url: t.avatar_url ?? "",
      z_index: t.z_index === undefined ? "" : String(t.z_index),
    },
    config: {
      title: c.title ?? "",
      greeting: c.greeting ?? "",
      starter_prompts: (c.starter_prompts ?? []).join("\n"),
      placeholder: c.placeholder ?? "",
      disclaimer: c.disclaimer ?? "",
      launcher_label: c.launcher_label ?? "",
      locale: c.locale ?? "",
      contact_url: c.contact_url ?? "",
      show_history: c.show_history ?? true,
      show_tool_activity: c.show_tool_activity ?? true,
      show_sources: c.show_sources ?? false,
    },
  };
}

/** filled leaves out empty texts. */
const filled = (o: Record<string, string>): Record<string, string> => Object.fromEntries(Object.entries(o).filter(([, v]) => v.trim() !== ""));

export function themeOf(d: Draft): Theme {
  const { z_index, ...texts } = d.theme;
  return { ...filled(texts), ...(z_index.trim() !== "" ? { z_index: numberOf(z_index) } : {}) } as Theme;
}

export function configOf(d: Draft): Display {
  const { starter_prompts, show_history, show_tool_activity, show_sources, ...texts } = d.config;
  const prompts = linesOf(starter_prompts);
  return { ...filled(texts), ...(prompts.length > 0 ? { starter_prompts: prompts } : {}), show_history, show_tool_activity, show_sources } as Display;
}

/** numberOf reads a number; what is none goes to the service as it is, which says so. */
const numberOf = (text: string): number => (text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : (text as unknown as number));

/** changesOf returns the body of a PATCH: the members that differ. Theme and config are replaced as a whole. */
export function changesOf(d: Draft, was: EmbedKey): Schemas["EmbedKeyPatch"] {
  const before = draftOf(was);
  const differs = (a: unknown, b: unknown): boolean => JSON.stringify(a) !== JSON.stringify(b);
  return {
    ...(d.name.trim() !== was.name ? { name: d.name.trim() } : {}),
    ...(differs(linesOf(d.origins), was.allowed_origins) ? { allowed_origins: linesOf(d.origins) } : {}),
    ...(d.rate !== before.rate ? { rate_limit_per_min: numberOf(d.rate) } : {}),
    ...(d.required !== was.identity_required ? { identity_required: d.required } : {}),
    ...(differs(d.theme, before.theme) ? { theme: themeOf(d) } : {}),
    ...(differs(d.config, before.config) ? { config: configOf(d) } : {}),
  };
}
