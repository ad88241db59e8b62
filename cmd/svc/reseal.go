package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/reseal"
)

func resealCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "reseal",
		Short: "reseal all values under the current master key, so that previous keys can be removed",
		Long: `Rotation of the master key, while the servers run:

  1. Make a key: openssl rand -base64 32
  2. One node: restart it with the new key as SVC_MASTER_KEY and the old one in
     SVC_MASTER_KEY_PREVIOUS (comma-separated). In development the first key is
     in the file master.key of the data directory.
     Several nodes: a node that seals with a key that another one does not know
     is refused. First restart node by node with the new key in
     SVC_MASTER_KEY_PREVIOUS, then node by node with the two exchanged.
  3. Run svc reseal in the same environment. It can be stopped and run again.
  4. When it says that no previous key is needed, restart without
     SVC_MASTER_KEY_PREVIOUS. Old backups still need the old key. What browsers
     keep of embedded chats is signed under it, too: without the old key their
     sessions end, and anonymous visitors who were absent begin anew.

Every sealed value is opened as a check; what opens under none of the keys is
named, stays as it is, and makes the exit code 1. So svc reseal without a
previous key tells whether everything opens without one.

While a running server does not know the new key, nothing is resealed: it could
not open the values, and work that it has accepted would fail.`,
		Args: cobra.NoArgs,
		RunE: cli.Does(func(cmd *cobra.Command, _ []string) error {
			return onDatabase(cmd, managing, func(ctx context.Context, c *Config, pool *pg.Pool) error {
				v, err := openVault(c, false)
				if err != nil {
					return err
				}
				report, err := reseal.Run(ctx, pool, v, sealedColumns())
				if report == nil {
					return err
				}
				return errors.Join(printReport(cmd, report), err, verdictOf(report, err))
			})
		}),
	}
}

func printReport(cmd *cobra.Command, r *reseal.Report) error {
	out := cmd.OutOrStdout()
	if cli.WantsJSON(cmd) {
		return cli.PrintJSON(out, r)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "COLUMN\tVALUES\tREWRAPPED\tLEFT\tUNREADABLE")
	for _, c := range r.Columns {
		fmt.Fprintf(w, "%s.%s\t%d\t%d\t%d\t%d\n", c.Table, c.Column, c.Values, c.Rewrapped, c.Left, c.Unreadable)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, p := range r.Unreadable {
		fmt.Fprintf(out, "does not open: %s.%s of %s in tenant %s\n", p.Table, p.Column, p.Row, p.Tenant)
	}
	if !r.PreviousNeeded {
		_, err := fmt.Fprintln(out, "no previous master key is needed any more to open what is sealed\n"+
			"browsers that have not come back since the change are known as the same visitors only while SVC_MASTER_KEY_PREVIOUS is kept")
		return err
	}
	return nil
}

// verdictOf returns an error that says why the rotation is not done, or nil.
func verdictOf(r *reseal.Report, stopped error) error {
	unreadable := r.Sum(func(c reseal.Count) int { return c.Unreadable })
	switch {
	case unreadable > 0:
		return fmt.Errorf("%d values open under none of the given keys", unreadable)
	case stopped != nil:
		return nil // that error is reported already
	case r.PreviousNeeded:
		return errors.New("previous master keys are still needed: rows were busy, or a server still seals under an old key; give every server the new one and run svc reseal again")
	}
	return nil
}
