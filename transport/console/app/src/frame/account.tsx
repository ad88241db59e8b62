// The menu Account: theme, times, shortcuts, password, sign out.

import { useEffect, useRef, useState } from "preact/hooks";
import { User } from "lucide";
import { singleKeys, theme, times } from "../client/prefs";
import { leave, logout, me } from "../client/session";
import { Failed, useAction } from "../controls/action";
import { Dialog } from "../controls/dialog";
import { Check, FormActions, TextField } from "../controls/form";
import { Icon, type IconNode } from "../controls/icon";
import { announce } from "./announce";
import { dirty, mayLeave } from "./router";

type Open = "" | "menu" | "shortcuts" | "password";

export const SHORTCUTS: readonly (readonly [keys: string, does: string])[] = [
  ["?", "Show this list"],
  ["/ or Ctrl+K", "Search"],
  ["g then h", "Home"],
  ["g then a", "Approvals"],
  ["g then p", "Playground"],
  ["g then r", "Runs"],
  ["j, k", "Next, previous approval or step"],
  ["a, e, r, b", "Approve, edit, reject, respond to an approval"],
  ["x", "Select an approval"],
  ["Enter", "Open an approval"],
  ["f", "Next failed step"],
  ["Esc", "Close what is open"],
];

export function Account({ open, setOpen }: { open: Open; setOpen: (o: Open) => void }) {
  const button = useRef<HTMLButtonElement>(null);
  const menu = useRef<HTMLDivElement>(null);
  const out = useAction();
  useEffect(() => {
    if (open !== "menu") return;
    menu.current?.querySelector<HTMLElement>("[role^=menuitem]")?.focus();
    const away = (e: Event): void => {
      if ((e.target as Element).closest?.("dialog")) return; // the question of Sign out
      if (!menu.current?.contains(e.target as Node) && !button.current?.contains(e.target as Node)) setOpen("");
    };
    document.addEventListener("pointerdown", away);
    return () => document.removeEventListener("pointerdown", away);
  }, [open]);
  const close = (): void => {
    setOpen("");
    button.current?.focus();
  };
  /** A dialog gives the focus back to what had it: the button, as the menu is gone by then. */
  const leadTo = (to: Open): void => {
    button.current?.focus();
    setOpen(to);
  };
  const keys = (e: KeyboardEvent): void => {
    const all = [...menu.current!.querySelectorAll<HTMLElement>("[role^=menuitem]")];
    const at = all.indexOf(document.activeElement as HTMLElement);
    const to = e.key === "ArrowDown" ? at + 1 : e.key === "ArrowUp" ? at - 1 : e.key === "Home" ? 0 : e.key === "End" ? all.length - 1 : null;
    if (e.key === "Escape") {
      e.preventDefault();
      close();
    } else if (e.key === "Tab") setOpen("");
    else if (to !== null) {
      e.preventDefault();
      all[(to + all.length) % all.length]?.focus();
    }
  };
  const radio = <T extends string>(name: string, value: T, now: T, set: (v: T) => void) => (
    <button key={value} type="button" role="menuitemradio" tabIndex={-1} aria-checked={now === value} onClick={() => set(value)}>
      {name}
    </button>
  );
  const m = me.value;
  return (
    <div class="account">
      <button ref={button} type="button" class="ghost-button" aria-haspopup="menu" aria-expanded={open === "menu"} onClick={() => setOpen(open === "menu" ? "" : "menu")}>
        <Icon of={User as unknown as IconNode} />
        <span>Account</span>
      </button>
      {open === "menu" && (
        <div ref={menu} role="menu" aria-label="Account" class="menu" onKeyDown={keys}>
          <div class="menu-head" role="presentation">
            <bdi>{m?.user?.name || m?.user?.email}</bdi>
            <span class="dim">{m?.role}</span>
          </div>
          <div role="group" aria-label="Theme">
            {radio("System theme", "system", theme.value, (v) => (theme.value = v))}
            {radio("Light", "light", theme.value, (v) => (theme.value = v))}
            {radio("Dark", "dark", theme.value, (v) => (theme.value = v))}
          </div>
          <div role="group" aria-label="Times">
            {radio("Local times", "local", times.value, (v) => (times.value = v))}
            {radio("UTC", "utc", times.value, (v) => (times.value = v))}
          </div>
          <div role="presentation">
            <button type="button" role="menuitem" tabIndex={-1} onClick={() => leadTo("shortcuts")}>
              Keyboard shortcuts
            </button>
            <button type="button" role="menuitem" tabIndex={-1} onClick={() => leadTo("password")}>
              Change password
            </button>
            <button
              type="button"
              role="menuitem"
              tabIndex={-1}
              onClick={() => void mayLeave().then((yes) => yes && out.run(() => logout()))}
            >
              Sign out
            </button>
          </div>
          <Failed act={out} />
        </div>
      )}
      {open === "shortcuts" && <Shortcuts onClose={() => setOpen("")} />}
      {open === "password" && <Password onClose={() => setOpen("")} />}
    </div>
  );
}

function Shortcuts({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <dl class="keys">
        {SHORTCUTS.map(([keys, does]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <Check label="Single-key shortcuts" checked={singleKeys.value === "on"} onChange={(v) => (singleKeys.value = v ? "on" : "off")} hint="Switch them off if you speak to your computer. Ctrl+K stays." />
      <div class="actions">
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function Password({ onClose }: { onClose: () => void }) {
  const [current, setCurrent] = useState("");
  const [fresh, setFresh] = useState("");
  const [typed] = useState(() => dirty.size > 0);
  const act = useAction();
  const fields = act.problem?.fields ?? {};
  const send = async (e: Event): Promise<void> => {
    e.preventDefault();
    const ok = await act.run((i) => i.send("POST", "/v1/auth/password", { current, new: fresh }));
    if (!ok) return;
    announce("The password is changed: sign in with it");
    leave("/console/login");
  };
  return (
    <Dialog title="Change password" onClose={onClose} dirty={current !== "" || fresh !== ""}>
      <form onSubmit={(e) => void send(e)}>
        <p>Every session of yours ends, this one too.{typed && " What you typed on this page is lost: save it first."}</p>
        <Failed act={act} hide={Object.keys(fields).length > 0} />
        <TextField label="Current password" type="password" autocomplete="current-password" value={current} onInput={setCurrent} error={fields.current} required />
        <TextField label="New password" type="password" autocomplete="new-password" value={fresh} onInput={setFresh} error={fields.new} hint="12 to 200 characters" required />
        <FormActions onClose={onClose} action="Change password" disabled={act.busy} />
      </form>
    </Dialog>
  );
}
