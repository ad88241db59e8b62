// Package rollup keeps the figures that GET /v1/stats and GET /v1/overview show: sums of
// minutes, quarters of an hour and hours, of each agent and of each tenant.
//
// The commit that ends something inserts a row into the table tallies. The Folder, on every
// node, adds these rows to the table stats and deletes them, in one transaction: a tally is
// counted exactly once, whenever a process dies. A tally carries the id of the transaction
// that inserted it. A fold takes the tallies of the transactions that ended before it, and
// moves a mark behind them. A reader adds the tallies from the mark on to the sums, in one
// snapshot, so that the figures are complete at any moment, and a fold may be late.
//
// Times are histograms with buckets that grow by a tenth: a percentile is right within 5 %.
//
// Order: one fold at a time in the cluster, under the lock of the mark's row. Limits: a fold
// takes up to maxFold tallies and rests at least as long as it took. Loss: none.
package rollup
