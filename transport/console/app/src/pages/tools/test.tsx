// Testing a tool server: it lists its tools now, with a credential or without.

import { useEffect, useRef, useState } from "preact/hooks";
import { Intent } from "../../client/api";
import { asProblem, type Problem } from "../../client/problem";
import { ErrorState } from "../../controls/states";
import { Stranger } from "../../controls/text";
import { announce } from "../../frame/announce";
import { plural } from "../../lib/format";
import { visible } from "../../lib/hostile";

export interface TestedTool {
  name: string;
  description: string;
  unusable?: string;
}

export interface Tested {
  busy: boolean;
  tools?: TestedTool[];
  problem?: Problem;
}

/** useTests keeps the outcome of each test until the page is left. A second click while one runs is none. */
export function useTests(onDone: (server: string, problem: Problem | null) => void = () => undefined) {
  const [all, setAll] = useState<Record<string, Tested>>({});
  const running = useRef(new Set<string>());
  const there = useRef(true);
  useEffect(() => () => void (there.current = false), []);
  const put = (of: string, t: Tested | null): void =>
    setAll((old) => {
      const next = { ...old };
      if (t) next[of] = t;
      else delete next[of];
      return next;
    });
  /** run tests a server; `of` is what the outcome is kept under: the server, or the connection that is used. */
  const run = async (server: string, of: string, name: string, connection?: string): Promise<void> => {
    if (running.current.has(of)) return;
    running.current.add(of);
    put(of, { busy: true });
    try {
      const r = await new Intent().send<{ tools: TestedTool[] }>("POST", `/v1/mcp-servers/${server}/test`, connection ? { connection_id: connection } : {});
      if (!there.current) return;
      put(of, { busy: false, tools: r.tools });
      announce(`${visible(name)} answers with ${plural(r.tools.length, "tool")}`);
      onDone(server, null);
    } catch (e) {
      if (!there.current) return;
      const problem = asProblem(e);
      put(of, { busy: false, problem });
      onDone(server, problem);
    } finally {
      running.current.delete(of);
    }
  };
  return { all, run, clear: (of: string) => put(of, null) };
}

/** TestResult shows what a test found. */
export function TestResult({ of, again, close }: { of: Tested | undefined; again: () => void; close: () => void }) {
  if (!of) return null;
  if (of.busy)
    return (
      <p class="tested" role="status" aria-busy="true">
        Testing…
      </p>
    );
  const p = of.problem;
  if (p && p.code !== "MCP_UNREACHABLE") return <ErrorState problem={p} retry={again} auto={false} />;
  if (p) {
    const errors = Array.isArray(p.more["errors"]) ? p.more["errors"].filter((e): e is string => typeof e === "string") : [];
    return (
      <div role="alert" class="alert bad tested">
        <strong>The test failed</strong>
        {p.detail && (
          <p>
            <Stranger text={p.detail} line />
          </p>
        )}
        {errors.length > 0 && (
          <ul>
            {errors.slice(0, 20).map((e, i) => (
              <li key={i}>
                <Stranger text={e} line chars={600} />
              </li>
            ))}
          </ul>
        )}
        <p class="dim">
          <code>{p.code}</code>
          {p.requestId && <> · request <code>{p.requestId}</code></>}
        </p>
        <div class="actions">
          <button type="button" class="small" onClick={again}>
            Test again
          </button>
          <button type="button" class="small" onClick={close}>
            Hide
          </button>
        </div>
      </div>
    );
  }
  const tools = of.tools ?? [];
  return (
    <div class="tested alert info">
      <p role="status">
        <strong>It answers.</strong> {tools.length === 0 ? "It lists no tools." : `It lists ${plural(tools.length, "tool")}:`}
      </p>
      {tools.length > 0 && (
        <ul class="plain tool-names" aria-label="Tools of the server">
          {tools.slice(0, 200).map((t) => (
            <li key={t.name}>
              <code>
                <bdi>{visible(t.name)}</bdi>
              </code>{" "}
              {t.unusable ? (
                <span class="error">
                  No agent can call it: <Stranger text={t.unusable} line />
                </span>
              ) : (
                <Stranger text={t.description} line chars={160} />
              )}
            </li>
          ))}
        </ul>
      )}
      <button type="button" class="small" onClick={close}>
        Hide
      </button>
    </div>
  );
}
