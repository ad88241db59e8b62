package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"agentsvc/persistence/feed"
	"agentsvc/persistence/migrate"
	"agentsvc/persistence/pg"
)

// finding is one line of svc doctor.
type finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

func doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "is everything in order: configuration, database, schema, runs",
		Long:  "Looks at the configuration, the database and what is stored in it, while the server runs and while it is down. It changes nothing but a schema that is behind.",
		Args:  cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			found := diagnose(cmd)
			sick := 0
			for _, f := range found {
				if !f.OK {
					sick++
				}
			}
			var err error
			if wantsJSON(cmd) {
				err = printJSON(cmd.OutOrStdout(), map[string]any{"ok": sick == 0, "findings": found})
			} else {
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				for _, f := range found {
					fmt.Fprintf(w, "%s\t%s\t%s\n", map[bool]string{true: "ok", false: "BAD"}[f.OK], f.Check, f.Detail)
				}
				err = w.Flush()
			}
			if sick > 0 {
				err = errors.Join(err, fmt.Errorf("%d of %d checks failed", sick, len(found)))
			}
			return err
		}),
	}
}

// diagnose looks as far as it gets: what cannot be reached hides what lies
// behind it.
func diagnose(cmd *cobra.Command) (found []finding) {
	note := func(check string, err error, detail string) bool {
		if err != nil {
			detail = err.Error()
		}
		found = append(found, finding{check, err == nil, detail})
		return err == nil
	}
	c, err := loadConfig(cmd)
	if !note("configuration", err, "every value can be read") {
		return found
	}
	_, err = openVault(c)
	note("master key", err, "can be read")
	_, err = os.Stat(c.DataDir)
	if c.DatabaseURL == "" || !errors.Is(err, os.ErrNotExist) {
		note("data directory", err, c.DataDir)
	}
	err = withDatabase(cmd.Context(), c, quietLog(), func(ctx context.Context, pool *pg.Pool) error {
		note("database", nil, "reachable, roles and schema version "+fmt.Sprint(migrate.Latest())+" in place")
		sick, err := feed.NewSweep(pool).Diagnose(ctx)
		if err != nil {
			return err
		}
		for _, s := range sick {
			var bad error
			if s.Count > 0 {
				bad = fmt.Errorf("%d, e.g. %s", s.Count, s.Example)
			}
			note(s.Check, bad, "none")
		}
		return nil
	})
	if err != nil {
		note("database", err, "")
	}
	return found
}
