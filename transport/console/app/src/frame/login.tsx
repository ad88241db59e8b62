// The page and the dialog that sign in.

import { useEffect, useRef, useState } from "preact/hooks";
import { asProblem } from "../client/problem";
import { ended, login, me } from "../client/session";
import { Dialog } from "../controls/dialog";
import { TextField } from "../controls/form";
import { useRest } from "../controls/states";
import { Heading } from "./heading";
import { navigate, query, safeNext } from "./router";

function LoginForm({ email: known = "", onDone }: { email?: string; onDone: () => void }) {
  const [email, setEmail] = useState(known);
  const [password, setPassword] = useState("");
  const [tenant, setTenant] = useState("");
  const [asksTenant, setAsksTenant] = useState(false);
  const [failure, setFailure] = useState("");
  const [rest, setRest] = useRest();
  const [busy, setBusy] = useState(false);
  const first = useRef<HTMLInputElement>(null);
  const second = useRef<HTMLInputElement>(null);
  const third = useRef<HTMLInputElement>(null);
  useEffect(() => (known ? second : first).current?.focus(), []);
  useEffect(() => {
    if (asksTenant) third.current?.focus();
  }, [asksTenant]);
  const send = async (e: Event): Promise<void> => {
    e.preventDefault();
    if (busy) return;
    setBusy(true);
    setFailure("");
    setRest(0);
    try {
      await login(email, password, tenant.trim());
      onDone();
    } catch (e) {
      const p = asProblem(e);
      if (p.code === "TENANT_REQUIRED") {
        setAsksTenant(true);
        setFailure("E-mail and password fit several tenants: name one.");
      } else if (p.status === 401) setFailure("E-mail or password is wrong.");
      else if (p.status === 429) setRest(Math.max(1, Math.ceil(p.retryAfter / 1000)));
      else setFailure(p.detail || p.title);
    } finally {
      setBusy(false);
    }
  };
  return (
    <form onSubmit={(e) => void send(e)} class="login">
      {failure && (
        <div role="alert" class="alert bad">
          {failure}
        </div>
      )}
      {rest > 0 && (
        <div role="alert" class="alert bad">
          {`Too many attempts. Try again in ${rest} s.`}
        </div>
      )}
      <TextField label="E-mail" type="email" value={email} onInput={setEmail} autocomplete="username" required inputRef={first} />
      <TextField label="Password" type="password" value={password} onInput={setPassword} autocomplete="current-password" required inputRef={second} />
      {asksTenant && <TextField label="Tenant ID" value={tenant} onInput={setTenant} required mono inputRef={third} />}
      <div class="actions">
        <button type="submit" class="primary" disabled={busy}>
          Sign in
        </button>
      </div>
    </form>
  );
}

export function LoginPage() {
  const next = safeNext(query.value.get("next"), location.origin);
  useEffect(() => {
    if (me.value) void navigate(next, true);
  }, [me.value]);
  return (
    <main class="login-page" id="main">
      <Heading text="Sign in" />
      <LoginForm onDone={() => undefined} />
      <p class="dim">
        No password? Ask an admin for a login link, or run <code>svc user login-link</code>.
      </p>
    </main>
  );
}

/** SignInAgain lies over the page when the session has ended: what was typed stays. */
export function SignInAgain() {
  if (!ended.value) return null;
  return (
    <Dialog title="Sign in again" onClose={() => undefined} closable={false}>
      <p>Your session has ended. What you typed is kept.</p>
      <LoginForm email={me.value?.user?.email ?? ""} onDone={() => undefined} />
    </Dialog>
  );
}
