// Begins a recording.

import { useState } from "preact/hooks";
import { Failed, useAction, useHere } from "../../controls/action";
import { Dialog } from "../../controls/dialog";
import { FormActions, TextField } from "../../controls/form";
import { href, leave } from "../../frame/router";
import { visible } from "../../lib/hostile";

/** StartRecorder opens a page on the server, whose actions become steps. */
export function StartRecorder({ title, url = "", of = "", onClose }: { title: string; url?: string; of?: string; onClose: () => void }) {
  const [address, setAddress] = useState(url);
  const act = useAction();
  const here = useHere();
  const fields = act.problem?.fields ?? {};
  // BROWSER_SKILL_INVALID names the field in its detail.
  const about = act.problem?.code === "BROWSER_SKILL_INVALID" ? /^start_url: (.+)$/s.exec(act.problem.detail)?.[1] : undefined;
  const start = (e: Event): void => {
    e.preventDefault();
    void act.run(async (i) => {
      const made = await i.send<{ id: string }>("POST", "/v1/browser-skills/recorder-sessions", { start_url: address.trim() });
      if (!here()) {
        // It was closed meanwhile: nobody could find the session again.
        await i.send("DELETE", "/v1/browser-skills/recorder-sessions/" + made.id);
        return;
      }
      onClose();
      leave(href("skills", { record: made.id, of }));
    });
  };
  return (
    <Dialog title={title} onClose={onClose} dirty={address !== url}>
      <form onSubmit={start}>
        <p>You show a browser on the server what to do, once. What you do becomes the steps of the skill.</p>
        <Failed act={act} hide={!!fields["start_url"] || !!about} />
        {act.problem?.code === "IN_USE" && <p class="dim">A session that nobody uses ends after 15 minutes.</p>}
        <TextField label="Start URL" type="url" value={address} onInput={setAddress} error={fields["start_url"] ?? (about ? visible(about) : undefined)} required hint="Where the recording begins, such as the page with the form" />
        <FormActions onClose={onClose} action={act.busy ? "Opening" : "Record"} disabled={act.busy} />
      </form>
    </Dialog>
  );
}
