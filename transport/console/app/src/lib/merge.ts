// What happens to a form when its object is changed elsewhere meanwhile.

/**
 * merged takes what changed elsewhere into the fields of a draft that are as they were: the
 * draft, what it began with, what there is now. What was typed stays.
 */
export function merged<T extends object>(draft: T, was: T, now: T): T {
  const out = { ...draft };
  for (const k of Object.keys(draft) as (keyof T)[]) if (JSON.stringify(draft[k]) === JSON.stringify(was[k])) out[k] = now[k];
  return out;
}
