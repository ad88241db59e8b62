// Prices of models as a form has them: rows of texts.

import { numberOf } from "./format";

export type Prices = Record<string, { input_per_mtok: number; output_per_mtok: number }>;

export interface PriceRow {
  model: string;
  input: string;
  output: string;
}

export const priceRows = (p: Prices): PriceRow[] => Object.keys(p).sort().map((model) => ({ model, input: String(p[model]!.input_per_mtok), output: String(p[model]!.output_per_mtok) }));

/** pricesOf reads the rows; rows without any text are left out. */
export function pricesOf(rows: readonly PriceRow[]): { value: Prices; error?: string } {
  const value: Prices = Object.create(null) as Prices;
  for (const [i, r] of rows.entries()) {
    const model = r.model.trim();
    if (!model && !r.input.trim() && !r.output.trim()) continue;
    const input = numberOf(r.input);
    const output = numberOf(r.output);
    if (!model) return { value, error: `Price ${i + 1} names no model.` };
    if (model in value) return { value, error: `${model} has two prices.` };
    if (!(input >= 0) || !(output >= 0) || !Number.isFinite(input) || !Number.isFinite(output)) return { value, error: `The prices of ${model} must be numbers from 0.` };
    value[model] = { input_per_mtok: input, output_per_mtok: output };
  }
  return { value };
}
