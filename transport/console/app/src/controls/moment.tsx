// A moment to filter by, typed in the zone that times are shown in.

import { times } from "../client/prefs";
import { Field } from "./form";

const two = (n: number): string => String(n).padStart(2, "0");

/** typed writes an ISO time as the control holds it: without a zone, to the minute. */
function typed(iso: string, utc: boolean): string {
  const d = new Date(iso);
  if (!iso || Number.isNaN(d.getTime())) return "";
  return utc ? d.toISOString().slice(0, 16) : `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}T${two(d.getHours())}:${two(d.getMinutes())}`;
}

/** Moment edits an ISO time; "" is none. */
export function Moment({ label, value, onChange, required = false }: { label: string; value: string; onChange: (iso: string) => void; required?: boolean }) {
  const utc = times.value === "utc";
  return (
    <Field label={label}>
      {(p) => (
        <input
          {...p}
          type="datetime-local"
          required={required}
          value={typed(value, utc)}
          onChange={(e) => {
            const v = e.currentTarget.value;
            const d = new Date(v + (utc ? "Z" : ""));
            onChange(v && !Number.isNaN(d.getTime()) ? d.toISOString().replace(".000Z", "Z") : "");
          }}
        />
      )}
    </Field>
  );
}
