// The toolbar Bulk: one decision for all that are selected.

import { useRef, useState } from "preact/hooks";
import { randomKey } from "../../client/api";
import type { Action, Approval, BulkResult } from "../../client/types";
import { Failed, useAction } from "../../controls/action";
import { Dialog } from "../../controls/dialog";
import { TextField } from "../../controls/form";
import { RiskMark } from "../../controls/text";
import { plural } from "../../lib/format";
import { decideAll } from "./many";
import { doesTexts, groups, riskier } from "./words";

type Bulky = Exclude<Action, "edit">;

const NAMES: Record<Bulky, (n: number) => string> = { approve: (n) => `Approve ${n}`, reject: (n) => `Reject ${n}`, respond: (n) => `Respond to ${n}` };

interface Props {
  chosen: Approval[];
  all: Approval[];
  onSelect: (ids: string[]) => void;
  onDone: (results: BulkResult[], action: Bulky) => void;
}

export function Bulk({ chosen, all, onSelect, onDone }: Props) {
  const [asked, setAsked] = useState<{ action: Bulky; of: Approval[] } | null>(null);
  const bar = useRef<HTMLDivElement>(null);
  const arrows = (e: KeyboardEvent): void => {
    const to = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
    if (!to) return;
    const buttons = [...bar.current!.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    buttons[(at + to + buttons.length) % buttons.length]?.focus();
  };
  const n = chosen.length;
  return (
    <>
      <div ref={bar} class="bulk" role="toolbar" aria-label="Bulk" onKeyDown={arrows}>
        {(["approve", "reject", "respond"] as const).map((a) => (
          <button key={a} type="button" class="small" onClick={() => setAsked({ action: a, of: chosen })}>
            {NAMES[a](n)}
          </button>
        ))}
        <button type="button" class="small" onClick={() => onSelect(all.map((a) => a.id))}>
          {`Select all ${all.length}`}
        </button>
        <button type="button" class="small" onClick={() => onSelect([])}>
          Clear selection
        </button>
      </div>
      {asked && (
        <Ask
          {...asked}
          onClose={() => setAsked(null)}
          onDone={(r) => {
            setAsked(null);
            onDone(r, asked.action);
          }}
        />
      )}
    </>
  );
}

function Ask({ action, of, onClose, onDone }: { action: Bulky; of: Approval[]; onClose: () => void; onDone: (r: BulkResult[]) => void }) {
  const [text, setText] = useState("");
  const act = useAction();
  const keys = useRef(new Map<string, string>());
  const cancel = useRef<HTMLButtonElement>(null);
  const highest = of.map((a) => a.risk).reduce(riskier, "low");
  const needsText = action === "respond";
  const go = (e: Event): void => {
    e.preventDefault();
    void act.run(async () => {
      onDone(await decideAll(of.map((a) => a.id), action, text.trim(), keys.current, randomKey));
    });
  };
  return (
    <Dialog title={NAMES[action](of.length) + "?"} onClose={onClose} alert focus={cancel} dirty={text !== ""} closable={!act.busy}>
      <form onSubmit={go}>
        <p>
          {plural(of.length, "approval")}, highest risk <RiskMark of={highest} />.
        </p>
        {doesTexts(of, action).map((does) => (
          <p key={does}>{does}</p>
        ))}
        <table class="facts-table">
          <thead>
            <tr>
              <th scope="col">Tool</th>
              <th scope="col">Count</th>
              <th scope="col">Highest risk</th>
            </tr>
          </thead>
          <tbody>
            {groups(of)
              .slice(0, 50)
              .map((g) => (
                <tr key={g.tool}>
                  <td>
                    <bdi>{g.tool}</bdi>
                  </td>
                  <td>{g.count}</td>
                  <td>
                    <RiskMark of={g.risk} />
                  </td>
                </tr>
              ))}
          </tbody>
        </table>
        {action !== "approve" && <TextField label={needsText ? "Answer" : "Reason"} rows={3} value={text} onInput={setText} required={needsText} hint={needsText ? undefined : "Optional."} />}
        <Failed act={act} />
        <div class="actions">
          <button ref={cancel} type="button" onClick={onClose} disabled={act.busy}>
            Cancel
          </button>
          <button type="submit" class={action === "approve" ? "primary" : "danger"} disabled={act.busy || (needsText && !text.trim())}>
            {NAMES[action](of.length)}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
