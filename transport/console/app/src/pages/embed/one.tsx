// One embed key: its state, origins, theme and texts with a live preview, and the snippet.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get } from "../../client/api";
import type { Schemas } from "../../client/types";
import { Failed, once, useAction, useAsking, type Act } from "../../controls/action";
import { Confirm } from "../../controls/dialog";
import { useDirty, useSecret } from "../../controls/dirty";
import { Check, Field, Select, TextField } from "../../controls/form";
import { ErrorState, Loading } from "../../controls/states";
import { Copy, Status, Stranger, Time } from "../../controls/text";
import { announce } from "../../frame/announce";
import { NotFound } from "../../frame/frame";
import { Heading } from "../../frame/heading";
import { href, leave } from "../../frame/router";
import { plural } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { merged } from "../../lib/merge";
import { agents } from "../../live/names";
import { useResource, type Resource } from "../../live/resource";
import { hasPage } from "../run/parts";
import { changesOf, configOf, draftOf, errorOf, linesOf, themeOf, type Draft } from "./fields";
import { AgentOf, stateOf, type EmbedKey } from "./parts";
import { Preview } from "./preview";
import { ShownSecrets, type Secret } from "./secrets";

const words = (v: string): { value: string; label: string } => ({ value: v, label: v });

export function OneKey({ id }: { id: string }) {
  const path = "/v1/embed-keys/" + id;
  const r = useResource<EmbedKey>(id, (s) => get<EmbedKey>(path, undefined, s), (h) => h.event === "resource.changed" && h.data["id"] === id);
  const [secrets, setSecrets] = useState<Secret[]>([]);
  const act = useAction();
  const [asking, setAsking] = useAsking<"" | "rotate" | "identity" | "disable" | "revoke">(act, "");
  const first = useAction(); // makes the first identity secret
  useSecret(first.busy);
  useEffect(() => agents.read(), []);
  const k = r.data.value;
  const error = r.error.value;
  if (error && !k && (error.status === 404 || error.status === 400)) return <NotFound />;
  if (!k)
    return (
      <>
        <Heading text="Embed" />
        {error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading />}
      </>
    );
  const name = visible(k.name);
  const live = !k.revoked_at;
  const rotate = (): void => {
    void act.run(async (i) => {
      const { key, snippet, ...now } = await i.send<Schemas["EmbedKeyRotated"]>("POST", path + "/rotate");
      setAsking("");
      r.fact(() => ({ ...now, snippet: snippet.replace(key, now.key_prefix + "…") }));
      setSecrets([{ label: "Embed key", value: key, snippet }]);
    });
  };
  const identity = (by: Act): void => {
    void by.run(async (i) => {
      const made = await i.send<Schemas["EmbedIdentitySecret"]>("POST", path + "/identity-secret");
      setAsking("");
      r.fact((old) => old && { ...old, has_identity_secret: true });
      setSecrets([{ label: "Identity secret", value: made.identity_secret }]);
    });
  };
  const enable = (enabled: boolean): void => {
    void act.run(async (i) => {
      const now = await i.send<EmbedKey>("PATCH", path, { enabled });
      setAsking("");
      r.fact(() => now);
      announce(`${name} is ${enabled ? "enabled" : "disabled"}`);
    });
  };
  const revoke = (): void => {
    void act.run(async (i) => {
      await i.send("DELETE", path);
      setAsking("");
      announce(`${name} is revoked`);
      leave(href("embed"));
    });
  };
  return (
    <>
      <Heading
        text="Embed"
        actions={
          live && (
            <>
              <button type="button" onClick={() => setAsking("rotate")}>
                Rotate
              </button>
              <button type="button" onClick={() => (k.has_identity_secret ? setAsking("identity") : identity(first))} disabled={act.busy || first.busy}>
                {k.has_identity_secret ? "Rotate identity secret" : "Make identity secret"}
              </button>
              <button type="button" disabled={act.busy} onClick={() => (k.enabled ? setAsking("disable") : enable(true))}>
                {k.enabled ? "Disable" : "Enable"}
              </button>
              <button type="button" onClick={() => setAsking("revoke")}>
                Revoke
              </button>
            </>
          )
        }
      />
      <h2 class="item-name">
        <bdi>{name}</bdi>
      </h2>
      <p class="byline">
        <a href={href("embed")}>All embed keys</a>
        <Status of={stateOf(k)} />
        <span>
          talks to {hasPage("agents") ? <a href={href("agents/" + k.agent_id)}><AgentOf id={k.agent_id} /></a> : <AgentOf id={k.agent_id} />}
        </span>
        <span>
          key <code>{k.key_prefix}…</code>
        </span>
        <span>last used {k.last_used_at ? <Time at={k.last_used_at} /> : "never"}</span>
        <span>{k.has_identity_secret ? "has an identity secret" : "no identity secret"}</span>
        <Copy text={k.id} label="Copy ID" />
      </p>
      {asking === "" && <Failed act={act} />}
      <Failed act={first} />
      {error && <ErrorState problem={error} retry={() => void r.reload()} />}
      <h2>Snippet</h2>
      <div class="snippet">
        <pre>{k.snippet}</pre>
        <Copy text={k.snippet} />
      </div>
      <p class="dim">The whole key was shown once, when it was made. Put it in the place of the one that ends in “…”, or rotate the key.</p>
      {live && <Denied id={id} allowed={k.allowed_origins} onAllowed={(now) => r.fact(() => now)} />}
      <Form key={k.id} k={k} resource={r} live={live} />
      {asking === "rotate" && (
        <Confirm title={<>Rotate <bdi>{name}</bdi>?</>} action="Rotate" typed={k.name} busy={act.busy} secret onClose={() => setAsking("")} onConfirm={rotate}>
          <p>The key gets another value. Pages with the former one have no chat from now on, and its conversations end.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking === "identity" && (
        <Confirm title={<>Rotate the identity secret of <bdi>{name}</bdi>?</>} action="Rotate" typed={k.name} busy={act.busy} secret onClose={() => setAsking("")} onConfirm={() => identity(act)}>
          <p>Tokens that are signed with the former one are refused at once. Conversations that have begun go on.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking === "disable" && (
        <Confirm title={<>Disable <bdi>{name}</bdi>?</>} action="Disable" typed={k.name} busy={act.busy} onClose={() => setAsking("")} onConfirm={() => enable(false)}>
          <p>Its conversations end at once, and none begins until it is enabled again.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking === "revoke" && (
        <Confirm title={<>Revoke <bdi>{name}</bdi>?</>} action="Revoke" typed={k.name} busy={act.busy} onClose={() => setAsking("")} onConfirm={revoke}>
          <p>Its conversations end at once. It cannot be brought back.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {secrets.length > 0 && <ShownSecrets all={secrets} onDone={() => setSecrets([])} />}
    </>
  );
}

type DeniedOrigin = Schemas["DeniedOrigin"];

/** Denied lists the origins that were refused; one click allows one. What is listed stays in its place: the next origin must not come under the hand. */
function Denied({ id, allowed, onAllowed }: { id: string; allowed: readonly string[]; onAllowed: (k: EmbedKey) => void }) {
  const path = "/v1/embed-keys/" + id;
  const r = useResource<DeniedOrigin[]>(id + " denied", (s) => get<{ items: DeniedOrigin[] }>(path + "/denied-origins", undefined, s).then((x) => x.items), (h) => h.event === "resource.changed" && h.data["id"] === id);
  const act = useAction();
  const allow = (origin: string): void => {
    void act.run(async (i) => {
      // The list as it is now: somebody may have changed it meanwhile.
      const fresh = await get<EmbedKey>(path, undefined, i.signal);
      const now = fresh.allowed_origins.includes(origin) ? fresh : await i.send<EmbedKey>("PATCH", path, { allowed_origins: [...fresh.allowed_origins, origin] });
      onAllowed(now);
      announce(`${visible(origin)} is allowed`);
    });
  };
  const may = (origin: string): boolean => allowed.includes(origin) || allowed.includes("*");
  const seen = useRef(new Map<string, DeniedOrigin>());
  // The service remembers refusals for 30 days: what was allowed before it is listed is no news.
  for (const o of r.data.value ?? []) if (seen.current.has(o.origin) || !may(o.origin)) seen.current.set(o.origin, o);
  const all = r.data.value && [...seen.current.values()];
  if (!all && r.error.value) return <ErrorState problem={r.error.value} retry={() => void r.reload()} />;
  if (!all) return <Loading rows={1} />;
  return (
    <section class="card denied-card" aria-label="Denied origins">
      <h2>Denied origins</h2>
      <Failed act={act} />
      {all.length === 0 && <p class="dim">No denied origins yet. Pages that try this key and may not are listed here for 30 days.</p>}
      {all.length > 0 && (
      <ul class="denied" aria-label="Denied origins">
        {all.map((o) => (
          <li key={o.origin} data-id={o.origin}>
            <Stranger text={o.origin} line />
            <span class="dim">
              {plural(o.count, "call")} refused, last <Time at={o.last_at} inside />
            </span>
            {may(o.origin) ? (
              <Status of="allowed" />
            ) : /^https?:\/\//.test(o.origin) && (
              <button type="button" class="small" disabled={act.busy} onClick={once(() => allow(o.origin))}>
                Allow
              </button>
            )}
          </li>
        ))}
      </ul>
      )}
    </section>
  );
}

function Form({ k, resource, live }: { k: EmbedKey; resource: Resource<EmbedKey>; live: boolean }) {
  const [base, setBase] = useState(k);
  const [d, setD] = useState<Draft>(() => draftOf(k));
  const act = useAction();
  const fields = act.problem?.fields ?? {};
  const changes = changesOf(d, base);
  const touched = Object.keys(changes).length > 0;
  // What changed elsewhere comes into fields that are as they were; an allowed origin joins those typed here.
  // Before the next event: what is typed then stays.
  useLayoutEffect(() => {
    if (k === base) return;
    const was = draftOf(base);
    const now = merged(d, was, draftOf(k));
    const typed = linesOf(d.origins);
    const added = k.allowed_origins.filter((o) => !base.allowed_origins.includes(o) && !typed.includes(o));
    setD({
      ...now,
      origins: d.origins === was.origins ? now.origins : [...typed, ...added].join("\n"),
      theme: merged(d.theme, was.theme, draftOf(k).theme),
      config: merged(d.config, was.config, draftOf(k).config),
    });
    setBase(k);
  }, [k]);
  useDirty(touched);
  const save = (e: Event): void => {
    e.preventDefault();
    void act.run(async (i) => {
      const now = await i.send<EmbedKey>("PATCH", "/v1/embed-keys/" + k.id, changes);
      // What was typed since it was sent stays.
      setD((typed) => merged(typed, d, draftOf(now)));
      setBase(now);
      resource.fact(() => now);
      announce("Saved");
    });
  };
  const theme = (name: keyof Draft["theme"]) => (v: string) => setD({ ...d, theme: { ...d.theme, [name]: v } });
  const config = (name: keyof Draft["config"]) => (v: string | boolean) => setD({ ...d, config: { ...d.config, [name]: v } });
  const text = (label: string, name: keyof Draft["config"], more: { rows?: number; hint?: string; placeholder?: string } = {}) => <TextField label={label} value={String(d.config[name])} onInput={config(name)} error={errorOf(fields, "config." + name)} {...more} />;
  const agent = agents.of(k.agent_id);
  const own = ["name", "rate_limit_per_min", "identity_required", ...Object.keys(d.theme).map((n) => "theme." + n)];
  const known = Object.keys(fields).length > 0 && Object.keys(fields).every((f) => own.includes(f) || /^allowed_origins(\[|$)/.test(f) || Object.keys(d.config).some((n) => !n.startsWith("show_") && (f === "config." + n || f.startsWith(`config.${n}[`))));
  return (
    <div class="embed-cols">
      <form class="embed-form" onSubmit={save}>
        <fieldset class="bare" disabled={!live}>
          <fieldset class="group">
            <legend>Key</legend>
            <TextField label="Name" value={d.name} onInput={(name) => setD({ ...d, name })} error={fields["name"] ?? (act.problem?.code === "NAME_TAKEN" ? act.problem.detail : undefined)} required />
            <TextField label="Allowed origins" rows={4} mono value={d.origins} onInput={(origins) => setD({ ...d, origins })} error={errorOf(fields, "allowed_origins")} hint="One per line: https://host[:port]. * allows every page, none allows nowhere. Conversations from an origin that is taken away end." />
            <TextField label="Rate limit per min" value={d.rate} onInput={(rate) => setD({ ...d, rate })} error={fields["rate_limit_per_min"]} hint="Messages a minute, of all visitors together." />
            <Check label="Identity required" checked={d.required} onChange={(required) => setD({ ...d, required })} error={fields["identity_required"]} hint="Visitors that your back end does not name get no chat." />
          </fieldset>
          <fieldset class="group">
            <legend>Theme</legend>
            <div class="pair">
              <Select label="Color scheme" value={d.theme.color_scheme} onChange={theme("color_scheme")} choices={["auto", "light", "dark"].map(words)} error={fields["theme.color_scheme"]} />
              <Field label="Accent" error={fields["theme.accent"]}>
                {(p) => (
                  <div class="accent">
                    <input type="color" aria-label="Pick the accent" value={/^#[0-9a-f]{6}$/i.test(d.theme.accent) ? d.theme.accent : "#2563eb"} onInput={(e) => theme("accent")(e.currentTarget.value)} />
                    <input {...p} type="text" class="mono" value={d.theme.accent} autocomplete="off" spellcheck={false} onInput={(e) => theme("accent")(e.currentTarget.value)} />
                  </div>
                )}
              </Field>
              <Select label="Radius" value={d.theme.radius} onChange={theme("radius")} choices={["none", "soft", "round"].map(words)} error={fields["theme.radius"]} />
              <Select label="Density" value={d.theme.density} onChange={theme("density")} choices={["compact", "normal"].map(words)} error={fields["theme.density"]} />
              <Select label="Position" value={d.theme.position} onChange={theme("position")} choices={["right", "left"].map(words)} error={fields["theme.position"]} />
              <TextField label="Z index" value={d.theme.z_index} onInput={theme("z_index")} error={fields["theme.z_index"]} placeholder="above everything" />
            </div>
            <TextField label="Font family" value={d.theme.font_family} onInput={theme("font_family")} error={fields["theme.font_family"]} placeholder="the system's" />
            <TextField label="Avatar URL" value={d.theme.avatar_url} onInput={theme("avatar_url")} error={fields["theme.avatar_url"]} hint="https, on the page's or this service's own origin; else the agent's emoji is shown." />
          </fieldset>
          <fieldset class="group">
            <legend>Texts</legend>
            <div class="pair">
              {text("Title", "title", { placeholder: agent?.name ?? "" })}
              {text("Launcher label", "launcher_label")}
            </div>
            {text("Greeting", "greeting", { rows: 2 })}
            {text("Starter prompts", "starter_prompts", { rows: 3, hint: "One per line, up to four." })}
            <div class="pair">
              {text("Placeholder", "placeholder")}
              {text("Locale", "locale", { placeholder: "the visitor's" })}
            </div>
            {text("Disclaimer", "disclaimer")}
            {text("Contact URL", "contact_url", { hint: "https or mailto: shown after a failed answer and while a person decides." })}
            <Check label="Show history" checked={d.config.show_history} onChange={config("show_history")} />
            <Check label="Show tool activity" checked={d.config.show_tool_activity} onChange={config("show_tool_activity")} />
            <Check label="Show sources" checked={d.config.show_sources} onChange={config("show_sources")} />
          </fieldset>
        </fieldset>
        <Failed act={act} hide={known || act.problem?.code === "NAME_TAKEN"} />
        {live && (
          <div class="actions">
            <button type="submit" class="primary" disabled={act.busy || !touched}>
              Save
            </button>
          </div>
        )}
      </form>
      <Preview config={{ agent: { name: agent?.name ?? "Agent", emoji: agent?.emoji ?? "" }, theme: themeOf(d) as never, config: configOf(d) as never }} />
    </div>
  );
}
